"""One batch at a time: recorded, checked against autograd when it is new, then pulled back.

``passes`` yields a ``Pass`` for each batch and decides between rules and autograd; ``explain``
prints the plan. Recording a batch and its backward pass are in the packages below.
"""
