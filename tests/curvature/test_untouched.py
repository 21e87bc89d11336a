"""Nothing of the user's is changed: not by success, not by an error, not by an interrupt."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import spectral_norm

import lapkernels as lk
from tests.curvature.zoo.network import Net

METHODS = ("exact", "mc", "empirical", "approx", "mixed")
ERRORS = (None, RuntimeError, KeyboardInterrupt)


class Raises(nn.Module):
    """Raises after a number of calls, if told to."""

    error: type[BaseException] | None = None
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if Raises.error is not None:
            if Raises.calls == 0:
                raise Raises.error("from inside")
            Raises.calls -= 1
        return x


def make(method: str = "exact") -> tuple[nn.Sequential, Tensor]:
    """Modes, gradients, buffers and frozen parameters of every kind.

    A weight that is computed from others has no approximate diagonal.
    """
    computed = method not in ("approx", "mixed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 2),
            nn.BatchNorm2d(2),
            nn.ReLU(inplace=True),
            spectral_norm(nn.Conv2d(2, 2, 2)) if computed else nn.Conv2d(2, 2, 2),
            nn.Flatten(),
            Raises(),
            nn.Linear(8, 3),
            nn.Dropout(0.5),
        ).double()
        x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
        model.eval()
        # Train mode where it changes nothing.
        model[4].train()
        model[6].train()
        model[0].bias.requires_grad_(False)  # pyright: ignore[reportOptionalMemberAccess]
        model[0].weight.grad = torch.randn(2, 1, 2, 2, dtype=torch.float64)  # pyright: ignore
        model[6].weight.grad = torch.zeros(3, 8, dtype=torch.float64)
    return model, x


def hook_counts(module: nn.Module) -> dict[str, int]:
    """Every table of hooks that a module has."""
    tables = {key: value for key, value in vars(module).items() if key.endswith("_hooks")}
    return {key: len(value) for key, value in tables.items() if value is not None}


def attributes(owner: Any) -> dict[str, int]:
    return {key: id(value) for key, value in vars(owner).items()}


def contents(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.detach().contiguous().numpy().tobytes()


def tensor_state(tensor: Tensor) -> tuple[Any, ...]:
    grad = tensor.grad
    return (
        *(id(tensor), tensor.data_ptr(), tensor._version, contents(tensor), tensor.shape),
        *(tensor.stride(), tensor.requires_grad, tensor.is_leaf, attributes(tensor)),
        *(id(grad) if grad is not None else None, contents(grad)),
        *(len(tensor._backward_hooks or ()),),
    )


def global_hooks() -> int:
    """How many hooks run for every module: a probe's identity counts the registrations."""
    handle = register_module_forward_hook(lambda module, args, result: None)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    assert hooks is not None
    return len(hooks)


def settings() -> dict[str, Any]:
    backends = torch.backends
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "mkldnn": (backends.mkldnn.enabled, backends.mkldnn.deterministic),
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic),
        "precision": torch.get_float32_matmul_precision(),
        "nnpack": torch.backends.nnpack.is_available(),
        "flash": backends.cuda.flash_sdp_enabled(),
        "math": backends.cuda.math_sdp_enabled(),
        "fastpath": backends.mha.get_fastpath_enabled(),
        "random": torch.get_rng_state().numpy().tobytes(),
        "hooks": global_hooks(),
    }


def state(model: nn.Module, *data: Tensor) -> dict[str, Any]:
    """All there is to see."""
    found: dict[str, Any] = settings()
    for name, module in model.named_modules():
        found[f"module {name}"] = (attributes(module), module.training, hook_counts(module))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[f"tensor {name}"] = tensor_state(tensor)
    for index, tensor in enumerate(data):
        found[f"data {index}"] = tensor_state(tensor)
    return found


@pytest.fixture(autouse=True)
def calm() -> Any:
    torch.set_num_threads(1)
    yield
    Raises.error, Raises.calls = None, 0


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [key for key in before if before[key] != after.get(key)]


