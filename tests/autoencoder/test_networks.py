"""Networks run in eval mode and on copies; calls that fail change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.autoencoder import PlainAutoencoder, StochasticAutoencoder
from lapkernels.autoencoder.imputation import impute
from tests.autoencoder.problems import dense_networks, vectors
from tests.autoencoder.test_baselines import EVERY

USES: dict[str, Callable[[Any, Tensor], Any]] = {
    "step": lambda ae, x: ae.step(x),
    "fit": lambda ae, x: ae.fit([x], 1).loss(x, ae.generator),
    "loss": lambda ae, x: ae.loss(x, ae.generator),
    "describe": lambda ae, x: ae.describe(x, 3).log_likelihood,
    "latent": lambda ae, x: ae.latent(x, 3).mean,
    "decode": lambda ae, x: ae.decode(x[:, :2].clone(), 3).mean,
    "impute": lambda ae, x: impute(ae, x, x > 0.5),
}
LAPLACIAN: dict[str, Callable[[Any, Tensor], Any]] = {
    "latent_linearised": lambda ae, x: ae.latent_linearised(x).variance,
    "reconstruct_linearised": lambda ae, x: ae.reconstruct_linearised(x).mean,
    "fit_post_hoc": lambda ae, x: ae.fit_post_hoc([x]).log_evidence(),
}


def parts(ae: StochasticAutoencoder) -> list[nn.Module]:
    """Encoders and decoders that are called."""
    return [m for member in getattr(ae, "members", [ae]) for m in (member.encoder, member.decoder)]


@pytest.mark.parametrize("name", EVERY)
def test_inputs_are_left_as_they_were(name: str) -> None:
    """Networks that write to their inputs do what others do."""
    found: list[dict[str, Tensor]] = []
    for in_place in (False, True):
        ae: StochasticAutoencoder = EVERY[name]()

        def shift(module: nn.Module, args: Any, in_place: bool = in_place) -> Any:
            return (args[0].mul_(2) if in_place else args[0] * 2,)

        for part in parts(ae):
            part.register_forward_pre_hook(shift)
        x, values = vectors(4), {}
        for use, run in (USES | (LAPLACIAN if name == "laplacian" else {})).items():
            values[use] = torch.as_tensor(run(ae, x)).detach()
            assert torch.equal(x, vectors(4)), use
        found.append(values)
    for use, value in found[0].items():
        torch.testing.assert_close(found[1][use], value)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.5), nn.BatchNorm1d(6)], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_training_mode_is_refused(name: str, layer: nn.Module) -> None:
    ae: StochasticAutoencoder = EVERY[name]()
    for encoder in parts(ae)[::2]:
        first: Any = getattr(encoder, "first", encoder)
        first[0] = nn.Sequential(layer.double(), first[0])
    state, random = layer.state_dict(), ae.generator.get_state()
    before = {key: value.clone() for key, value in state.items()}
    ae.model.train()
    for use in ("describe", "latent", "impute"):
        with pytest.raises(lk.Refused, match=r"call model.eval\(\) first"):
            USES[use](ae, vectors(4))
        if use != "impute":
            assert torch.equal(ae.generator.get_state(), random)
    assert all(torch.equal(value, before[key]) for key, value in state.items())
    layer.eval()
    USES["describe"](ae, vectors(4))


@pytest.mark.parametrize("name", EVERY)
def test_a_step_that_fails_changes_nothing(name: str) -> None:
    ae: StochasticAutoencoder = EVERY[name]()
    before = {k: v.clone() for k, v in (ae.model.state_dict() | ae.state()).items()}
    random = ae.generator.get_state()
    wrong = torch.rand(4, 7, dtype=torch.float64)
    for call in (ae.step, ae.describe, ae.decode):
        with pytest.raises((RuntimeError, ValueError)):
            call(wrong)
        assert torch.equal(ae.generator.get_state(), random)
    for key, value in (ae.model.state_dict() | ae.state()).items():
        assert torch.equal(value, before[key])


def test_a_post_hoc_fit_that_fails_leaves_the_precision() -> None:
    ae = lk.LaplacianAutoencoder(*dense_networks())
    precision = ae.precision
    with pytest.raises(ValueError, match="finite values are needed"):
        ae.fit_post_hoc([vectors(4), vectors(4) * torch.inf])
    assert ae.precision is precision


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Any) -> None:
    pytest.importorskip("safetensors")
    x = [vectors()]
    PlainAutoencoder(*dense_networks()).fit(x, 1, checkpoint=tmp_path / "one")
    ae = PlainAutoencoder(*dense_networks())
    ae.fit(x, 2)
    history, rate = ae.history, ae.optimizer.param_groups[0]["lr"]

    def warm_up(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1)

    with pytest.raises(ValueError, match="had another schedule"):
        ae.fit(x, 2, checkpoint=tmp_path / "one", schedule=warm_up)
    assert ae.history is history and len(history) == 2
    assert ae.optimizer.param_groups[0]["lr"] == rate
