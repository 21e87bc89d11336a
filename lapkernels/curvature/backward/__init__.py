"""Going back over a recorded pass: columns, windows of images, diagonals, or autograd.

The planner decides once what carries the curvature through each part of the graph; the walks
execute its plan, and collectors get what arrives at the parameters. No model is run here.
"""
