"""The predictive distribution of new inputs.

Means and variances of the linearised model, its draws, and the links from Gaussian logits to class
probabilities. How good predictions are is measured in ``evaluation``.
"""
