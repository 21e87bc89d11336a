"""Errors of the curvature engine."""


class Refused(RuntimeError):
    """A quantity that cannot be computed rightly: where, why, and what would work."""


class SamplesLost(Refused):
    """It cannot be told which entry belongs to which sample."""


class NoBatch(ValueError):
    """Data without a batch, which may be one process's share of data that have some."""
