"""A mode over the torch functions that a model calls, which can abort the run."""

from __future__ import annotations

from typing import NoReturn

from torch.overrides import TorchFunctionMode


class Watch(TorchFunctionMode):
    """A mode that can abort: ``error`` is raised on exit, whatever the model does with it."""

    error: type[RuntimeError]

    def __init__(self) -> None:
        super().__init__()
        self._failed = False

    def fail(self) -> NoReturn:
        """Abort the run with this error."""
        self._failed = True
        raise self.error

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        # The model may have caught or replaced the error.
        if self._failed and not isinstance(error, self.error):
            raise self.error from error
