"""Derivatives of one batch by torch's autograd alone, without recording.

Products of the Jacobian, the Gauss-Newton matrix and the Hessian with vectors. They serve every
model that autograd can differentiate and are the oracle of nothing: tests have their own.
"""
