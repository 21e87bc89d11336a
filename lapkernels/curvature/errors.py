"""Errors of the curvature engine."""


class Refused(RuntimeError):
    """A quantity that cannot be computed right: where, why, and what would work."""


class SamplesLost(Refused):
    """It is unknown which entry belongs to which sample."""


class NoBatch(ValueError):
    """Data without a batch; in one of several processes its share may be empty."""


def reference(where: str, name: str) -> str:
    """The message where a model reads a parameter that no copy can replace."""
    return (
        f"{where} reads the parameter {name} by a reference of its own, in a list or a closure, or "
        "out of a tensor made before the call: read it as an attribute of its module"
    )