@pytest.mark.parametrize("route", ["auto", "autograd"])
@pytest.mark.parametrize("error", ERRORS, ids=["success", "error", "interrupt"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_left(method: Any, error: type[BaseException] | None, route: Any) -> None:
    model, x = make(method)
    y = torch.randn(3, 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    before = state(model, x, y)
    # The first call passes and an error comes in a later batch.
    Raises.error, Raises.calls = error, 1
    options: dict[str, Any] = {"method": method, "route": route, "generator": generator}
    if error is None:
        lk.diag(model, [(x, y)] * 3, **options)
    else:
        with pytest.raises(error, match="from inside"):
            lk.diag(model, [(x, y)] * 3, **options)
    Raises.error = None
    assert not differences(before, state(model, x, y))


@pytest.mark.parametrize("error", ERRORS, ids=["success", "error", "interrupt"])
def test_nothing_is_left_where_samples_run_one_by_one(error: type[BaseException] | None) -> None:
    model, x = make()
    net = Net(lambda net, x: torch.cat([net.body(row[None]) for row in x]), body=model).eval()
    before = state(net, x)
    # Twice the batch is recorded, once it is run, and then comes the first sample.
    Raises.error, Raises.calls = error, 10
    if error is None:
        with pytest.warns(RuntimeWarning, match="one at a time"):
            lk.diag(net, x)
    else:
        with pytest.raises(error, match="from inside"), pytest.warns(RuntimeWarning):
            lk.diag(net, [x, x])
    Raises.error = None
    assert not differences(before, state(net, x))


def test_a_refusal_leaves_nothing() -> None:
    model, x = make()
    before = state(model, x)
    with pytest.raises(lk.Refused):
        lk.diag(model.train(), x)
    model.eval()
    model[4].train()
    model[6].train()
    with pytest.raises(ValueError):
        lk.diag(model, (x, torch.zeros(3, 7)))
    assert not differences(before, state(model, x))


def test_hooks_of_the_user_run_and_stay() -> None:
    model, x = make()
    seen: list[str] = []
    handles = [
        model[0].register_forward_hook(lambda *_: seen.append("forward")),
        model[6].register_forward_pre_hook(lambda *_: seen.append("before")),
        register_module_forward_hook(lambda module, args, out: seen.append("global")),
    ]
    before = state(model, x)
    lk.diag(model, x)
    assert {"forward", "before", "global"} <= set(seen)
    assert not differences(before, state(model, x))
    for handle in handles:
        handle.remove()


def test_a_gradient_of_the_users_goes_on() -> None:
    """A graph made before is still good after."""
    model, x = make()
    x.requires_grad_()
    loss = model(x).square().sum()
    (expected,) = torch.autograd.grad(loss, x, retain_graph=True)
    before = state(model, x)
    lk.diag(model, x)
    assert not differences(before, state(model, x))
    loss.backward()
    assert x.grad is not None and torch.equal(x.grad, expected)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_with_gradients_are_left_alone(method: Any) -> None:
    model, x = make(method)
    x = x.requires_grad_()
    x.grad = torch.ones_like(x)
    y = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    before = state(model, x, y)
    generator = torch.Generator()
    found = lk.diag(model, (x, y), method=method, generator=generator)
    assert not differences(before, state(model, x, y))
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("method", METHODS)
def test_gradients_may_be_disabled(method: Any) -> None:
    model, x = make(method)
    y = torch.randn(3, 3, dtype=torch.float64)
    generator = torch.Generator()
    found = lk.diag(model, (x, y), method=method, generator=generator.manual_seed(0))
    with torch.no_grad():
        before = state(model, x, y)
        again = lk.diag(model, (x, y), method=method, generator=generator.manual_seed(0))
        assert not differences(before, state(model, x, y))
    assert torch.equal(found.vector(), again.vector())


def test_generators_move_only_when_they_are_used() -> None:
    """The one that is given, and torch's own without one."""
    model, x = make("approx")
    data = x, torch.randn(3, 3, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        for generator in (torch.Generator().manual_seed(0), None):
            state = torch.get_rng_state if generator is None else generator.get_state
            start = state()
            for method in ("exact", "empirical", "approx", "mixed"):
                lk.diag(model, data, method=method, generator=generator)
                assert torch.equal(state(), start)
            lk.diag(model, x, method="mc", generator=generator)
            assert not torch.equal(state(), start)


def test_results_are_the_callers_own() -> None:
    """They share no memory with parameters or with each other."""
    model, x = make()
    before = copy.deepcopy(model.state_dict())
    first = lk.diag(model, x)
    kept = {name: value.clone() for name, value in first.items()}
    second = lk.diag(model, x)
    for value in second.values():
        value.fill_(7.0)
    assert all(torch.equal(first[name], value) for name, value in kept.items())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_an_optimizer_goes_on() -> None:
    """The parameters are still the very tensors that it moves."""
    model, x = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    lk.diag(model, x)
    before = lk.diag(model, x).vector()
    model(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(lk.diag(model, x).vector(), before)


def test_recurrent_layers_run_without_cudnn() -> None:
    """cuDNN's layers in eval mode have no backward pass, and hide their gates."""
    model = nn.LSTM(3, 4, batch_first=True).eval()
    seen: list[bool] = []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.enabled))
    x = torch.randn(2, 5, 3)
    before = settings()
    lk.diag(model, x, "gaussian", output=lambda out: out[0])
    vector = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    lk.ggn_product(model, x, vector, output=lambda out: out[0])
    assert seen and not any(seen)
    assert settings() == before
