"""Fingerprint of all values of a model: a posterior belongs to the weights it was fitted at."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from lapkernels.curvature.errors import Refused

# Larger tensors are hashed by sums over columns of so many values.
ROWS = 4096


@torch.no_grad()
def fingerprint_of(model: nn.Module) -> dict[str, str]:
    """A hash of each parameter and each buffer that ``state_dict`` saves."""
    tensors = _saved(model)
    sums = {name: _sums(tensor) for name, tensor in tensors.items()}
    device = next(iter(sums.values())).device
    # In one transfer, as each waits for the device.
    values = torch.cat([part.to(device) for part in sums.values()]).cpu().numpy()
    found, start = {}, 0
    for name, part in sums.items():
        kind = f"{tuple(tensors[name].shape)}{tensors[name].dtype}"
        digest = hashlib.sha256(kind.encode())
        digest.update(values[start : start + len(part)].data)
        found[name] = digest.hexdigest()[:16]
        start += len(part)
    return found


def check_weights(model: nn.Module, fitted: Mapping[str, str]) -> None:
    """Raise unless a model's values are those of the fingerprint of a fit."""
    found = fingerprint_of(model)
    changed = [k for k in {**fitted, **found} if fitted.get(k) != found.get(k)]
    if changed:
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Refused(
            f"{changed[0]}{others} of the model changed after the fit, to which the curvature "
            "belongs: fit again, or load the weights of the fit into the model"
        )


def _saved(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each once."""
    found, seen = {}, set[int]()
    for path, module in model.named_modules():
        lost = module._non_persistent_buffers_set
        buffers = {key: value for key, value in module._buffers.items() if key not in lost}
        for key, tensor in {**module._parameters, **buffers}.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{path}.{key}" if path else key] = tensor
    return found


def _sums(tensor: Tensor) -> Tensor:
    """All values as integers; those of large tensors as sums weighted by position.

    The weights are odd and the sums wrap around, so a change of one value changes its sum.
    """
    if tensor.layout is not torch.strided:
        coo = tensor.to_sparse_coo().coalesce()
        return torch.cat([_sums(coo.indices()), _sums(coo.values())])
    values = _integers(tensor.detach().reshape(-1))
    columns = len(values) // ROWS
    if columns < 2:
        return values
    first, rest = values[: ROWS * columns].view(ROWS, columns), values[ROWS * columns :]
    weights = _odd_numbers(values.device)
    if values.is_cpu:
        return torch.cat([weights @ first, rest])
    # GPUs have no integer matrix product.
    return torch.cat([(weights.unsqueeze(1) * first).sum(0).to(torch.int32), rest])


@lru_cache(8)
def _odd_numbers(device: torch.device) -> Tensor:
    """Distinct odd weights [ROWS] that differ in all bits."""
    return torch.arange(1, 2 * ROWS, 2, dtype=torch.int32, device=device) * 0x1E3779B9


def _integers(flat: Tensor) -> Tensor:
    """The bits of values, as int32."""
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.element_size()
    if size >= 4:
        return flat.view(torch.int32)
    return flat.view(torch.int16 if size == 2 else torch.int8).to(torch.int32)
