"""The backward pass over a recorded graph: columns, windows of images, diagonals, or autograd.

The planner decides once what carries the curvature through each part of the graph; the other files
execute its plan, and collectors get the columns at the parameters. No model is run here.
"""
