"""Every method of the laplace-torch backends against laplace-torch's own."""

from __future__ import annotations

import sys
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk

pytest.importorskip("laplace", reason="laplace-torch is not installed")

from laplace.curvature import (  # noqa: E402
    AsdlGGN,
    BackPackGGN,
    CurvlinopsEF,
    CurvlinopsGGN,
    EFInterface,
    GGNInterface,
)
from laplace.utils import FeatureExtractor  # noqa: E402

from lapkernels.integrations import LaplaceTorchEF, LaplaceTorchGGN  # noqa: E402
from tests.integrations.laplace_torch_problems import (  # noqa: E402
    COUNT,
    NETWORKS,
    Reward,
    problem,
    targets,
    tokens,
)

LIKELIHOODS = ("classification", "regression")
# Ours, and laplace-torch's own over torch.func, which takes every network.
PAIRS = [(LaplaceTorchGGN, GGNInterface), (LaplaceTorchEF, EFInterface)]


def close(a: Tensor, b: Tensor) -> None:
    assert not a.requires_grad
    torch.testing.assert_close(
        a, b.detach(), rtol=1e-10, atol=1e-10 * float(b.detach().abs().max())
    )


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("pair", PAIRS, ids=["ggn", "ef"])
def test_against_torch_func(pair: Any, name: str, likelihood: str) -> None:
    model, x, y = problem(name, likelihood)
    ours, theirs = (cls(model, likelihood) for cls in pair)
    if (name, likelihood) == ("one-output", "classification"):
        with pytest.raises(ValueError, match="of one logit for two classes"):
            ours.diag(x, y, N=40)
        return
    for method in ("diag", "full"):
        for found, wanted in zip(
            getattr(ours, method)(x, y, N=40), getattr(theirs, method)(x, y, N=40), strict=True
        ):
            close(found, wanted)
    for method, arguments in (("jacobians", (x,)), ("gradients", (x, y))):
        for found, wanted in zip(
            getattr(ours, method)(*arguments), getattr(theirs, method)(*arguments), strict=True
        ):
            close(found, wanted)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ["mlp", "no-bias", "positions", "conv2d"])
@pytest.mark.parametrize(
    "pair", [(LaplaceTorchGGN, CurvlinopsGGN), (LaplaceTorchEF, CurvlinopsEF)], ids=["ggn", "ef"]
)
def test_kron_against_curvlinops(pair: Any, name: str, likelihood: str, sharing: str) -> None:
    model, x, y = problem(name, likelihood)
    ours, theirs = (cls(model, likelihood) for cls in pair)
    loss, kron = ours.kron(x, y, N=40, kfac_approx=sharing)
    true_loss, true_kron = theirs.kron(x, y, N=40, kfac_approx=sharing)
    close(loss, true_loss)
    assert len(kron) == len(true_kron)
    for found, wanted in zip(kron.kfacs, true_kron.kfacs, strict=True):
        for a, b in zip(found, wanted, strict=True):
            close(a, b)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("peer", [BackPackGGN, AsdlGGN])
def test_against_backpack_and_asdl(peer: Any, likelihood: str) -> None:
    model, x, y = problem("mlp", likelihood)
    ours = LaplaceTorchGGN(model, likelihood)
    found = [ours.diag(x, y)[1], ours.kron(x, y, N=40)[1].to_matrix()]
    theirs = peer(model, likelihood)
    wanted = [theirs.diag(x, y)[1], theirs.kron(x, y, N=40)[1].to_matrix()]
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


@pytest.mark.parametrize("name", ["conv1d", "batch-norm", "transposed-1x1", "residual", "frozen"])
def test_kron_where_others_have_none(name: str) -> None:
    """As the dense blocks of our own factors, which are tested by brute force elsewhere."""
    model, x, y = problem(name, "classification")
    _, kron = LaplaceTorchGGN(model, "classification").kron(x, y, N=2 * COUNT)
    dense = lk.kron(model, (x, y), "categorical", "exact")
    blocks = [
        factors.dense() * (0.5 if factors.input is not None else 1.0) for factors in dense.values()
    ]
    close(kron.to_matrix(), torch.block_diag(*blocks))


def test_kron_of_groups() -> None:
    """Within laplace-torch's one pair of factors: the average of the groups' inputs."""
    model, x, y = problem("groups", "classification")
    _, kron = LaplaceTorchGGN(model, "classification").kron(x, y, N=COUNT)
    factors = lk.kron(model, (x, y), "categorical", "exact")["0.weight"]
    assert factors.input is not None
    factor: Any = kron.kfacs[0]
    output, inputs = factor
    close(inputs, (factors.input[0] + factors.input[1]) / 2)
    close(output, torch.block_diag(*factors.output))


