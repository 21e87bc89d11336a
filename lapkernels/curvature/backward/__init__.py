"""Going back over a recorded pass: columns, windows of images, diagonals, or autograd.

Each walk goes over the recorded nodes and asks their rules; collectors get what arrives at the
parameters. What a way costs, and which one is taken, is decided here too. No model is run here.
"""
