"""The choice of prior precision, noise and temperature.

Each file has one criterion: held-out data, caution, the evidence, the evidence at the optimum of
the linearised model, the evidence during training. ``Laplace`` keeps what is chosen, and
``predictive`` makes the predictions.
"""