def test_kron_of_embedding_and_refusals() -> None:
    model, batch = tokens()
    _, kron = LaplaceTorchGGN(model, "classification").kron(batch, batch["labels"], N=COUNT)
    found = lk.kron(model, [((batch,), batch["labels"])], "categorical", "exact")
    close(kron.to_matrix(), torch.block_diag(*[f.dense() for f in found.values()]))
    model, x, y = problem("transposed", "classification")
    with pytest.raises(lk.Refused, match=r"0.weight \(2, 3, 2, 2\) is the weight of a transposed"):
        LaplaceTorchGGN(model, "classification").kron(x, y, N=COUNT)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([2, 4]), nn.Flatten(), nn.Linear(8, 3))
    backend = LaplaceTorchGGN(model.double().eval(), "classification")
    with pytest.raises(lk.Refused, match=r"1.weight \(2, 4\) is added or scales"):
        backend.kron(torch.randn(COUNT, 2, 3, dtype=torch.float64), y, N=COUNT)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("backend", [LaplaceTorchGGN, LaplaceTorchEF])
def test_batches_add_up(backend: Any, likelihood: str) -> None:
    model, x, y = problem("conv2d", likelihood)
    made = backend(model, likelihood)
    whole = made.kron(x, y, N=COUNT)
    first, second = made.kron(x[:3], y[:3], N=COUNT), made.kron(x[3:], y[3:], N=COUNT)
    close(first[0] + second[0], whole[0])
    close((first[1] + second[1]).to_matrix(), whole[1].to_matrix())


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_sampled_labels(likelihood: str) -> None:
    """The mean of many draws is the exact curvature; so many labels are drawn as are asked for."""
    model, x, y = problem("mlp", likelihood)
    exact = LaplaceTorchGGN(model, likelihood)
    sampled = LaplaceTorchGGN(model, likelihood, stochastic=True, num_samples=300)
    for method in ("diag", "full"):
        loss, found = getattr(sampled, method)(x, y)
        true_loss, wanted = getattr(exact, method)(x, y)
        close(loss, true_loss)
        error = float((found - wanted).norm() / wanted.norm())
        assert 0 < error < 0.25, error
    found, wanted = sampled.kron(x, y, N=COUNT)[1].diag(), exact.kron(x, y, N=COUNT)[1].diag()
    assert 0 < float((found - wanted).norm() / wanted.norm()) < 0.25
    # One column a sample cannot have more rank than there are samples.
    one, all_columns = sampled.full(x, y, mc_samples=1)[1], exact.full(x, y)[1]
    ranks = [int(torch.linalg.matrix_rank(matrix)) for matrix in (one, all_columns)]
    assert ranks[0] <= COUNT < ranks[1]


@pytest.mark.parametrize("pair", PAIRS, ids=["ggn", "ef"])
def test_subnetwork(pair: Any) -> None:
    model, x, y = problem("mlp", "classification")
    # Of the first and the last tensor, not in order.
    indices = torch.tensor([37, 2, 14, 0, 36])
    ours, theirs = (cls(model, "classification", subnetwork_indices=indices) for cls in pair)
    for method in ("diag", "full", "gradients"):
        found, wanted = getattr(ours, method)(x, y), getattr(theirs, method)(x, y)
        close(found[0], wanted[0])
        close(found[1], wanted[1])
    close(ours.jacobians(x)[0], theirs.jacobians(x)[0])
    repeated = pair[0](model, "classification", subnetwork_indices=indices[[0, 0, 3]])
    close(repeated.full(x, y)[1], theirs.full(x, y)[1][[0, 0, 3]][:, [0, 0, 3]])
    close(repeated.diag(x, y)[1], theirs.diag(x, y)[1][[0, 0, 3]])
    wrong = pair[0](model, "classification", subnetwork_indices=torch.tensor([38]))
    with pytest.raises(ValueError, match="subnetwork_indices: some of 0 to 37"):
        wrong.diag(x, y)


def test_selected_outputs() -> None:
    model, x, _ = problem("conv2d", "regression")
    ours, theirs = LaplaceTorchGGN(model, "regression"), GGNInterface(model, "regression")
    for outputs in (torch.randint(3, (COUNT,)), torch.randint(3, (COUNT, 2), dtype=torch.int32)):
        found = ours.selected_output_jacobians(x, outputs)
        wanted = theirs.selected_output_jacobians(x, outputs)
        close(found[0], wanted[0])
        close(found[1], wanted[1])
    with pytest.raises(ValueError, match="outputs has 2 rows"):
        ours.selected_output_jacobians(x, torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["mlp", "no-bias", "conv2d"])
