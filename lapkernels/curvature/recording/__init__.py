"""Running a model once and keeping what the way back needs: a graph of ops with their rules.

Here are the dispatch mode that sees every op, the shorter ways for known functions and for passes
that repeat an earlier one, and the graph that all of them produce. No curvature is computed here.
"""
