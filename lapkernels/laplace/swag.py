"""Mean and variance of the weights along the last steps of training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lapkernels.curvature.data.contents import Contents, Parameters, parameters_of


class Swag:
    """Independent weights of the mean and variance that they have along SGD (Maddox et al., 2019).

    .. code-block:: python

        swag = Swag(model)
        for x, y in loader:  # at a constant rate, from trained weights
            step(x, y)
            swag.update()
        la = lk.Laplace(model, "gaussian", "subnetwork", size=1000, by=swag.variance()).fit(loader)

    The sums are in float64.
    """

    def __init__(self, model: nn.Module, params: Parameters = None) -> None:
        self.parameters = parameters_of(Contents.of(model), params)
        self.count = 0
        self._mean, self._squares = (
            {name: torch.zeros_like(p, dtype=torch.float64) for name, p in self.parameters.items()}
            for _ in range(2)
        )

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights as they are now."""
        self.count += 1
        for name, p in self.parameters.items():
            away = p.double() - self._mean[name]
            self._mean[name] += away / self.count
            self._squares[name] += away * (p.double() - self._mean[name])

    def mean(self) -> dict[str, Tensor]:
        """The average by name, in the parameters' dtype."""
        return {name: m.to(self.parameters[name].dtype) for name, m in self._mean.items()}

    def variance(self) -> dict[str, Tensor]:
        """The unbiased variance by name, of two updates at least."""
        if self.count < 2:
            raise RuntimeError(f"{self.count} updates: a variance needs two at least")
        found = {name: value / (self.count - 1) for name, value in self._squares.items()}
        return {name: value.to(self.parameters[name].dtype) for name, value in found.items()}
