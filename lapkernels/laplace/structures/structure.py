"""The interface of a structure: how a batch is measured, how the sum becomes a posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Output
from lapkernels.curvature.results.summary import Summary
from lapkernels.laplace.posterior import Posterior, Precision, Shapes
from lapkernels.likelihoods import Likelihood


@dataclass(frozen=True)
class Subject:
    """The model whose curvature is measured, and how.

    ``prior`` and ``scale`` are Λ and c of a posterior's precision c H + Λ at the time of the fit.
    """

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    likelihood: Likelihood
    method: str
    output: Output
    options: Mapping[str, Any]
    prior: Precision
    scale: Tensor
    generator: torch.Generator = field(default_factory=torch.Generator)

    @property
    def shapes(self) -> Shapes:
        """Shapes of the parameters by name."""
        return {name: tuple(p.shape) for name, p in self.parameters.items()}

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that every function of curvature takes."""
        return {
            "likelihood": self.likelihood,
            "method": self.method,
            "params": list(self.parameters),
            "output": self.output,
            "generator": self.generator,
            **self.options,
        }


@dataclass(frozen=True)
class Packed:
    """A state as tensors and JSON."""

    tensors: dict[str, Tensor]
    data: dict[str, Any]
    summary: Summary


class Structure(ABC):
    """One structure of the curvature. Its states add up by their ``merge``.

    ``methods`` can measure it, the first by default; ``options`` are its own arguments. A structure
    that needs two sweeps over the data names the structure measured in the ``first`` one, whose
    state it turns into its ``basis``. A ``whole`` one reads the data by itself, repeatedly.
    """

    methods: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]] = ()
    first: ClassVar[Structure | None] = None
    whole: ClassVar[bool] = False

    @property
    def sweeps(self) -> list[Structure]:
        """What is measured in each sweep over the data."""
        return [self] if self.first is None else [self.first, self]

    @abstractmethod
    def measure(self, subject: Subject, batch: Any, basis: Any) -> Any:
        """The state of one batch, with the ``basis`` that the first sweep gave if there was one."""

    def between(self, subject: Subject, state: Any) -> Any:
        """The basis of the second sweep from the state of the first."""
        raise NotImplementedError

    @abstractmethod
    def posterior(
        self, state: Any, shapes: Shapes, precision: Precision, scale: Tensor
    ) -> Posterior:
        """The posterior from the state of all data."""

    @abstractmethod
    def pack(self, state: Any) -> Packed:
        """A state of the last sweep for a file."""

    @abstractmethod
    def unpack(self, packed: Packed, basis: Any) -> Any:
        """The state back from a file."""

    @abstractmethod
    def wrong_with(self, state: Any, shapes: Shapes) -> str | None:
        """Why a loaded state does not fit parameters of these shapes, or None."""

    def pack_basis(self, basis: Any) -> Packed:
        """The basis for a file."""
        raise NotImplementedError

    def unpack_basis(self, packed: Packed) -> Any:
        """The basis back from a file."""
        raise NotImplementedError