def test_last_layer(name: str) -> None:
    model, x, y = problem(name, "classification")
    extractor = FeatureExtractor(model)
    found = LaplaceTorchGGN(extractor, "classification").last_layer_jacobians(x)
    wanted = GGNInterface(extractor, "classification").last_layer_jacobians(x)
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    ours = LaplaceTorchGGN(extractor, "classification", last_layer=True)
    theirs = CurvlinopsGGN(extractor, "classification", last_layer=True)
    close(ours.diag(x, y)[1], theirs.diag(x, y)[1])
    close(ours.full(x, y)[1], GGNInterface(extractor, "classification", True).full(x, y)[1])
    close(ours.kron(x, y, N=9)[1].to_matrix(), theirs.kron(x, y, N=9)[1].to_matrix())


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_mappings(kind: Any) -> None:
    model, batch = tokens()
    given, y = kind(batch), batch["labels"]
    for ours, theirs in ((LaplaceTorchGGN, GGNInterface), (LaplaceTorchEF, None)):
        backend = ours(model, "classification")
        js, f = backend.jacobians(given)
        close(js, GGNInterface(model, "classification").jacobians(batch)[0])
        if theirs is not None:
            close(backend.diag(given, y)[1], theirs(model, "classification").diag(batch, y)[1])
            close(backend.full(given, y)[1], theirs(model, "classification").full(batch, y)[1])
        else:
            residual = f.softmax(1) - nn.functional.one_hot(y, 3)
            rows = torch.einsum("nc,ncp->np", residual, js)
            close(backend.gradients(given, y)[0], rows)
            close(backend.diag(given, y)[1], rows.square().sum(0))


def test_pairs_of_rewards() -> None:
    model = Reward().double()
    x, y = torch.randn(COUNT, 2, 3, dtype=torch.float64), torch.randint(2, (COUNT,))
    ours, theirs = (cls(model, "classification") for cls in (LaplaceTorchGGN, GGNInterface))
    close(ours.diag(x, y)[1], theirs.diag(x, y)[1])
    close(ours.jacobians(x[:, 0])[0], theirs.jacobians(x[:, 0])[0])


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_outputs_with_positions(likelihood: str) -> None:
    """Classes in dimension 1, as torch has them, or else in the last one."""
    model = nn.Conv2d(2, 3, 2).double()
    x = torch.randn(4, 2, 3, 5, dtype=torch.float64)
    f = model(x)
    y = targets(f, "regression") if likelihood == "regression" else torch.randint(3, (4, 2, 4))
    loss, found = LaplaceTorchGGN(model, likelihood).diag(x, y)
    wanted = lk.diag(model, (x, y), likelihood)
    close(found, torch.cat([d.flatten() for d in wanted.values()]))
    js, _ = LaplaceTorchGGN(model, likelihood).jacobians(x)
    assert js.shape == (*f.shape, 27)
    if likelihood == "classification":
        last = nn.Sequential(model, _Last())
        other = LaplaceTorchGGN(last, likelihood).diag(x, y)
        close(other[0], loss)
        close(other[1], found)


class _Last(nn.Module):
    def forward(self, f: Tensor) -> Tensor:
        return f.movedim(1, -1)


def test_differentiable_jacobians() -> None:
    model, x, _ = problem("mlp", "regression")
    ours, theirs = LaplaceTorchGGN(model, "regression"), GGNInterface(model, "regression")
    picked = torch.randint(3, (COUNT,))
    for method, arguments in (("jacobians", ()), ("selected_output_jacobians", (picked,))):
        gradients = []
        for backend in (ours, theirs):
            leaf = x.clone().requires_grad_()
            js, f = getattr(backend, method)(leaf, *arguments, enable_backprop=True)
            gradients.append(torch.autograd.grad(js.square().sum() + f.sum(), leaf)[0])
        close(gradients[0], gradients[1])


def test_options() -> None:
    model, x, y = problem("mlp", "classification")
    with pytest.raises(TypeError, match=r"kfac_approx and mc_samples, not \['n_mc_samples'\]"):
        LaplaceTorchGGN(model, "classification").diag(x, y, n_mc_samples=3)
    with pytest.raises(TypeError, match=r"not \['mc_samples'\]"):
        LaplaceTorchEF(model, "classification").diag(x, y, mc_samples=3)
    with pytest.raises(ValueError, match="sharing='spread' must be one of"):
        LaplaceTorchGGN(model, "classification").kron(x, y, N=1, kfac_approx="spread")


def test_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import lapkernels.integrations

    for name in [name for name in sys.modules if name.startswith("lapkernels.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == "laplace"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="LaplaceTorchGGN needs laplace: pip install laplace-tor"):
        _ = lapkernels.integrations.LaplaceTorchGGN
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = lapkernels.integrations.Nothing  # pyright: ignore[reportAttributeAccessIssue]
