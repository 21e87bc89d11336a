"""Every posterior on a device of its own: all it makes is where the model and the data are.

Curvature, ops and likelihoods have tests of the same kind beside their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lapkernels as lk
from lapkernels.laplace import calibration
from lapkernels.variational import VariationalInference, VariationalLaplace
from tests.autoencoder.problems import conv_networks, images
from tests.autoencoder.test_baselines import EVERY as AUTOENCODERS
from tests.curvature.functions import tensors
from tests.curvature.test_devices import assert_no_default_device
from tests.laplace.dense import CASES as STRUCTURES
from tests.laplace.problems import PROBLEMS
from tests.variational.networks import prepared, residual

# Prepares a computation on a device; the computation returns tensors, nested.
Prepare = Callable[[str], Callable[[], Any]]


def laplace(case: str, device: str) -> Callable[[], Any]:
    """Fit, tune, evidence and predictions that draw nothing."""
    problem = PROBLEMS["classifier"]()
    model, new = problem.model.to(device), problem.new.to(device)
    data = [(x.to(device), y.to(device)) for x, y in problem.batches]
    structure, options = STRUCTURES[case]

    def run() -> Any:
        la = lk.Laplace(model, "categorical", structure, **options).fit(data)  # pyright: ignore[reportArgumentType]
        la.tune(by="evidence", steps=5)
        found = la.predict(new, joint=True)
        return [la.posterior.variance(), la.log_evidence(), found.covariance, found.probabilities]

    return run


def regression(device: str) -> Callable[[], Any]:
    """Every way to tune, the noise, and a mixture."""
    problem = PROBLEMS["regressor"]()
    model, new = problem.model.to(device), problem.new.to(device)
    data = [(x.to(device), y.to(device)) for x, y in problem.batches]

    def run() -> Any:
        la = lk.Laplace(model, "regression", "full", prior="layer").fit(data)
        la.tune(data, by="linearised", steps=3)
        entries = lk.Laplace(model, "regression", "diag", prior="entry").fit(data)
        entries.tune(by="mackay", steps=5, noise=False)
        entries.tune(data)
        mixture = lk.Mixture([entries, entries]).predict(new)
        found = la.predict(new)
        return [la.scale, found.variance, found.noise, mixture.mean, mixture.variance]

    return run


def draws(device: str) -> Callable[[], Any]:
    """What is drawn from a posterior, by a generator of the device."""
    problem = PROBLEMS["classifier"]()
    model, new = problem.model.to(device), problem.new.to(device)
    data = [(x.to(device), y.to(device)) for x, y in problem.batches]
    generator = torch.Generator(device).manual_seed(0)

    def run() -> Any:
        la = lk.Laplace(model, "categorical", "kron", method="mc").fit(data)
        drawn = la.predict(new, how="weights", samples=5, generator=generator)
        linked = la.predict(new, link="mc", samples=5, generator=generator)
        y = torch.cat([y for _, y in data])[: len(new)]
        score = calibration(drawn.probabilities, y)
        return [la.sample(3, generator), drawn.probabilities, linked.probabilities, score]

    return run


def variational(kind: type[Any], options: dict[str, Any], device: str) -> Callable[[], Any]:
    """A loss with its gradients, and a prediction."""
    model = prepared(residual()).to(device)
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64).to(device)
    y = torch.randint(3, (5,)).to(device)

    def run() -> Any:
        q = kind(model, "categorical", 50, generator=generator, **options).eval()
        gradients = torch.autograd.grad(q.loss(x, y), list(q.parameters()))
        return [gradients, q.predict(x).probabilities, q.sampled_outputs(x, 2)]

    return run


def autoencoder(name: str, device: str) -> Callable[[], Any]:
    """Two steps of training, and moments of what was learnt."""
    ae = AUTOENCODERS[name]()
    x = torch.rand(6, 6, dtype=torch.float64).to(device)
    for member in getattr(ae, "members", [ae]):
        member.model.to(device)
        member.generator = torch.Generator(device).manual_seed(0)

    def run() -> Any:
        losses = [ae.step(x) for _ in range(2)]
        return [losses, ae.describe(x, samples=3), list(ae.parameters.values())]

    return run


def convolutional(device: str) -> Callable[[], Any]:
    """A convolutional Laplacian autoencoder, online and afterwards."""
    encoder, decoder = (network.to(device) for network in conv_networks())
    x = images().to(device)

    def run() -> Any:
        ae = lk.LaplacianAutoencoder(encoder, decoder)
        ae.step(x)
        ae.fit_post_hoc([x])
        return [ae.precision, ae.reconstruct_linearised(x), ae.latent_linearised(x)]

    return run


def second_moments(device: str) -> Callable[[], Any]:
    """L2M from Adam."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double().to(device)
    x = torch.randn(12, 2, dtype=torch.float64).to(device)
    y = torch.randint(3, (12,)).to(device)

    def run() -> Any:
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        q = lk.L2M.from_optimizer(optimizer, net, "categorical", data_size=60, batch_size=12)
        return [q.posterior.variance(), q.predict(x).probabilities]

    return run


def _with(function: Callable[..., Any], *first: Any) -> Prepare:
    return lambda device: function(*first, device)


# Nothing in these is drawn, so a GPU must give the CPU's numbers.
EXACT: dict[str, Prepare] = {
    **{f"laplace-{case}": _with(laplace, case) for case in STRUCTURES},
    "laplace-regression": regression,
    "l2m": second_moments,
    "autoencoder-plain": _with(autoencoder, "plain"),
    "autoencoder-learned": _with(autoencoder, "learned"),
    "autoencoder-ensemble": _with(autoencoder, "ensemble"),
}
DRAWN: dict[str, Prepare] = {
    "laplace-draws": draws,
    "variational-exact": _with(variational, VariationalLaplace, {}),
    "variational-difference": _with(variational, VariationalLaplace, {"route": "difference"}),
    "variational-samples": _with(variational, VariationalLaplace, {"curvature": "samples"}),
    "variational-inference": _with(variational, VariationalInference, {}),
    "autoencoder-variational": _with(autoencoder, "variational"),
    "autoencoder-dropout": _with(autoencoder, "dropout"),
    "autoencoder-laplacian": _with(autoencoder, "laplacian"),
    "autoencoder-convolutional": convolutional,
}
EVERY = {**EXACT, **DRAWN}


def results(run: Callable[[], Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [tensor.detach().clone() for tensor in tensors(run())]


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_made_on_the_default_device(name: str) -> None:
    runs = [EVERY[name]("cpu"), EVERY[name]("cpu")]

    def run() -> Any:
        torch.manual_seed(0)
        return runs.pop()()

    assert_no_default_device(run)


@pytest.mark.gpu
@pytest.mark.parametrize("name", EVERY)
def test_gpu_gives_what_the_cpu_gives(name: str) -> None:
    wanted, found = results(EVERY[name]("cpu")), results(EVERY[name]("cuda"))
    assert found and len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.is_cuda and one.shape == other.shape and one.isfinite().all()
        if name in EXACT:
            # Eigenvectors of a low rank are found up to a tolerance.
            tolerance = 1e-6 if "low_rank" in name else 1e-8
            assert (one.cpu() - other).abs().max() <= tolerance * other.abs().max()
