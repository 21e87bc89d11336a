"""Which parameters, which batches, which output: what users say, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lapkernels.curvature.errors import NoBatch, Refused

Parameters = str | re.Pattern[str] | Iterable[str] | Callable[[str, nn.Parameter], bool] | None
Output = Callable[[Any], Tensor] | str | int | None


@dataclass(frozen=True)
class Batch:
    """Inputs of one call of the model, and labels if there are any."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any

    @property
    def count(self) -> int:
        """Number of samples."""
        return next(iter(tensors_in((self.args, self.kwargs)))).shape[0]

    @property
    def inputs(self) -> Any:
        """The inputs as users give them."""
        return self.kwargs if self.kwargs else self.args

    def sample(self, n: int) -> Batch:
        """A batch of sample n alone."""
        return self.part(n, 1)

    def halves(self) -> list[Batch]:
        """Both halves, or what there is of them."""
        return list(self.parts(min(2, self.count)))

    def parts(self, count: int) -> Iterator[Batch]:
        """So many batches of about equal size."""
        for part in range(count):
            first, last = (self.count * n // count for n in (part, part + 1))
            yield self.part(first, last - first)

    def part(self, start: int, count: int) -> Batch:
        """A batch of some samples."""
        parts = self.args, self.kwargs, self.target
        args, kwargs, target = (_narrow(part, start, count) for part in parts)
        return Batch(args, kwargs, target)


def plain(model: nn.Module) -> nn.Module:
    """The model itself, out of what trains it in several processes or compiles it."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: an nn.Module is needed")
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
            continue
        # The only child of what torch.compile returns.
        children = dict(model.named_children())
        if list(children) != ["_orig_mod"]:
            return model
        model = children["_orig_mod"]


def parameters_of(model: nn.Module, params: Parameters) -> dict[str, nn.Parameter]:
    """The chosen parameters by name, in the model's order.

    ``params`` is None for all that require a gradient, a name, a list of names (a module's name
    stands for all its parameters), a compiled pattern, or a predicate of name and parameter.
    """
    every = dict(model.named_parameters())
    for name, parameter in every.items():
        if type(parameter.data) is not Tensor:
            raise Refused(
                f"{name} is a {type(parameter.data).__name__}, of which a process may hold a part "
                "only: copy the whole values into a plain model, those of fully_shard from "
                "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"
            )
        if parameter.is_inference():
            raise Refused(
                f"{name} was made inside torch.inference_mode(), where no gradient can be "
                "followed: make the model outside of it"
            )
    if params is None:
        chosen = {name: p for name, p in every.items() if p.requires_grad}
    elif isinstance(params, re.Pattern):
        chosen = {name: p for name, p in every.items() if params.search(name)}
    elif callable(params):
        chosen = {name: p for name, p in every.items() if params(name, p)}
    else:
        chosen = _named(model, every, [params] if isinstance(params, str) else list(params))
    if not chosen:
        raise ValueError("params chooses no parameter of the model")
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise TypeError(f"{name} has dtype {parameter.dtype}: real parameters are needed")
        if torch.finfo(parameter.dtype).bits < 32:
            raise Refused(
                f"{name} has dtype {parameter.dtype}, in which sums over samples are rounded away: "
                "give the model and its inputs in float32, model.float()"
            )
        if parameter.is_meta:
            raise ValueError(f"{name} is on the meta device: it has no values")
    return chosen


def _named(
    model: nn.Module, every: dict[str, nn.Parameter], names: list[str]
) -> dict[str, nn.Parameter]:
    """Parameters by their own name or a module's; tied ones have several."""
    aliases = dict(model.named_parameters(remove_duplicate=False))
    picked: set[int] = set()
    for given in names:
        inside = (p for name, p in aliases.items() if name.startswith(given + "."))
        found = [aliases[given]] if given in aliases else list(inside)
        if not found:
            raise ValueError(f"params: the model has no parameter or module {given!r}")
        picked.update(id(p) for p in found)
    return {name: p for name, p in every.items() if id(p) in picked}


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


def check_differentiation() -> None:
    """Raise where torch keeps nothing of what a derivative needs."""
    if torch.is_inference_mode_enabled():
        raise Refused("inside torch.inference_mode() no gradient can be followed; use no_grad()")


def check_precision(model: nn.Module) -> None:
    """Raise where the model's ops would be rounded to another dtype than its parameters have."""
    for kind in {parameter.device.type for parameter in model.parameters()}:
        if torch.is_autocast_enabled(kind):
            raise Refused(
                f"inside torch.autocast({kind!r}) the model is rounded to "
                f"{torch.get_autocast_dtype(kind)}, and its curvature with it: call this outside, "
                f"or in `with torch.autocast({kind!r}, enabled=False)`"
            )


def check_mode(model: nn.Module) -> None:
    """Raise where samples are random or depend on each other, as training mode makes them."""
    check_differentiation()
    check_precision(model)
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.parameters()):
            raise Refused(
                f"{where} is scripted or traced, so that its parameters cannot be told from "
                "constants: give the module that it was made of"
            )
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise Refused(f"{where} has no running statistics, so samples depend on each other")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
            raise Refused(
                f"{where} has scale_grad_by_freq, so gradients depend on the whole batch; set it "
                "to False"
            )
        if not module.training:
            continue
        if isinstance(module, _BATCH_NORMS):
            raise Refused(
                f"{where} is in training mode, where samples depend on each other; call "
                "model.eval() first"
            )
        if isinstance(module, nn.RReLU) or (isinstance(module, _DROPOUTS) and module.p > 0):
            raise Refused(
                f"{where} is in training mode, where the output is random; call model.eval() first"
            )


