"""Files of posteriors: tensors in safetensors, everything else as JSON in its header. No pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapkernels.curvature.state import Summary
from lapkernels.laplace.structures import Packed

# Raised when older files can no longer be read as they are.
FORMAT = 1
KEY = "lapkernels"


@dataclass(frozen=True)
class Stored:
    """What a file holds; ``kind`` says what it is of."""

    kind: str
    tensors: dict[str, Tensor]
    data: dict[str, Any]


def write(path: Path, stored: Stored) -> None:
    """Write a file so that a reader, or a crash, finds the old one or the new one whole."""
    # Copies, as the format refuses tensors that share memory.
    tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in stored.tensors.items()
    }
    contents = {name: _kind(tensor) for name, tensor in tensors.items()}
    own = {"format": FORMAT, "kind": stored.kind, "contents": contents}
    header = json.dumps({**own, **stored.data})
    handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_safetensors().save(tensors, metadata={KEY: header}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path, kind: str) -> Stored:
    """Read a file of this kind, and check that it is whole."""
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file, or damaged: {error}") from error
    if header is None:
        raise ValueError(f"{path} holds tensors, but was not written by lapkernels")
    data = json.loads(header)
    found = data.pop("format"), data.pop("kind")
    if found[0] != FORMAT:
        raise ValueError(
            f"{path} has format {found[0]}, this version of lapkernels reads {FORMAT}: fit again, "
            "or install the version that wrote it"
        )
    if found[1] != kind:
        raise ValueError(f"{path} holds a {found[1]}, not a {kind}")
    contents = data.pop("contents")
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
    """Packed states under a prefix each."""
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


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("files need safetensors: pip install lapkernels[files]") from error
    return safetensors.torch
