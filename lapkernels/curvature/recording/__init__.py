"""Running a model once and recording what the backward pass needs: a graph of ops with their rules.

Here are the dispatch mode that sees every op, the shortcuts for known functions, the replay of
earlier passes, and the graph that all of them produce. No curvature is computed here.
"""
