"""Every method on four networks: no tensor elsewhere, and the host waits once a batch at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from benchmarks.architectures import Transformer, UNet, resnet, three_conv_three_dense
from lapkernels.curvature.data import contents
from tests.launches import Launches

if torch.version.cuda is None:
    pytest.skip("torch was built without CUDA", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

BATCHES = 3
# Once for the values of a call's results, and once for the fingerprint of its parameters.
A_CALL = 2


class Network:
    """A model on the device, its batches, and its likelihood."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> None:
        self.model, self.x, self.y, self.likelihood = model.eval(), x, y, likelihood
        self.inputs, self.data = [x] * BATCHES, [(x, y)] * BATCHES
        self.variance = {name: torch.ones_like(p) for name, p in model.named_parameters()}


def classes(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long)


NETWORKS: dict[str, Callable[[], Network]] = {
    "cnn": lambda: Network(
        three_conv_three_dense(), torch.randn(16, 3, 32, 32), classes(16), "categorical"
    ),
    "resnet": lambda: Network(
        resnet((16, 32), 2, 10), torch.randn(16, 3, 32, 32), classes(16), "categorical"
    ),
    "unet": lambda: Network(
        UNet((8, 16)), torch.randn(4, 1, 32, 32), torch.randn(4, 1, 32, 32), "gaussian"
    ),
    "transformer": lambda: Network(
        Transformer(100, 32, 4, 2, 10), torch.zeros(8, 20).long(), classes(8), "categorical"
    ),
}
Method = Callable[[Network], Any]
METHODS: dict[str, Method] = {
    **{
        method: lambda n, method=method: lk.diag(n.model, n.inputs, n.likelihood, method=method)
        for method in ("exact", "mc", "approx", "mixed")
    },
    "signs": lambda n: lk.diag(n.model, n.inputs, n.likelihood, method="mc", sampler="signs"),
    "empirical": lambda n: lk.diag(n.model, n.data, n.likelihood, method="empirical"),
    "kron": lambda n: lk.kron(n.model, n.inputs, n.likelihood, method="mc"),
    "kron-reduce": lambda n: lk.kron(n.model, n.inputs, n.likelihood, sharing="reduce"),
    "predictive": lambda n: lk.predictive_variance(n.model, n.inputs, n.variance),
    "jacobian": lambda n: lk.jacobian(n.model, n.inputs, outputs=torch.arange(2)),
    "blocks": lambda n: lk.blocks(
        n.model, n.inputs, n.likelihood, method="mc", by="neuron", limit=1 << 40
    ),
    "full": lambda n: lk.full(
        n.model, n.inputs, n.likelihood, method="mc", params=[*n.variance][-2:]
    ),
}
# Not here: what calls torch.autograd, whose engine needs a driver, so `propagated_variance`,
# `gradient_and_diag`, `ggn_product`, `low_rank` and `hessian`.


@pytest.fixture(autouse=True)
def without_values() -> Iterator[None]:
    """New tensors are CUDA tensors of no values, whose fingerprint is a number for all."""
    read = contents.value_samples

    def samples(tensors: Any) -> Tensor:
        read(tensors)
        with torch._C._DisableTorchDispatch():
            return torch.zeros(1, device="cpu")

    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        mock.patch.object(contents, "value_samples", samples),
    ):
        yield


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_method(network: str, method: str) -> None:
    with torch.device("cuda"):
        made = NETWORKS[network]()
    run = METHODS[method]
    with Launches("cuda"):
        run(made)  # recorded
    with Launches("cuda") as forward:
        made.model(made.x)
    with Launches("cuda") as found:
        run(made)
    launches, own = found.launched.total() / BATCHES, forward.launched.total()
    print(f"\n{network}, {method}: {launches:.0f} launches a batch, the forward pass has {own}")
    print(f"  {found.launched.most_common(8)}\n  waits: {dict(found.waits)}")
    assert found.waits.total() <= BATCHES + A_CALL, found.waits
