"""Targets of batches of named inputs, as the collators of Hugging Face's transformers make them.

The ``labels`` of a dict are no input: they become the target. Output t of a causal language model
predicts token t + 1, while its batches label token t itself, and the model's own loss shifts the
labels. No name or setting says for sure which models do; so on one sample, once for each model,
its loss is compared with the cross-entropy of the labels and of the shifted labels. Outputs at
padded positions, and those that predict one, get no target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lapkernels.curvature.data.batches import Batch, logits_of
from lapkernels.curvature.data.contents import Contents, check_eval, plain
from lapkernels.curvature.data.random_state import random_state_kept
from lapkernels.curvature.errors import Refused
from lapkernels.curvature.recording.run_model import call_model
from lapkernels.likelihoods import Categorical, Likelihood
from lapkernels.likelihoods.categorical import NO_TARGET

# Whether there is a label for each output, for each but the first, or none for single positions.
Labelling = Literal["aligned", "shifted", "whole"]
# Relative difference of two means of losses in float32, which some models compute in float64 too.
CLOSE = 1e-4

_known: WeakKeyDictionary[nn.Module, Labelling] = WeakKeyDictionary()


def with_targets(model: nn.Module, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, with ``labels`` among named inputs as the target of the model's outputs."""
    model = plain(model)
    for batch in batches:
        named = _named(model, batch)
        yield _with_target(model, named) if named.kwargs else named


def _named(model: nn.Module, batch: Batch) -> Batch:
    """A batch whose only input has the name it has in a model with a ``config``."""
    if len(batch.args) != 1 or batch.kwargs or not hasattr(model, "config"):
        return batch
    first = next(iter(signature(model.forward).parameters.values()))
    if first.kind is not Parameter.POSITIONAL_OR_KEYWORD:
        return batch
    return replace(batch, args=(), kwargs={first.name: batch.args[0]})


def _with_target(model: nn.Module, batch: Batch) -> Batch:
    labels, inside = batch.target, False
    if "labels" in batch.kwargs and not _is_input(model):
        inputs = dict(batch.kwargs)
        own = inputs.pop("labels")
        if own is not None and labels is not None:
            raise ValueError(
                "a batch has labels among the model's inputs and a target beside them: leave out "
                "one of the two"
            )
        inside, labels = own is not None, labels if own is None else own
        batch = replace(batch, kwargs=inputs, target=labels)
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.is_floating_point():
        return batch
    if inside:
        batch = replace(batch, kwargs=_with_decoder_inputs(model, batch.kwargs, labels))
    padding = _padding(batch.kwargs, labels.shape)
    tokens = batch.kwargs.get("input_ids")
    if not inside and padding is None and not _equal(tokens, labels):
        return batch
    how = _labelling(model, batch)
    if how == "whole":
        return batch
    if not inside:
        if how == "shifted" and _equal(tokens, labels):
            raise ValueError(
                "the labels beside the inputs are the inputs themselves, but output t of this "
                "model predicts token t + 1: put them into the dict as `labels`, which are "
                "shifted, or shift them yourself"
            )
        how = "aligned"
    y = torch.full_like(labels, NO_TARGET)
    if how == "shifted":
        y[:, :-1] = labels[:, 1:]
    else:
        y.copy_(labels)
    if padding is not None:
        y[padding] = NO_TARGET
        if how == "shifted":
            y[:, :-1][padding[:, 1:]] = NO_TARGET
    words = "shifted by one, so that output t predicts label t + 1" if how == "shifted" else how
    count = int((y != NO_TARGET).sum())
    note = f"labels: {words}; {count} of {y.numel()} positions count"
    return replace(batch, target=y, note=note)


def _labelling(model: nn.Module, batch: Batch) -> Labelling:
    """Asks the model, once."""
    if model not in _known:
        found = _asked(model, batch)
        if found is None:  # no label at all
            return "aligned"
        _known[model] = found
    return _known[model]


