"""Evidence during training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import OnlineEvidence
from tests.laplace.problems import regressor


class Residual(nn.Module):
    """x + BatchNorm(conv(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x)).tanh()


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_training(structure: str) -> None:
    model = nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 1)
    )
    if structure == "kron":
        model[2] = Residual()
    x = torch.randn(64, 1, 5)
    y = x[:, 0, :1] * x[:, 0, 1:2] + 0.3 * torch.randn(64, 1)
    online = OnlineEvidence(model, "regression", structure, every=4, burn_in=8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    batches = list(zip(x.split(16), y.split(16), strict=True))
    for _ in range(17):
        for inputs, labels in batches:
            optimizer.zero_grad()
            online.loss(model(inputs), labels, 64).backward()
            optimizer.step()
        online.end_epoch(batches)
        assert model.training
    assert [epoch for epoch, _ in online.history] == [8, 12, 16]
    assert online.laplace is not None and {"0", "1", "4"} <= set(online.prior.groups)
    # The prior and the noise that training goes on with are those of the last posterior.
    assert online.prior is online.laplace.prior
    assert all(float(value) != 1 for value in online.prior.values.values())
    assert isinstance(online.likelihood, lk.likelihoods.Gaussian)
    assert repr(online.likelihood) == repr(online.laplace.likelihood)
    assert float(online.likelihood.variance) != 1


def test_loss_is_the_joint_density() -> None:
    problem = regressor()
    online = OnlineEvidence(problem.model, "gaussian", prior={"0": 2.0, "2": 3.0})
    wanted = sum(
        scale / 2 * p.detach().square().sum()
        for name, p in problem.model.named_parameters()
        for scale in [2.0 if name.startswith("0") else 3.0]
    )
    torch.testing.assert_close(online.penalty().detach(), wanted)
    total = online.loss(problem.model(problem.x), problem.y, 12).detach() * 12
    torch.testing.assert_close(total, problem.nll() + wanted)


def test_refusal() -> None:
    with pytest.raises(ValueError, match="every=0"):
        OnlineEvidence(nn.Linear(2, 2), every=0)
