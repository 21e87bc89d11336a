"""Errors of the curvature engine."""


class Refused(RuntimeError):
    """A quantity that cannot be computed rightly: where, why, and what would work."""


class SamplesLost(Refused):
    """It cannot be told which entry belongs to which sample."""


class NoBatch(ValueError):
    """Data without a batch, which may be one process's share of data that have some."""


def reference(where: str, name: str) -> str:
    """What is wrong where a model reads a parameter that cannot be replaced by a copy."""
    return (
        f"{where} reads the parameter {name} by a reference of its own, in a list or a closure, or "
        "out of a tensor made before the call: read it as an attribute of its module"
    )
