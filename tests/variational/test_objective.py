"""The mode under a prior."""

from __future__ import annotations

import torch
from torch import nn

from lapkernels.variational import MaximumAPosteriori
from tests.variational.networks import dense, prepared


def test_loss_is_the_log_joint() -> None:
    model = prepared(dense(3, 4, 2))
    q = MaximumAPosteriori(model, "categorical", 10, prior_std={"0": 0.5, "2": 3.0}, beta=0.2)
    x, y = torch.randn(5, 3).double(), torch.randint(2, (5,))
    stds = {"0.weight": 0.5, "0.bias": 0.5, "2.weight": 3.0, "2.bias": 3.0}
    penalty = sum((p / stds[n]).square().sum() for n, p in model.named_parameters())
    expected = nn.functional.cross_entropy(model(x), y) + 0.2 * penalty / 20
    torch.testing.assert_close(q.loss(x, y), expected, rtol=1e-12, atol=0)


def test_mode_of_a_linear_model() -> None:
    """Ridge regression."""
    torch.manual_seed(0)
    x, y = torch.randn(9, 3).double(), torch.randn(9, 1).double()
    model = nn.Linear(3, 1, bias=False).double()
    q = MaximumAPosteriori(model, "gaussian", 9, prior_std=0.7)
    optimizer = torch.optim.LBFGS(q.param_groups(1.0)[0]["params"], max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = q.loss(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    truth = torch.linalg.solve(x.T @ x + torch.eye(3).double() / 0.49, x.T @ y)
    torch.testing.assert_close(model.weight.data, truth.T, rtol=1e-5, atol=1e-6)


def test_inputs_of_several_tensors_and_chosen_outputs() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": self.layer(a + b), "other": a}

    torch.manual_seed(0)
    model, a, b, y = Pair(), torch.randn(3, 2), torch.randn(3, 2), torch.randn(3, 2)
    q = MaximumAPosteriori(model, "gaussian", 3, output="sum", beta=0.0)
    expected = 0.5 * (model.layer(a + b) - y).square().sum() / 3
    torch.testing.assert_close(q.loss((a, b), y), expected)
    torch.testing.assert_close(q.loss({"a": a, "b": b}, y), expected)