def batches_of(data: Any) -> Iterator[Batch]:
    """The batches of a tensor, a pair (inputs, labels), a dict of inputs, or an iterable."""
    if is_batch(data):
        yield _batch(data)
        return
    if not isinstance(data, Iterable):
        raise TypeError(f"data is a {type(data).__name__}: a batch or an iterable of batches")
    empty = True
    for batch in data:
        empty = False
        yield _batch(batch)
    if empty:
        raise NoBatch("data holds no batch")


def input_batches(x: Any) -> Iterator[tuple[Any, None]]:
    """Inputs without labels as data: a tensor, tuple or dict is a batch, others hold batches."""
    batches = [x] if isinstance(x, Tensor | Mapping | tuple) else x
    return ((batch, None) for batch in batches)


def is_batch(data: Any) -> bool:
    """Whether this is one batch, of inputs or (inputs, labels), not a list of batches."""
    if isinstance(data, Tensor | Mapping):
        return True
    return isinstance(data, tuple) and len(data) == 2 and _is_inputs(data[0])


def _is_inputs(value: Any) -> bool:
    if isinstance(value, Tensor | Mapping):
        return True
    return isinstance(value, tuple) and all(isinstance(entry, Tensor) for entry in value)


def _batch(batch: Any) -> Batch:
    target = None
    if isinstance(batch, tuple | list):
        if len(batch) not in (1, 2):
            raise ValueError(
                f"a batch has {len(batch)} entries: (inputs, labels) are needed; several inputs go "
                "in a tuple of their own"
            )
        batch, target = (batch[0], None) if len(batch) == 1 else batch
    if isinstance(batch, Mapping):
        found = Batch((), dict(batch), target)
    elif isinstance(batch, tuple | list):
        found = Batch(tuple(batch), {}, target)
    elif isinstance(batch, Tensor):
        found = Batch((batch,), {}, target)
    else:
        raise TypeError(f"a batch holds a {type(batch).__name__} where inputs are needed")
    if any(tensor.is_inference() for tensor in tensors_in((found.args, found.kwargs, target))):
        # Autograd refuses those made inside torch.inference_mode(), but not their copies.
        found = Batch(*(mapped(Tensor.clone, part) for part in (found.args, found.kwargs, target)))
    tensors = list(tensors_in((found.args, found.kwargs)))
    if not tensors:
        raise ValueError("a batch holds no tensor")
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
    if len(sizes) > 1 or None in sizes:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise ValueError(f"inputs of shapes {shapes}: all need the samples in dimension 0")
    if 0 in sizes:
        raise ValueError("a batch holds no sample")
    return found


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a nest of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from tensors_in(entry)


def mapped(function: Callable[[Tensor], Any], value: Any) -> Any:
    """A nest of tuples, lists and mappings with the function of each tensor in its place."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        # A copy, where it can be written to: a model may ask it for more than its entries.
        made = copy(value) if isinstance(value, MutableMapping) else dict(value)
        for key, entry in value.items():
            made[key] = mapped(function, entry)
        return made
    if isinstance(value, tuple | list):
        return type(value)(mapped(function, entry) for entry in value)
    return value


def _narrow(value: Any, start: int, count: int) -> Any:
    # A label that is one number for all samples stays what it is, for a check to refuse.
    return mapped(lambda x: x.narrow(0, start, count) if x.dim() else x, value)


def selector(output: Output, count: int) -> Callable[[Any], Tensor]:
    """Pick the tensor whose curvature is meant out of what the model returns, and check it."""

    def select(result: Any) -> Tensor:
        if callable(output):
            result = output(result)
        elif isinstance(output, str) and not isinstance(result, Mapping):
            result = getattr(result, output)
        elif output is not None:
            result = result[output]
        if not isinstance(result, Tensor):
            raise TypeError(
                f"the model returns a {type(result).__name__}: choose a tensor of it with output="
            )
        if result.dim() == 0 or result.shape[0] != count:
            raise Refused(
                f"the model returns shape {tuple(result.shape)} for {count} samples: samples are "
                "needed in dimension 0"
            )
        if not result.is_floating_point():
            raise TypeError(f"the model returns dtype {result.dtype}: a real one is needed")
        return result

    return select
