"""What a rule is made of: calls, samples, uses of weights, and choices between routes.

A ``Rule`` is the derivative of one call, ``Samples`` say where the batch lies in a tensor, and a
``Use`` is how a weight enters. Derivatives of particular ops are in the file of their family.
"""
