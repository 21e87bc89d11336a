"""Fitting: order, validation, stopping, schedules, and going on after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapkernels as lk
from lapkernels.laplace import files
from tests.autoencoder.killed import training
from tests.autoencoder.problems import dense_networks, images, shuffled, vectors

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole() -> Any:
    """The training that nothing stops."""
    return training(None)


def everything(ae: Any) -> dict[str, Tensor]:
    """All that a resumed training must have the same."""
    optimizer = {
        f"{index}{key}": torch.as_tensor(value)
        for index, entries in ae.optimizer.state_dict()["state"].items()
        for key, value in entries.items()
    }
    return {**ae.model.state_dict(), **ae.state(), **optimizer, "random": ae.generator.get_state()}


def same(a: Any, b: Any) -> None:
    first, second = everything(a), everything(b)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    assert a.history == b.history


def test_killed_process_goes_on_to_the_same_bits(whole: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "training.safetensors"
    command = [sys.executable, "-m", "tests.autoencoder.killed", str(checkpoint), "6"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL
    assert checkpoint.exists()
    same(training(checkpoint), whole)


class Stop(Exception):
    pass


@pytest.mark.parametrize("moment", range(12))
def test_stopped_at_any_step_goes_on_to_the_same_bits(
    moment: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    original = lk.LaplacianAutoencoder.step

    def failing(self: Any, x: Tensor) -> Tensor:
        nonlocal steps
        if steps == moment:
            raise Stop
        steps += 1
        return original(self, x)

    checkpoint = tmp_path / "training.safetensors"
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(lk.LaplacianAutoencoder, "step", failing)
        training(checkpoint)
    same(training(checkpoint), whole)


def test_crash_while_writing_leaves_the_old_checkpoint(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "training.safetensors"
    written = 0

    def failing(source: Any, target: Any) -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise Stop
        os.rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(files.os, "replace", failing)
        training(checkpoint)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
    same(training(checkpoint), whole)


def test_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    checkpoint = tmp_path / "training.safetensors"
    first = training(checkpoint)
    same(training(checkpoint), first)


def test_other_data_are_refused(tmp_path: Path) -> None:
    def fit(x: Tensor, stop: bool) -> None:
        ae = lk.LaplacianAutoencoder(*dense_networks())
        step = ae.step
        calls = 0

        def counted(batch: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if stop and calls == 3:
                raise Stop
            return step(batch)

        ae.step = counted  # pyright: ignore[reportAttributeAccessIssue]
        ae.fit(shuffled(x, 4), 1, checkpoint=tmp_path / "one", every=1)

    with pytest.raises(Stop):
        fit(vectors(), True)
    with pytest.raises(ValueError, match="batch 1 of epoch 0 is not the one"):
        fit(vectors() + 1, False)


def test_settings_of_a_checkpoint_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "one"
    x = [vectors()]
    lk.LaplacianAutoencoder(*dense_networks()).fit(x, 1, checkpoint=path)
    with pytest.raises(ValueError, match="settings"):
        lk.LaplacianAutoencoder(*dense_networks(), memory=0.1).fit(x, 2, checkpoint=path)
    with pytest.raises(ValueError, match="schedule"):
        lk.LaplacianAutoencoder(*dense_networks()).fit(x, 2, checkpoint=path, schedule="plateau")


@pytest.mark.parametrize("own", [True, False])
def test_order_depends_on_seed_and_epoch_only(own: bool) -> None:
    seen: list[list[Tensor]] = []

    def fit(seed: int, noise: int) -> None:
        torch.manual_seed(noise)
        loader = shuffled(vectors(), 4)
        if own:
            loader = torch.utils.data.DataLoader(
                loader.dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(noise)
            )
        ae = lk.LaplacianAutoencoder(*dense_networks(), seed=seed)
        batches: list[Tensor] = []
        ae.step = lambda x: batches.append(x) or torch.zeros(())  # type: ignore
        before = torch.manual_seed(noise).get_state()
        ae.fit(loader, 2)
        assert torch.equal(torch.get_rng_state(), before)
        seen.append(batches)

    fit(0, 5)
    fit(0, 6)
    fit(1, 5)
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))
    assert not torch.equal(seen[0][0], seen[0][3])
    assert not torch.equal(seen[0][0], seen[2][0])


def test_early_stopping_and_plateau() -> None:
    ae = lk.LaplacianAutoencoder(*dense_networks())
    losses = iter([5.0, 4.0, *[4.5] * 30])
    ae.loss = lambda x, generator: torch.tensor(next(losses))  # type: ignore
    ae.step = lambda x: torch.zeros(())  # type: ignore
    ae.fit([vectors()], 30, validation=[vectors()], schedule="plateau")
    # Eight epochs after the lowest; the rate is halved after five without a lower loss.
    assert len(ae.history) == 10
    assert [epoch.validation for epoch in ae.history[:3]] == [5.0, 4.0, 4.5]
    assert [epoch.rate for epoch in ae.history[6:]] == [1e-3, 1e-3, 5e-4, 5e-4]


def test_schedule_of_the_caller_goes_on_with_the_training(tmp_path: Path) -> None:
    def fit(epochs: int, path: Path | None) -> Any:
        ae = lk.LaplacianAutoencoder(*dense_networks())
        return ae.fit(
            [vectors()], epochs, checkpoint=path,
            schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1),
        )  # fmt: skip

    checkpoint = tmp_path / "training.safetensors"
    fit(3, checkpoint)
    ae = fit(5, checkpoint)
    assert [epoch.rate for epoch in ae.history] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5])
    same(ae, fit(5, None))


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    ae = lk.LaplacianAutoencoder(*dense_networks())
    ae.fit([vectors(), vectors()], 1)
    assert capsys.readouterr().err == ""
    ae.fit([vectors(), vectors()], 1, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_training_learns() -> None:
    x = images(40, torch.float32).flatten(1)[:, :6]
    ae = lk.LaplacianAutoencoder(
        *dense_networks(torch.float32),
        initial_precision=1e3,
        optimizer=lambda p: torch.optim.Adam(p, 1e-2),
    ).fit(shuffled(x, 10), 30)
    assert ae.history[-1].loss < 0.5 * ae.history[0].loss


def test_bad_calls_are_refused() -> None:
    ae = lk.LaplacianAutoencoder(*dense_networks())
    with pytest.raises(ValueError, match="iterator"):
        ae.fit(iter([vectors()]), 1)
    with pytest.raises(ValueError, match="every=0"):
        ae.fit([vectors()], 1, every=0)
    with pytest.raises(ValueError, match="schedule='cosine'"):
        ae.fit([vectors()], 1, schedule="cosine")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="samples=0"):
        ae.reconstruct(vectors(), 0)
