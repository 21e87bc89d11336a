"""One batch at a time: recorded, checked against autograd when it is new, then pulled back.

``passes`` yields a ``Pass`` for each batch and decides between rules and autograd; ``explain``
prints what a pass will do. How a batch is recorded and how columns are carried lie below.
"""
