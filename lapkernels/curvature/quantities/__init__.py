"""The public functions, one file a quantity: from a model and data to tensors.

A file holds the function, its formula, and the collector that adds up the columns' contributions.
``loop`` and ``columns`` are shared by all. Running a batch and its backward pass are in ``passes``
and below; ``results`` has what is returned.
"""
