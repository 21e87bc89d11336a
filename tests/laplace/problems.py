"""Small models with data, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.curvature import oracle


@dataclass(frozen=True)
class Problem:
    """A model in eval mode, its data and a few new inputs."""

    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: str
    new: Tensor

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The data in three batches of different sizes."""
        sizes = [2, len(self.x) - 5, 3]
        return list(zip(self.x.split(sizes), self.y.split(sizes), strict=True))

    @property
    def theta(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    @property
    def jacobian(self) -> Tensor:
        """[N, D, P] at the new inputs."""
        return oracle.flat_jacobians(self.model, self.new)[0].detach()

    def ggn(self) -> Tensor:
        return oracle.ggn(self.model, self.x, self.y, self.likelihood).detach()

    def nll(self) -> float:
        with torch.no_grad():
            return float(oracle.LIKELIHOODS[self.likelihood](self.model(self.x), self.y))


def classifier(count: int = 12) -> Problem:
    """Grouped and transposed convolutions, a norm, three classes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 2, groups=2),
        nn.Tanh(),
        nn.ConvTranspose2d(4, 2, 2, bias=False),
        nn.GroupNorm(1, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(18, 3),
    )
    x = torch.randn(count, 2, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        # No evidence bounds the precision of parameters that are all zero.
        model.get_parameter("3.bias").add_(0.1)
        # Labels that the model is rather sure of, as after training.
        y = torch.multinomial((4 * model.double().eval()(x)).softmax(1), 1)[:, 0]
    return Problem(model, x, y, "categorical", torch.randn_like(x[:4]))


def regressor(count: int = 12) -> Problem:
    """A perceptron with two outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()
    x = torch.randn(count, 3, dtype=torch.float64)
    with torch.no_grad():
        y = model(x)
        y += 0.2 * torch.randn_like(y)
    return Problem(model, x, y, "gaussian", torch.randn_like(x[:4]))


PROBLEMS = {"classifier": classifier, "regressor": regressor}
