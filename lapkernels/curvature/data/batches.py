"""Batches and the model's output, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, get_args

from torch import Tensor, nn

from lapkernels.curvature.data.contents import plain
from lapkernels.curvature.errors import NoBatch, Refused

Output = Callable[[Any], Tensor] | str | int | None


@dataclass(frozen=True)
class Batch:
    """Inputs of one call of the model, labels if there are any, and a note on these."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    note: str = ""

    @property
    def count(self) -> int:
        """Number of samples."""
        return next(iter(tensors_in((self.args, self.kwargs)))).shape[0]

    @property
    def inputs(self) -> Any:
        """The inputs as users give them."""
        return self.kwargs if self.kwargs else self.args

    def halves(self) -> list[Batch]:
        """Both halves, those that are not empty."""
        return list(self.parts(min(2, self.count)))

    def parts(self, count: int) -> Iterator[Batch]:
        """``count`` batches of about equal size."""
        for part in range(count):
            first, last = (self.count * n // count for n in (part, part + 1))
            yield self.part(first, last - first)

    def part(self, start: int, count: int) -> Batch:
        """A batch of some samples."""
        parts = self.args, self.kwargs, self.target
        args, kwargs, target = (_narrow(part, start, count) for part in parts)
        return Batch(args, kwargs, target, self.note)


@dataclass(frozen=True)
class Observed:
    """Data with a callback ``see(f, y)`` for the outputs of each batch or part of a batch."""

    data: Any
    see: Callable[[Tensor, Any], object]

    @classmethod
    def of(cls, data: Any) -> Observed:
        """Data without a callback."""
        return data if isinstance(data, Observed) else cls(data, lambda f, y: None)


def check_choice(name: str, value: Any, allowed: Any) -> None:
    """Raise unless an argument has one of the values of a ``Literal``."""
    if value not in get_args(allowed):
        raise ValueError(f"{name}={value!r} must be one of {get_args(allowed)}")


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


def input_batches(model: nn.Module, x: Any) -> Observed:
    """Inputs without labels as data: a tensor, tuple or dict is a batch, others hold batches.

    Labels of a batch (inputs, labels) are dropped.
    """
    observed = Observed.of(x)
    batches = unlabelled(model, observed.data, labelled=False)
    return replace(observed, data=((batch, None) for batch in batches))


def unlabelled(model: nn.Module, x: Any, *, labelled: bool) -> Iterator[Any]:
    """The inputs of each batch, those of an iterable being ``labelled`` as in a data loader."""
    if isinstance(x, Tensor | Mapping | tuple) or is_pair(x):
        yield without_labels(model, x)
    elif isinstance(x, Iterable):
        yield from (without_labels(model, batch, labelled=labelled) for batch in x)
    else:
        raise TypeError(f"x is a {type(x).__name__}: inputs or an iterable of batches are needed")


def is_pair(data: Any) -> bool:
    """Whether a list is what a data loader gives, [inputs, labels], and not two batches.

    Labels have fewer dimensions, or are integers where inputs are not. Two batches of sequences may
    differ in length alone.
    """
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[1], Tensor):
        return False
    first, labels = data
    if not isinstance(first, Tensor):
        return isinstance(first, Mapping)
    if first.shape[:1] != labels.shape[:1]:
        return False
    whole = first.is_floating_point() and not labels.is_floating_point()
    return labels.dim() < first.dim() or whole


def without_labels(model: nn.Module, batch: Any, *, labelled: bool = False) -> Any:
    """The inputs of a batch that may be (inputs, labels).

    It is, if ``forward`` takes the first alone, and not both or the first holds several inputs.
    With ``labelled`` it is whenever ``forward`` takes the first alone.
    """
    if not isinstance(batch, tuple | list):
        return batch
    if len(batch) != 2:
        return tuple(batch)
    inputs = batch[0]
    if not (_is_inputs(inputs) or isinstance(inputs, list)):
        return tuple(batch)
    alone, both = (_takes(model, args) for args in (inputs, tuple(batch)))
    several = not isinstance(inputs, Tensor)
    return inputs if alone and (labelled or several or not both) else tuple(batch)


def _takes(model: nn.Module, inputs: Any) -> bool:
    """Whether the arguments of a model's ``forward`` can be these inputs."""
    given = inputs if isinstance(inputs, tuple | list | Mapping) else (inputs,)
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given, {})
    try:
        signature(plain(model).forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def is_batch(data: Any) -> bool:
    """Whether this is one batch, of inputs or (inputs, labels), not a list of batches."""
    if isinstance(data, Tensor | Mapping) or is_pair(data):
        return True
    return isinstance(data, tuple) and len(data) == 2 and _is_inputs(data[0])


def _is_inputs(value: Any) -> bool:
    if isinstance(value, Tensor | Mapping):
        return True
    return isinstance(value, tuple) and all(isinstance(entry, Tensor | Mapping) for entry in value)


def _batch(batch: Any) -> Batch:
    target = None
    if type(batch) is Tensor and batch.dim() and batch.shape[0] and not batch.is_inference():
        return Batch((batch,), {}, None)
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


def check_names(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a dict of inputs whose names a model's ``forward`` does not have."""
    try:
        signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        if kwargs:
            raise TypeError(
                f"the forward of {type(model).__name__} has no arguments {', '.join(kwargs)}: the "
                "entries of a dict are given by name. Where the dict itself is one argument, put "
                "it into a tuple: ((inputs,), labels)"
            ) from error


def check_devices(model: nn.Module, batch: Batch, error: Exception) -> None:
    """Say, after an error, that no input is where the model is."""
    own = {parameter.device for parameter in model.parameters()}
    given = {tensor.device for tensor in tensors_in((batch.args, batch.kwargs))}
    if own and not own & given:
        name, where = next(iter(own)), ", ".join(map(str, given))
        raise ValueError(f"inputs are on {where}, the model on {name}: x.to({str(name)!r})") from (
            error
        )


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
    """Apply a function to each tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        # A copy if it is mutable, as a model may use more of it than its entries.
        made = copy(value) if isinstance(value, MutableMapping) else dict(value)
        for key, entry in value.items():
            made[key] = mapped(function, entry)
        return made
    if isinstance(value, tuple | list):
        return type(value)(mapped(function, entry) for entry in value)
    return value


def _narrow(value: Any, start: int, count: int) -> Any:
    # A scalar label for all samples is kept, and refused by a later check.
    return mapped(lambda x: x.narrow(0, start, count) if x.dim() else x, value)


def logits_of(result: Any) -> Any:
    """The ``logits`` of what the model returns, if it has some; otherwise the result itself."""
    if isinstance(result, Tensor):
        return result
    found = result.get("logits") if isinstance(result, Mapping) else None
    found = getattr(result, "logits", None) if found is None else found
    return found if isinstance(found, Tensor) else result


def selector(output: Output, count: int) -> Callable[[Any], Tensor]:
    """Select the output tensor of what the model returns, and check it."""

    def select(result: Any) -> Tensor:
        if callable(output):
            result = output(result)
        elif isinstance(output, str) and not isinstance(result, Mapping):
            result = getattr(result, output)
        elif output is not None:
            result = result[output]
        else:
            result = logits_of(result)
        if not isinstance(result, Tensor):
            raise TypeError(
                f"the model returns a {type(result).__name__}: choose a tensor of it with output="
                + (f", one of {', '.join(map(str, result))}" if isinstance(result, Mapping) else "")
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
