"""Derivatives of one batch by torch's autograd alone, without recording.

Products of the Jacobian, the Gauss-Newton matrix and the Hessian with vectors, for every model that
autograd can differentiate. Tests have oracles of their own.
"""
