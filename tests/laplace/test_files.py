"""Save and load, merge, and fits that are killed and go on."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapkernels as lk
from lapkernels.laplace.files import Stored, write
from tests.autoencoder.problems import dense_networks, vectors
from tests.laplace import dense
from tests.laplace.problems import PROBLEMS, Problem, classifier, regressor

pytest.importorskip("safetensors", reason="safetensors is not installed")

CASES = {
    **dense.CASES,
    "kfac": ("kron", {"method": "mc"}),
    "subnetwork": ("subnetwork", {"size": 9}),
}


def laplace(problem: Problem, case: str, prior: Any = 0.7) -> lk.Laplace:
    structure, options = CASES[case]
    return lk.Laplace(problem.model, problem.likelihood, structure, prior=prior, **options)  # pyright: ignore[reportArgumentType]


def same(a: lk.Laplace, b: lk.Laplace, x: Tensor) -> None:
    """Bitwise."""
    assert torch.equal(a.log_evidence(), b.log_evidence())
    assert torch.equal(a.predict(x).variance, b.predict(x).variance)
    for name, value in a.posterior.variance().items():
        assert torch.equal(value, b.posterior.variance()[name])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("make", PROBLEMS)
def test_save_and_load(case: str, make: str, tmp_path: Path) -> None:
    problem = PROBLEMS[make]()
    la = laplace(problem, case, "layer").fit(problem.batches).tune(by="evidence", steps=5)
    la.temperature = 1.3
    la.save(tmp_path / "posterior.safetensors")
    loaded = lk.Laplace.load(tmp_path / "posterior.safetensors", copy.deepcopy(problem.model))
    same(la, loaded, problem.new)
    assert loaded.temperature == 1.3 and repr(loaded.likelihood) == repr(la.likelihood)


@pytest.mark.parametrize("case", [case for case in CASES if case != "low_rank"])
def test_killed_fit_goes_on(case: str, tmp_path: Path) -> None:
    problem = regressor()
    whole = laplace(problem, case).fit(problem.batches)
    path = tmp_path / "checkpoint"
    # Every run gets one batch further, the second of two sweeps included.
    for alive in [1, 2, 3, 4, 2] if case in ("ekfac", "subnetwork") else [1, 2]:
        with pytest.raises(KeyboardInterrupt):
            laplace(problem, case).fit(Killed(problem.batches, alive), checkpoint=path)
        assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
    resumed = laplace(problem, case).fit(problem.batches, checkpoint=path)
    same(whole, resumed, problem.new)
    # A complete fit only reads its file.
    same(whole, laplace(problem, case).fit(problem.batches, checkpoint=path), problem.new)


class Killed:
    """Batches of one or two sweeps, of which only ``alive`` are handed out."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]], alive: int) -> None:
        self.batches, self.alive = batches, alive

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            if self.alive == 0:
                raise KeyboardInterrupt
            self.alive -= 1
            yield batch


def test_checkpoint_of_another_fit(tmp_path: Path) -> None:
    problem = regressor()
    path = tmp_path / "checkpoint"
    laplace(problem, "diag").fit(problem.batches, checkpoint=path)
    with pytest.raises(ValueError, match="belongs to another fit, its structure"):
        laplace(problem, "full").fit(problem.batches, checkpoint=path)
    with pytest.raises(ValueError, match="same data in the same order"):
        laplace(problem, "diag").fit(problem.batches[::-1], checkpoint=path)
    with pytest.raises(ValueError, match="no checkpoint"):
        laplace(problem, "low_rank").fit(problem.batches, checkpoint=path)
    with torch.no_grad():
        next(problem.model.parameters()).add_(1)
    with pytest.raises(ValueError, match="belongs to another fit, its parameters"):
        laplace(problem, "diag").fit(problem.batches, checkpoint=path)


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("low_rank", "ekfac", "kfac")])
def test_merge(case: str) -> None:
    problem = classifier()
    structure, options = CASES[case]
    if case == "subnetwork":
        options = {"entries": {"6.weight": [0, 5, 7]}}
    parts = [
        lk.Laplace(problem.model, "categorical", structure, **options).fit([batch])  # pyright: ignore[reportArgumentType]
        for batch in problem.batches
    ]
    whole = lk.Laplace(problem.model, "categorical", structure, **options).fit(problem.batches)  # pyright: ignore[reportArgumentType]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    same(whole, merged, problem.new)


