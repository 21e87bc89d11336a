"""laplace-torch's public interface with our backend and with its own: the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

pytest.importorskip("laplace", reason="laplace-torch is not installed")

from laplace import Laplace, marglik_training  # noqa: E402
from laplace.curvature import CurvlinopsEF, CurvlinopsGGN  # noqa: E402

from lapkernels.integrations import (  # noqa: E402
    LaplaceTorchEF,
    LaplaceTorchGGN,
    without_jacobians,
)
from tests.integrations.laplace_torch_problems import Reward, problem, tokens  # noqa: E402

STRUCTURES = [
    *(("all", structure) for structure in ("diag", "kron", "full")),
    *(("last_layer", structure) for structure in ("diag", "kron", "full")),
    *(("subnetwork", structure) for structure in ("diag", "full")),
]
LINKS = ("probit", "mc", "bridge", "bridge_norm")


def close(a: Any, b: Any, rtol: float = 1e-6) -> None:
    a, b = torch.as_tensor(a).detach(), torch.as_tensor(b).detach()
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.abs().max()), check_dtype=False)


def fitted(
    backend: Any, likelihood: str, weights: str, structure: str, name: str = "conv2d"
) -> tuple[Any, Tensor, DataLoader[Any]]:
    """A posterior over two batches, new inputs, and the data."""
    model, x, y = problem(name, likelihood)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    options: dict[str, Any] = {"backend": backend}
    if weights == "subnetwork":
        options["subnetwork_indices"] = torch.tensor([3, 0, 60, 81])
    la = Laplace(model, likelihood, weights, structure, prior_precision=0.7, **options)
    la.fit(loader)
    return la, torch.randn(3, *x.shape[1:], dtype=x.dtype), loader


def predictions(la: Any, x: Tensor) -> list[Tensor]:
    """With every link, and samples."""
    found = []
    for link in LINKS:
        torch.manual_seed(3)
        result = la(x, link_approx=link, n_samples=5)
        found += list(result) if isinstance(result, tuple) else [result]
    for method in (la.functional_samples, la.predictive_samples):
        generator = torch.Generator().manual_seed(4)
        found.append(method(x, n_samples=5, generator=generator))
    torch.manual_seed(5)
    result = la(x, pred_type="nn", link_approx="mc", n_samples=5)
    return [*found, *(result if isinstance(result, tuple) else [result])]


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize(("weights", "structure"), STRUCTURES)
def test_fit_evidence_predictions(weights: str, structure: str, likelihood: str) -> None:
    posteriors = [
        fitted(backend, likelihood, weights, structure)
        for backend in (LaplaceTorchGGN, CurvlinopsGGN)
    ]
    (ours, x, loader), (theirs, _, _) = posteriors
    close(ours.loss, theirs.loss)
    close(ours.log_marginal_likelihood(), theirs.log_marginal_likelihood())
    for found, wanted in zip(predictions(ours, x), predictions(theirs, x), strict=True):
        close(found, wanted, 1e-5)
    if likelihood == "regression":
        close(ours(x, joint=True)[1], theirs(x, joint=True)[1])
    for method, options in (
        ("marglik", {"n_steps": 3}),
        ("gridsearch", {"val_loader": loader, "grid_size": 3, "pred_type": "glm"}),
    ):
        for la in (ours, theirs):
            la.optimize_prior_precision(method=method, **options)
        close(ours.prior_precision, theirs.prior_precision, 1e-5)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_empirical_fisher(structure: str) -> None:
    ours, theirs = (
        fitted(backend, "regression", "all", structure)[0]
        for backend in (LaplaceTorchEF, CurvlinopsEF)
    )
    close(ours.log_marginal_likelihood(), theirs.log_marginal_likelihood())


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_marginal_likelihood_training(structure: str) -> None:
    found = []
    for backend in (LaplaceTorchGGN, CurvlinopsGGN):
        model, x, y = problem("mlp", "regression")
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        la, trained, margliks, losses = marglik_training(
            model, loader, "regression", structure, backend, n_epochs=3, n_hypersteps=2
        )
        weights = nn.utils.parameters_to_vector(trained.parameters())
        found.append([torch.tensor(margliks), torch.tensor(losses), weights, la.sigma_noise])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


def test_sequential_fit_and_files() -> None:
    posteriors = []
    for backend in (LaplaceTorchGGN, CurvlinopsGGN):
        la, x, loader = fitted(backend, "classification", "all", "kron", "mlp")
        la.fit(loader, override=False)
        posteriors.append((la, x))
    (ours, x), (theirs, _) = posteriors
    close(ours(x), theirs(x))
    other: Any = Laplace(ours.model, "classification", "all", "kron", backend=LaplaceTorchGGN)
    other.load_state_dict(ours.state_dict())
    close(other(x), ours(x))


class _Mappings(Dataset[dict[str, Tensor]]):
    def __init__(self, batch: dict[str, Tensor]) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        return {key: value[n] for key, value in self.batch.items()}


@pytest.mark.parametrize("weights", ["all", "last_layer"])
@pytest.mark.parametrize("structure", ["diag", "full"])
def test_mappings(weights: str, structure: str) -> None:
    found = []
    for backend in (LaplaceTorchGGN, CurvlinopsGGN):
        model, batch = tokens()
        la: Any = Laplace(model, "classification", weights, structure, backend=backend)
        la.fit(DataLoader(_Mappings(batch), batch_size=4))
        found.append((la.log_marginal_likelihood(), la(batch)))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])


@pytest.mark.parametrize("structure", ["diag", "full"])
def test_reward_modelling(structure: str) -> None:
    found = []
    for backend in (LaplaceTorchGGN, CurvlinopsGGN):
        torch.manual_seed(0)
        model = Reward().double()
        x, y = torch.randn(7, 2, 3, dtype=torch.float64), torch.randint(2, (7,))
        la: Any = Laplace(model, "reward_modeling", "all", structure, backend=backend)
        la.fit(DataLoader(TensorDataset(x, y), batch_size=4))
        found.append((la.log_marginal_likelihood(), *la(x[:, 0])))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("approximation", ["nystrom", "variational"])
def test_function_space(approximation: str) -> None:
    options: dict[str, Any] = {
        "nystrom": {"subsample_size": 6, "n_eigenvalues": 3},
        "variational": {"inducing_locations": "random", "num_inducing": 3},
    }[approximation]
    found = []
    for backend in (LaplaceTorchGGN, CurvlinopsGGN):
        model, x, y = problem("mlp", "classification")
        la: Any = Laplace(
            model,
            "classification",
            "all",
            "gp",
            functional_approximation=approximation,
            backend=backend,
            **options,
        )
        torch.manual_seed(1)
        steps = {"iterations": 3} if approximation == "variational" else {}
        la.fit(DataLoader(TensorDataset(x, y), batch_size=4), **steps)
        found.append(la(x))
    close(*found)


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize(
    ("weights", "structure"), [pair for pair in STRUCTURES if pair[1] != "full"]
)
@pytest.mark.parametrize("name", ["conv2d", "groups"])
def test_without_jacobians(name: str, weights: str, structure: str, likelihood: str) -> None:
    la, x, _ = fitted(LaplaceTorchGGN, likelihood, weights, structure, name)
    fast = without_jacobians(la)
    # Any Jacobian from here on would come out of the backend.
    wanted = predictions(la, x)
    fast.backend.jacobians = fast.backend.last_layer_jacobians = None
    for ours, theirs in zip(predictions(fast, x), wanted, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("name", ["batch-norm", "transposed-1x1", "residual", "frozen", "conv1d"])
def test_without_jacobians_of_other_layers(name: str) -> None:
    la, x, _ = fitted(LaplaceTorchGGN, "classification", "all", "kron", name)
    close(without_jacobians(la)(x), la(x))
    la.prior_precision = torch.linspace(0.1, 2, la.n_layers)
    close(without_jacobians(la)(x), la(x))


def test_without_jacobians_follows_the_posterior_and_refuses() -> None:
    la, x, loader = fitted(LaplaceTorchGGN, "regression", "all", "diag", "mlp")
    fast = without_jacobians(la)
    fast.optimize_prior_precision(method="gridsearch", val_loader=loader, grid_size=3)
    assert not torch.equal(fast.prior_precision, la.prior_precision)
    la.prior_precision = fast.prior_precision
    close(fast(x)[1], la(x)[1])
    close(fast(x, joint=True)[1], la(x, joint=True)[1])
    with pytest.raises(TypeError, match="la has the backend CurvlinopsGGN"):
        without_jacobians(fitted(CurvlinopsGGN, "regression", "all", "diag", "mlp")[0])
    with pytest.raises(TypeError, match="la is a FullLaplace: a diagonal or Kronecker"):
        without_jacobians(fitted(LaplaceTorchGGN, "regression", "all", "full", "mlp")[0])
