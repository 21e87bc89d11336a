"""Files that were changed by chance or by hand: read as they were written, or refused.

Every failure is a ValueError that names the file, whatever byte, key or tensor was changed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.laplace import files
from tests.laplace import dense
from tests.laplace.problems import Problem, classifier

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")


def laplace(structure: str, options: dict[str, Any]) -> Callable[[Problem, Path], None]:
    def save(problem: Problem, path: Path) -> None:
        la = lk.Laplace(problem.model, problem.likelihood, structure, prior="layer", **options)
        la.fit(problem.batches).save(path)

    return save


def l2m(problem: Problem, path: Path) -> None:
    optimizer = torch.optim.Adam(problem.model.parameters(), lr=0.0)
    for x, y in problem.batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(problem.model(x), y).backward()
        optimizer.step()
    lk.L2M.from_optimizer(
        optimizer, problem.model, "categorical", data_size=len(problem.x), batch_size=4
    ).save(path)


def variational(problem: Problem, path: Path) -> None:
    vl = lk.VariationalLaplace(problem.model, "categorical", len(problem.x))
    vl.save(path)  # pyright: ignore[reportCallIssue]


KINDS = {
    **{name: laplace(structure, options) for name, (structure, options) in dense.CASES.items()},  # pyright: ignore[reportArgumentType]
    "subnetwork": laplace("subnetwork", {"size": 9}),
    "l2m": l2m,
    **({"variational": variational} if hasattr(lk.VariationalLaplace, "save") else {}),
}


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, nn.Module]:
    problem = classifier()
    path = tmp_path / "posterior.safetensors"
    KINDS[request.param](problem, path)
    return path, problem.model


def reads_or_refuses(path: Path, model: nn.Module, wanted: dict[str, Tensor]) -> bool:
    """Whether a changed file was refused; if not, it has to be what it was."""
    try:
        found = lk.Laplace.load(path, model).posterior.variance()
    except ValueError as error:
        assert str(error)
        return True
    for name, value in wanted.items():
        assert torch.equal(found[name], value)
    return False


def test_bytes(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    whole = path.read_bytes()
    wanted = lk.Laplace.load(path, model).posterior.variance()
    chance = random.Random(0)
    refused = 0
    for _ in range(40):
        changed = bytearray(whole)
        # Half of them in the header, which is a small part of large files.
        place = chance.randrange(len(whole) if chance.random() < 0.5 else min(2000, len(whole)))
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        refused += reads_or_refuses(path, model, wanted)
    # A few are in the padding of the header.
    assert refused >= 36
    for length in (0, 7, 8, 100, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(8))):
        path.write_bytes(whole[:length])
        assert reads_or_refuses(path, model, wanted)
    path.write_bytes(whole + b"more")
    assert reads_or_refuses(path, model, wanted)
    path.write_bytes(bytes(chance.randrange(256) for _ in range(5000)))
    assert reads_or_refuses(path, model, wanted)


STRANGE: tuple[Any, ...] = (None, -1, 1e400, "nonsense", [], {}, [[1]], {"a": 1}, True)


def strange(data: Any) -> Iterator[Any]:
    """Copies of JSON with one entry left out or replaced, two levels deep."""
    for key in data:
        less = copy.deepcopy(data)
        del less[key]
        yield less
        for value in STRANGE:
            yield {**copy.deepcopy(data), key: value}
        if isinstance(data[key], dict) and data[key]:
            inner = next(iter(data[key]))
            for value in STRANGE:
                changed = copy.deepcopy(data)
                changed[key][inner] = value
                yield changed


def test_metadata(saved: tuple[Path, nn.Module]) -> None:
    """Written by somebody who knows the format, digest included."""
    path, model = saved
    stored = files.read(path, "posterior")
    wanted = lk.Laplace.load(path, model).posterior.variance()
    for data in strange(stored.data):
        files.write(path, files.Stored("posterior", stored.tensors, data))
        try:
            found = lk.Laplace.load(path, model)
        except ValueError:
            continue
        # What has no part in the posterior may be anything: seed, counts, the noise.
        assert list(found.posterior.variance()) == list(wanted)


def test_tensors(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    stored = files.read(path, "posterior")
    for name, tensor in stored.tensors.items():
        if name.startswith(("prior:", "likelihood:")):
            continue
        others = [tensor.flatten()[:-1], tensor.new_zeros(1, 1, 1, 1, 2), torch.zeros(0)]
        if tensor.is_floating_point():
            others.append(torch.full_like(tensor, torch.nan))
        else:
            others += [tensor - 100, tensor.flatten()[:1].repeat(tensor.numel()).view_as(tensor)]
        for other in (None, *others):
            if other is not None and torch.equal(other.float(), tensor.float()):
                continue
            tensors = {**stored.tensors, name: other}
            if other is None:
                del tensors[name]
            files.write(path, files.Stored("posterior", tensors, stored.data))  # pyright: ignore[reportArgumentType]
            with pytest.raises(ValueError, match=r"posterior\.safetensors"):
                lk.Laplace.load(path, model)


def test_foreign_files(tmp_path: Path) -> None:
    problem = classifier()
    path = tmp_path / "foreign"
    tensors = {name: p.detach() for name, p in problem.model.named_parameters()}
    headers: tuple[Any, ...] = (None, "", "null", "[]", "{", "[" * 100_000, '{"format": 3}', "1")
    for header in headers:
        metadata = None if header is None else {"lapkernels": header}
        safetensors.save_file(tensors, path, metadata)
        with pytest.raises(ValueError, match="foreign"):
            lk.Laplace.load(path, problem.model)
    torch.save(tensors, path)
    with pytest.raises(ValueError, match="no safetensors file"):
        lk.Laplace.load(path, problem.model)
    files.write(path, files.Stored("recipe", tensors, {}))
    with pytest.raises(ValueError, match="holds a recipe"):
        lk.Laplace.load(path, problem.model)
    with pytest.raises(FileNotFoundError):
        lk.Laplace.load(tmp_path / "absent", problem.model)


def test_likelihoods_are_the_only_classes(tmp_path: Path) -> None:
    problem = classifier()
    path = tmp_path / "posterior"
    lk.Laplace(problem.model, "categorical").fit(problem.batches).save(path)
    stored = files.read(path, "posterior")
    for name in ("resolve", "LossFunction", "Likelihood", "__builtins__"):
        stored.data["likelihood"] = {"class": name, "settings": {"likelihood": "gaussian"}}
        files.write(path, stored)
        with pytest.raises(ValueError, match="likelihood"):
            lk.Laplace.load(path, problem.model)


def test_checkpoints(tmp_path: Path) -> None:
    problem = classifier()
    path = tmp_path / "checkpoint"
    fit = lambda: lk.Laplace(problem.model, "categorical").fit(problem.batches, checkpoint=path)  # noqa: E731
    wanted = fit().posterior.variance()
    whole, stored = path.read_bytes(), files.read(path, "checkpoint")
    chance = random.Random(0)
    for _ in range(10):
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            found = fit().posterior.variance()
        except ValueError:
            continue
        assert all(torch.equal(value, found[name]) for name, value in wanted.items())
    for data in strange(stored.data):
        files.write(path, files.Stored("checkpoint", stored.tensors, data))
        try:
            fit()
        except ValueError:
            continue


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = classifier()
    path = tmp_path / "posterior"
    la = lk.Laplace(problem.model, "categorical").fit(problem.batches)
    la.save(path)
    whole = path.read_bytes()

    def full(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        la.set_prior(3.0).save(path)
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]