def test_merge_refuses_other_parameters() -> None:
    problem = classifier()
    la = laplace(problem, "diag").fit(problem.batches)
    other = copy.deepcopy(problem.model)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(ValueError, match="different models"):
        la.merge(lk.Laplace(other, "categorical").fit(problem.batches))


def test_load_refuses(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    problem = classifier()
    path = tmp_path / "posterior"
    la = laplace(problem, "diag").fit(problem.batches)
    la.save(path)
    changed = copy.deepcopy(problem.model)
    with torch.no_grad():
        next(changed.parameters()).add_(1)
    with pytest.raises(ValueError, match="other parameter values"):
        lk.Laplace.load(path, changed)
    with pytest.raises(ValueError, match="in the model it is missing"):
        lk.Laplace.load(path, torch.nn.Linear(2, 2))
    with safe_open(path, framework="pt") as file:
        header = file.metadata()["lapkernels"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {"lapkernels": json.dumps({**json.loads(header), "format": 99})})
    with pytest.raises(ValueError, match="has format 99"):
        lk.Laplace.load(path, problem.model)
    broken = {name: tensor.clone() for name, tensor in tensors.items()}
    broken["state:6.weight"][0, 0] = torch.nan
    save_file(broken, path, {"lapkernels": header})
    with pytest.raises(ValueError, match="does not hold what was written"):
        lk.Laplace.load(path, problem.model)
    data = {k: v for k, v in json.loads(header).items() if k not in ("format", "kind", "contents")}
    write(path, Stored("posterior", broken, data))
    with pytest.raises(ValueError, match="6.weight has entries that are not finite"):
        lk.Laplace.load(path, problem.model)
    broken["state:6.weight"] = torch.ones(2, 2)
    write(path, Stored("posterior", broken, data))
    with pytest.raises(ValueError, match="6.weight"):
        lk.Laplace.load(path, problem.model)
    save_file(tensors, path)
    with pytest.raises(ValueError, match="not written by lapkernels"):
        lk.Laplace.load(path, problem.model)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no safetensors file"):
        lk.Laplace.load(path, problem.model)


def test_only_files_are_written(tmp_path: Path) -> None:
    """A pipe stays one, for every writer; a link stays one too, and its file is written."""
    problem = regressor()
    la = lk.Laplace(problem.model).fit(problem.batches)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ae = lk.LaplacianAutoencoder(*dense_networks())
    writers: list[Callable[[Path], Any]] = [
        la.save,
        ae.save,
        lambda path: la.fit(problem.batches, checkpoint=path),
        lambda path: ae.fit([vectors()], 1, checkpoint=path),
    ]
    for write_to in writers:
        for path in (pipe, tmp_path):
            with pytest.raises(ValueError, match="is a directory or a device"):
                write_to(path)
        assert pipe.is_fifo()
    with pytest.raises(ValueError, match="is a directory or a device"):
        lk.Laplace.load(pipe, problem.model)
    assert os.listdir(tmp_path) == ["pipe"]
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to(target)
    for _ in range(2):
        la.save(link)
        assert link.is_symlink() and target.is_file() and len(os.listdir(target.parent)) == 1
        same(la, lk.Laplace.load(link, problem.model), problem.new)


def test_own_loss_needs_the_likelihood(tmp_path: Path) -> None:
    problem = regressor()

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return (f - y).square().sum()

    la = lk.Laplace(problem.model, loss, "full").fit(problem.batches)
    la.save(tmp_path / "posterior")
    with pytest.raises(ValueError, match="give likelihood="):
        lk.Laplace.load(tmp_path / "posterior", problem.model)
    loaded = lk.Laplace.load(tmp_path / "posterior", problem.model, likelihood=loss)
    same(la, loaded, problem.new)
