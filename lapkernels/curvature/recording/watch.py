"""Watching the functions of torch that a model calls, until something is not as expected."""

from __future__ import annotations

from typing import NoReturn

from torch.overrides import TorchFunctionMode


class Watch(TorchFunctionMode):
    """A mode that can give up: ``error`` comes out of it, whatever the model makes of it."""

    error: type[RuntimeError]

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def fail(self) -> NoReturn:
        """Give up."""
        self._failed = True
        raise self.error

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        # The model may have caught the error, or made another of it.
        if self._failed and not isinstance(error, self.error):
            raise self.error from error