def _asked(model: nn.Module, batch: Batch) -> Labelling | None:
    """What the model's own loss of one sample shows; None if no sample has a label."""
    check_eval(Contents.of(model))
    counted = (batch.target[:, 1:] != NO_TARGET).any(1).nonzero().flatten().tolist()
    part = batch.part(counted[0] if counted else 0, 1)
    labels = part.target
    takes = _argument(model, "labels") is not None or _argument(model, None) is not None
    kwargs = {**part.kwargs, "labels": labels} if takes else part.kwargs
    with random_state_kept(model, part.args, kwargs), torch.no_grad():
        result = call_model(model, part.args, kwargs)
    logits = logits_of(result)
    if not isinstance(logits, Tensor) or logits.shape[:-1] != labels.shape:
        return "whole"
    if not counted:
        return None
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        aligned = _close(loss, _mean_loss(logits, labels))
        if aligned != _close(loss, _mean_loss(logits[:, :-1], labels[:, 1:])):
            return "aligned" if aligned else "shifted"
    raise Refused(
        f"the loss of {type(model).__name__} does not show whether output t has label t or t + 1: "
        "take `labels` out of the inputs and give (inputs, targets), with the target of output t "
        f"at position t and {NO_TARGET} where there is none"
    )


def _mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of logits [N, T, V] over labels [N, T]."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=NO_TARGET)


def _close(one: Tensor, other: Tensor) -> bool:
    return abs(float(one) - float(other)) <= CLOSE * max(1.0, abs(float(other)))


def _with_decoder_inputs(
    model: nn.Module, inputs: dict[str, Any], labels: Tensor
) -> dict[str, Any]:
    """Inputs of a decoder, which models with an encoder would make of the labels themselves."""
    make = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    given = "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs
    return inputs if given or make is None else {**inputs, "decoder_input_ids": make(labels=labels)}


def _padding(inputs: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """Where positions of this shape are padded, if any is."""
    decodes = "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs
    mask = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != shape or bool(mask.all()):
        return None
    return mask == 0


def _equal(tokens: Any, labels: Tensor) -> bool:
    """Whether all labels that count are the tokens at their own positions."""
    if not isinstance(tokens, Tensor) or tokens.shape != labels.shape:
        return False
    return bool(((tokens == labels) | (labels == NO_TARGET)).all())


def _argument(model: nn.Module, name: str | None) -> Parameter | None:
    """The argument of a model's forward with this name, or the one for all other names."""
    found = signature(model.forward).parameters
    if name is not None:
        return found.get(name)
    return next((one for one in found.values() if one.kind is Parameter.VAR_KEYWORD), None)


def _is_input(model: nn.Module) -> bool:
    """Whether the model cannot do without ``labels``."""
    argument = _argument(model, "labels")
    return argument is not None and argument.default is Parameter.empty


def check_outputs(likelihood: Likelihood, f: Tensor, batch: Batch) -> None:
    """Raise unless outputs and targets of a batch suit the likelihood."""
    if isinstance(likelihood, Categorical) and f.dim() == 3:
        _check_tokens(likelihood, f, batch)
    likelihood.check(f, batch.target)


def _check_tokens(likelihood: Categorical, f: Tensor, batch: Batch) -> None:
    """Raise where classes would be counted along tokens, or outputs at padding would count."""
    names = ("decoder_input_ids", "input_ids", "inputs_embeds")
    named = next((batch.kwargs[name] for name in names if name in batch.kwargs), None)
    if not isinstance(named, Tensor) or f.shape[:2] != named.shape[:2]:
        return
    if likelihood.dim % 3 == 1:
        raise ValueError(
            f"f has shape {tuple(f.shape)} for {named.shape[1]} tokens, so that its classes are "
            "the last dimension: the likelihood is Categorical(dim=-1)"
        )
    if batch.target is None and _padding(batch.kwargs, f.shape[:2]) is not None:
        raise ValueError(
            "some tokens are padded, and without labels their outputs would count as well: give "
            f"labels, with {NO_TARGET} where there is none"
        )
