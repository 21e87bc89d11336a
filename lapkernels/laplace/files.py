"""Files of posteriors: tensors in safetensors, everything else as JSON in its header. No pickle.

A file also holds a digest of both, so that a damaged one is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature.results.summary import Summary
from lapkernels.laplace.structures import Packed

# To be raised when older files can no longer be read.
FORMAT = 4
KEY = "lapkernels"
DIGEST = "sha256"


@dataclass(frozen=True)
class Stored:
    """The contents of a file; ``kind`` says what was saved."""

    kind: str
    tensors: dict[str, Tensor]
    data: dict[str, Any]


def write(path: Path, stored: Stored) -> None:
    """Write a file atomically: a reader, or a crash, finds the whole old one or the whole new one.

    Of a symbolic link the target is replaced.
    """
    path = _regular(path)
    # Copies: safetensors refuses tensors that share memory.
    tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in stored.tensors.items()
    }
    contents = {name: _kind(tensor) for name, tensor in tensors.items()}
    own = {"format": FORMAT, "kind": stored.kind, "contents": contents}
    header = json.dumps({**own, **stored.data})
    metadata = {KEY: header, DIGEST: _digest(header, tensors)}
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(_safetensors().save(tensors, metadata=metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path, kind: str) -> Stored:
    """Read a file of this kind, and check that it is whole."""
    _safetensors()
    _regular(path)
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is no safetensors file, or damaged: {error}") from error
    if KEY not in metadata:
        raise ValueError(f"{path} holds tensors, but was not written by lapkernels")
    header = metadata[KEY]
    data = _parsed(path, header)
    found = data.pop("format", None), data.pop("kind", None)
    if found[0] != FORMAT:
        raise ValueError(
            f"{path} has format {found[0]}, this version of lapkernels reads {FORMAT}: fit again, "
            "or install the version that wrote it"
        )
    if metadata.get(DIGEST) != _digest(header, tensors):
        raise ValueError(f"{path} is damaged: it does not hold what was written to it")
    if found[1] != kind:
        raise ValueError(f"{path} holds a {found[1]}, not a {kind}")
    contents = data.pop("contents", None)
    if not isinstance(contents, dict):
        raise ValueError(f"{path} does not say what it holds: it was not written by lapkernels")
    for name in {*contents, *tensors}:
        wanted = contents.get(name, "absent")
        kind_found = _kind(tensors[name]) if name in tensors else "absent"
        if wanted != kind_found:
            raise ValueError(f"{path}: {name} is {kind_found}, but should be {wanted}")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{path}: {name} has entries that are not finite")
    return Stored(kind, tensors, data)


def flatten(parts: Mapping[str, Packed]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Packed states, each under its prefix."""
    tensors: dict[str, Tensor] = {}
    data: dict[str, Any] = {}
    for prefix, packed in parts.items():
        tensors.update({f"{prefix}:{name}": value for name, value in packed.tensors.items()})
        data[prefix] = {"data": packed.data, "summary": asdict(packed.summary)}
    return tensors, data


def unflatten(prefix: str, stored: Stored, device: torch.device) -> Packed:
    """The packed state under a prefix."""
    own = f"{prefix}:"
    tensors = {
        name.removeprefix(own): value.to(device)
        for name, value in stored.tensors.items()
        if name.startswith(own)
    }
    entry = stored.data[prefix]
    return Packed(tensors, entry["data"], Summary(**entry["summary"]))


def _regular(path: Path) -> Path:
    """The target of a link, which is a file or does not exist yet."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is a directory or a device: a file is needed")
    return target


def _parsed(path: Path, header: str) -> dict[str, Any]:
    try:
        data = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is no JSON ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} is damaged: its header holds a {type(data).__name__}")
    return data


def _digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {_kind(tensor)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("files need safetensors: pip install lapkernels[files]") from error
    return safetensors.torch
