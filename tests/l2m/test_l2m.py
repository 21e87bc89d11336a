"""L2M against a diagonal Laplace approximation, its published form, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.l2m.second_moments import second_moments


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(count: int = 60) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 2).double(), torch.randint(3, (count,))


def trained(
    batch: int = 12, steps: int = 40, reduction: str = "mean", **options: Any
) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    net, (x, y) = model(), data()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, **options)
    for step in range(steps):
        part = torch.arange(step * batch, (step + 1) * batch) % len(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[part]), y[part], reduction=reduction).backward()
        optimizer.step()
    return net, optimizer


def test_precision_is_scaled_to_the_data() -> None:
    net, optimizer = trained()
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12, prior=0.3)
    moments = second_moments(optimizer, dict(net.named_parameters()))
    for name, variance in q.posterior.variance().items():
        torch.testing.assert_close(1 / variance, 60 * 12 * moments[name] + 0.3)


def test_published_convention() -> None:
    net, optimizer = trained()
    q = lk.L2M.from_optimizer(
        optimizer, net, "categorical", data_size=60, batch_size=12, prior=0.25,
        convention="paper", epsilon=0.1,
    )  # fmt: skip
    moments = second_moments(optimizer, dict(net.named_parameters()))
    for name, variance in q.posterior.variance().items():
        torch.testing.assert_close(1 / variance, moments[name] + 4 + 0.1)


def test_a_frozen_model_gives_the_empirical_fisher() -> None:
    """With a learning rate of zero and single samples, the average is F over the last ones."""
    net, (x, y) = model(), data()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.0)
    for n in range(len(x)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[n : n + 1]), y[n : n + 1]).backward()
        optimizer.step()
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=1)
    la = lk.Laplace(net, "categorical", "diag", "empirical").fit((x, y))
    for name, variance in q.posterior.variance().items():
        torch.testing.assert_close(variance, la.posterior.variance()[name])
    torch.testing.assert_close(q.predict(x[:5]).probabilities, la.predict(x[:5]).probabilities)
    torch.testing.assert_close(q.predict(x[:5]).variance, la.predict(x[:5]).variance)


def test_at_convergence_it_is_the_empirical_fisher_up_to_noise() -> None:
    """Labels drawn from a network of the same shape, so that the data can be explained."""
    x, teacher, net = torch.randn(1000, 2).double(), model(), model()
    with torch.no_grad():
        for p in teacher.parameters():
            p.normal_()
        y = torch.multinomial(teacher(x).softmax(1), 1).squeeze(1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-2, betas=(0.9, 0.998), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    for _ in range(2000):
        part = torch.randint(1000, (25,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[part]), y[part]).backward()
        optimizer.step()
        schedule.step()
    moments = second_moments(optimizer, dict(net.named_parameters()))
    fisher = lk.diag(net, (x, y), "categorical", method="empirical")
    ours = torch.cat([(1000 * 25 * moments[name]).flatten() for name in fisher]).log()
    truth = torch.cat([value.flatten() for value in fisher.values()]).log()
    assert torch.corrcoef(torch.stack([ours, truth]))[0, 1] > 0.95
    assert (ours - truth).abs().median() < 0.2


def test_mean_and_sum_of_the_loss_agree() -> None:
    found = []
    for reduction in ("mean", "sum"):
        net, (x, y) = model(), data()
        optimizer = torch.optim.Adagrad(net.parameters(), lr=0.0)
        for part in torch.arange(60).split(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[part]), y[part], reduction=reduction)
            loss.backward()
            optimizer.step()
        q = lk.L2M.from_optimizer(
            optimizer, net, "categorical", data_size=60, batch_size=12, reduction=reduction
        )
        found.append(q.posterior.variance())
    for name, variance in found[0].items():
        torch.testing.assert_close(variance, found[1][name])


def test_predicts_samples_saves_and_loads(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    net, optimizer = trained()
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)
    x = data()[0][:4]
    assert q.predict(x).probabilities.sum(1).allclose(torch.ones(4).double())
    drawn = q.predict(x, how="weights", samples=20, generator=torch.Generator().manual_seed(0))
    assert drawn.probabilities.shape == (4, 3)
    assert q.sample(7)["0.weight"].shape == (7, 8, 2)
    q.save(tmp_path / "q.safetensors")
    again = lk.L2M.load(tmp_path / "q.safetensors", net)
    assert isinstance(again, lk.L2M)
    torch.testing.assert_close(again.predict(x).variance, q.predict(x).variance)


def test_a_training_that_goes_on_leaves_it_behind(tmp_path: Path) -> None:
    net, optimizer = trained()
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)
    x, y = data()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    for call in (lambda: q.predict(x), lambda: q.sample(1), lambda: q.save(tmp_path / "q")):
        with pytest.raises(lk.Refused, match="0.weight and 3 more of the model changed"):
            call()
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)
    q.predict(x)
    net.insert(1, nn.Dropout())
    with pytest.raises(lk.Refused, match=r"1 \(Dropout\)"):
        lk.L2M.from_optimizer(
            optimizer, net, "categorical", data_size=60, batch_size=12
        ).predict(x, how="weights")  # fmt: skip


def test_no_evidence_without_the_likelihood_of_the_data() -> None:
    net, optimizer = trained()
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)
    with pytest.raises(RuntimeError, match="labels"):
        q.log_evidence()
    assert float(q.tune(data()).prior.precision["0.weight"]) != 1


def test_a_part_of_the_parameters() -> None:
    net, optimizer = trained()
    net[0].requires_grad_(False)
    q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)
    assert list(q.posterior.variance()) == ["2.weight", "2.bias"]


def test_decay_that_enters_the_gradients_is_warned_of() -> None:
    net, optimizer = trained(weight_decay=0.1)
    with pytest.warns(UserWarning, match="AdamW"):
        lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_size": 0}, "data_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"reduction": "none"}, "reduction"),
        ({"convention": "published"}, "convention"),
        ({"convention": "paper", "prior": "layer"}, "positive number"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    net, optimizer = trained(steps=1)
    with pytest.raises(ValueError, match=message):
        lk.L2M.from_optimizer(
            optimizer, net, "categorical", **{"data_size": 60, "batch_size": 12, **options}
        )
