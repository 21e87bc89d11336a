"""Brute force of Kronecker factors for any network: every op that torch runs, with a dense J.

A parameter that enters an op as a weight, z[o, t] = sum_i W[o, i] x[i, t], has the factors of
`lapkernels.curvature.quantities.kron`; x is read off the op's own Jacobian, and Jacobians of all
outputs f by z come from the ops behind it. All uses of a parameter are positions of one layer. A
parameter that is added has the factor B alone, and any other its exact block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan, prod
from typing import Any

import torch
from torch import Tensor, nn

from tests.curvature import op_oracle, oracle
from tests.curvature.op_recording import Op, Recorded, Value, argument


@dataclass(frozen=True)
class Use:
    """A use by one sample: inputs x [groups, I, T], Jacobians [D, groups, O, T] of f by z.

    `entries` [groups, O, I] are those of the flat parameter. With `x` None it is added, I = 1.
    """

    entries: Tensor
    x: Tensor | None
    jacobian: Tensor
    embedding: bool


@dataclass
class Uses:
    """What one parameter is to each sample; `exact` if any use is neither weight nor summand."""

    samples: list[list[Use]]
    exact: bool = False

    def add(self, n: int, use: Use | None) -> None:
        if use is None:
            self.exact = True
        else:
            self.samples[n].append(use)

    def block(self, m: Tensor, exact: Tensor, reduce: bool) -> Tensor | None:
        """[P, P] for the moments m [N, D, D] at the outputs; `exact` is the exact block.

        None where the uses do not fit together.
        """
        uses = [use for sample in self.samples for use in sample]
        kinds = {use.x is None for use in uses}
        if self.exact or not uses:
            return exact if self.exact or not kinds else None
        if len(kinds) > 1 or any(not torch.equal(uses[0].entries, u.entries) for u in uses):
            return exact if kinds == {True} else self._tied(m, exact, reduce)
        a, b = self.factors(m, reduce)
        found = torch.zeros_like(exact)
        for group, entries in enumerate(uses[0].entries.flatten(1)):
            found[entries[:, None], entries] = torch.kron(b[group], a[group]).to(found)
        return found

    def _tied(self, m: Tensor, exact: Tensor, reduce: bool) -> Tensor | None:
        """Of a table that is an embedding and the weight of layers to its rows; V is diagonal."""
        uses = [use for sample in self.samples for use in sample]
        table = next((use.entries for use in uses if use.embedding), None)
        if table is None or any(
            use.x is None or not torch.equal(use.entries, table if use.embedding else table.mT)
            for use in uses
        ):
            return None
        u, w = torch.zeros(table.shape[2]), torch.zeros(table.shape[1], table.shape[1])
        for own, sample in zip(m, self.samples, strict=True):
            positions = len(sample) if reduce else sum(use.jacobian.shape[3] for use in sample)
            for use in sample:
                assert use.x is not None
                j, x = use.jacobian, use.x
                if reduce:
                    j, x = j.sum(3, keepdim=True), x.mean(2, keepdim=True)
                outer = torch.einsum("dgot,de,egpt->op", j, own, j)
                inner = torch.einsum("git,gjt->ij", x, x)
                rows, columns = (inner, outer) if use.embedding else (outer, inner)
                u, w = u + rows.diagonal() / positions, w + columns
        found, entries = torch.zeros_like(exact), table.flatten()
        found[entries[:, None], entries] = torch.kron(w, (u / len(m)).diag()).to(found)
        return found

    def factors(self, m: Tensor, reduce: bool) -> tuple[Tensor, Tensor]:
        """A [groups, I, I], a mean over samples, and B [groups, O, O], a sum, of uses that fit."""
        uses = [use for sample in self.samples for use in sample]
        groups, out, features = uses[0].entries.shape
        a, b = torch.zeros(groups, features, features), torch.zeros(groups, out, out)
        for own, sample in zip(m, self.samples, strict=True):
            if not sample:
                continue
            j = torch.cat([use.jacobian for use in sample], 3)
            x = [torch.ones(1, 1, j.shape[3]) if u.x is None else u.x for u in sample]
            x = x[0] if sample[0].x is None else torch.cat(x, 2)
            if reduce:
                j, x = j.sum(3, keepdim=True), x.mean(2, keepdim=True)
            a = a + torch.einsum("git,gjt->gij", x, x) / x.shape[2]
            b = b + torch.einsum("dgot,de,egpt->gop", j, own, j)
        return (torch.ones_like(a) if uses[0].x is None else a / len(m)), b


# J of values made of parameters alone, by parameter.
Origins = dict[Value, dict[str, Tensor]]


@dataclass(frozen=True)
class Product:
    """A weight a b [O, I]: two layers without a bias, one after the other."""

    left: Value
    right: Value
    a: Tensor
    b: Tensor

    def uses(self, use: Use, origins: Origins) -> Iterator[tuple[str, Use]]:
        """The uses of a and b, from that of the product."""
        assert use.x is not None
        for value, matrix in ((self.left, self.a), (self.right, self.b)):
            view = _view(value, origins)
            assert view is not None
            entries = view.reshape(1, *matrix.shape)
            if value is self.left:
                yield _behind(value, origins)[0], replace(use, entries=entries, x=self.b @ use.x)
            else:
                s = torch.einsum("or,dgot->dgrt", self.a, use.jacobian)
                yield _behind(value, origins)[0], replace(use, entries=entries, jacobian=s)


def uses(passes: Sequence[Recorded]) -> dict[str, Uses]:
    """The uses of every parameter."""
    found = {name: Uses([[] for _ in passes]) for name in passes[0].parameters}
    for n, one in enumerate(passes):
        value = one.start()
        value.columns[0] = torch.eye(value.numel, dtype=torch.float64)
        op_oracle.pull(one.ops, inf)
        origins: Origins = {
            value: {name: torch.eye(value.numel, dtype=torch.float64)}
            for name, value in one.parameters.items()
        }
        products: dict[Value, Product] = {}
        for op in one.ops:
            weights = [index for index, value in enumerate(op.inputs) if value in origins]
            if len(weights) == len(op.inputs) and not _is_layer(op, origins):
                _extend(op, origins)
                _note_product(op, origins, products)
                continue
            if not op.outputs[0].columns or not op.outputs[0].numel:
                continue
            for index in weights:
                product = products.get(op.inputs[index])
                if product is not None:
                    whole = _use(op, index, origins, torch.arange(op.inputs[index].numel))
                    assert whole is not None
                    for name, use in product.uses(whole, origins):
                        found[name].add(n, use)
                    continue
                names = _behind(op.inputs[index], origins)
                use = _use(op, index, origins)
                for name in names:
                    found[name].add(n, use)
    return found


def uses_of_layers(
    model: nn.Module, x: oracle.Inputs, output: oracle.Select | None = None
) -> dict[str, Uses]:
    """The same by hooks, where all parameters are of Linear layers and convolutions in one group.

    What lies between the layers may be anything.
    """
    model, samples = oracle.in_double(model), list(oracle.samples(x))
    calls: list[tuple[str, Any, Tensor, Tensor]] = []

    def keep(name: str, layer: Any, given: Any, z: Tensor) -> None:
        calls.append((name, layer, given[0], z))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            module.register_forward_hook(partial(keep, name))
    found = {name: Uses([[] for _ in samples]) for name in oracle.trainable(model)}
    for n, sample in enumerate(samples):
        calls.clear()
        f = oracle.call(model, sample, output)
        for name, layer, given, z in calls:
            channels = -1 if isinstance(layer, nn.Linear) else 1
            s = oracle.jacobian(f, [z])[0].flatten(0, 1).movedim(channels, 1)
            s = s.reshape(len(s), 1, s.shape[1], -1)
            # How the first output depends on its own weights; not by __call__, which has the hook.
            first = layer.forward(given).movedim(channels, 0)[0]
            patches = oracle.jacobian(first, [layer.weight])[0][:, 0].flatten(1).T[None]
            own = torch.arange(layer.weight.numel()).reshape(1, s.shape[2], -1)
            found[f"{name}.weight"].add(n, Use(own, patches, s, False))
            found[f"{name}.bias"].add(
                n, Use(torch.arange(s.shape[2])[None, :, None], None, s, False)
            )
    return found


def _is_layer(op: Op, origins: Origins) -> bool:
    """Whether a parameter meets numbers of a sample, such as its first hidden state, here."""
    if op.outputs[0].varies or _name(op) in ("addmm", "convolution"):
        return True
    return _name(op) == "mm" and len(op.inputs) == 1 and _view(op.inputs[0], origins) is not None


def _extend(op: Op, origins: Origins) -> None:
    """J [entries, P] of values made of parameters alone, by each parameter."""
    for out, row in zip(op.outputs, op.jacobians([True] * len(op.outputs)), strict=True):
        total = origins.setdefault(out, {})
        for value, j in zip(op.inputs, row, strict=True):
            for name, origin in origins[value].items():
                part = j @ origin
                if _name(op) == "repeat":
                    # Of more samples it is no view, so no J of one sample is to be taken for it.
                    part = torch.full_like(part, nan)
                total[name] = total[name] + part if name in total else part


def _note_product(op: Op, origins: Origins, products: dict[Value, Product]) -> None:
    """Note a product of two parameters, and its transposed view."""
    if _name(op) == "mm" and all(_view(value, origins) is not None for value in op.inputs):
        if len(op.inputs) == 2:
            left, right = op.inputs
            a, b = argument(op, 0, left), argument(op, 1, right)
            assert a is not None and b is not None
            products[op.outputs[0]] = Product(left, right, a, b)
    elif _name(op) == "t" and op.inputs[0] in products:
        products[op.outputs[0]] = products[op.inputs[0]]


def _behind(value: Value, origins: Origins) -> list[str]:
    return [name for name, j in origins[value].items() if j.any()]


def _view(value: Value, origins: Origins) -> Tensor | None:
    """Which entry of its one parameter each entry is, if they are all there in some order."""
    names = _behind(value, origins)
    if len(names) != 1:
        return None
    j = origins[value][names[0]]
    if j.shape[0] != j.shape[1] or not (((j == 0) | (j == 1)).all() and (j.sum(0) == 1).all()):
        return None
    return j.argmax(1)


def _use(op: Op, index: int, origins: Origins, view: Tensor | None = None) -> Use | None:
    """A weight or a summand that is a parameter's entries in some order, or None.

    ``view`` has that order if it is known.
    """
    weight, out = op.inputs[index], op.outputs[0]
    view, layout = _view(weight, origins) if view is None else view, _layout(op, weight)
    if view is None or layout is None:
        return None
    of_weight, of_output = layout
    entries, s = view[of_weight], out.columns[0][:, of_output]
    if _is_added(op, weight):
        return Use(entries, None, s, False)
    j = op.jacobians([True] * len(op.outputs))[0][index]
    x = j[of_output[:, :1].mT, of_weight[:, :1]].mT
    embedding = _name(op) == "embedding"
    if embedding:
        # Padding: a position that reads nothing.
        s = s * x.any(1)[:, None]
    return Use(entries, x, s, embedding)


# Ops with a summand, and the place of it among the arguments.
ADDED = {
    "add": None,
    "add_": None,
    "addmm": 0,
    "convolution": 2,
    "native_layer_norm": 3,
    "native_group_norm": 2,
    "native_batch_norm": 2,
    "_native_batch_norm_legit_no_training": 2,
}


def _name(op: Op) -> str:
    return str(getattr(op.function, "__name__", "")).split(".")[0]


def _is_added(op: Op, weight: Value) -> bool:
    place = ADDED.get(_name(op), -1)
    return place is None or (place >= 0 and argument(op, place, weight) is not None)


def _layout(op: Op, weight: Value) -> tuple[Tensor, Tensor] | None:
    """Flat entries of the weight [groups, O, I] and of the output [groups, O, T]."""
    name, out = _name(op), torch.arange(op.outputs[0].numel)
    own = torch.arange(weight.numel)
    if name in ADDED and _is_added(op, weight):
        return _added(op, weight, own, out)
    if name in ("mm", "bmm", "addmm"):
        first = 1 if name == "addmm" else 0
        left, right = argument(op, first, weight), argument(op, first + 1, weight)
        factor = left if right is None else right
        if (
            (left is not None and right is not None)
            or factor is None
            or factor[..., 0, 0].numel() > 1
        ):
            return None
        if right is not None:
            features, channels = right.shape[-2:]
            return own.reshape(1, features, channels).mT, out.reshape(1, -1, channels).mT
        channels, features = factor.shape[-2:]
        return own.reshape(1, channels, features), out.reshape(1, channels, -1)
    if name == "convolution":
        return _convolution(op, own, out)
    if name == "embedding":
        width = op.args[0].tensor.shape[1]
        return own.reshape(1, -1, width).mT, out.reshape(1, -1, width).mT
    return None


def _convolution(op: Op, own: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    shape, transposed, groups = op.args[1].tensor.shape, op.args[6], op.args[8]
    if transposed:
        entries = own.reshape(groups, shape[0] // groups, shape[1], -1).transpose(1, 2)
    else:
        entries = own.reshape(groups, shape[0] // groups, shape[1], -1)
    entries = entries.flatten(2)
    # Frames of one sample, if there are several, are positions.
    frames = op.args[0].tensor.shape[0]
    return entries, out.reshape(frames, groups, entries.shape[1], -1).movedim(0, 2).flatten(2)


def _added(op: Op, weight: Value, own: Tensor, out: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions are the dimensions of the output that the summand does not have."""
    name = _name(op)
    if name in ("add", "add_"):
        tensors: list[Any] = [argument(op, place, weight) for place in (0, 1)]
        shapes = [entry.tensor.shape for entry in op.args[:2] if hasattr(entry, "tensor")]
        shape = next(tensor.shape for tensor in tensors if tensor is not None)
        if len(shapes) < 2 or all(tensor is not None for tensor in tensors):
            return None
        whole = torch.broadcast_shapes(*shapes)
    elif name == "addmm":
        whole, shape = (out.numel() // weight.numel, weight.numel), (weight.numel,)
    elif name == "native_layer_norm":
        whole, shape = (out.numel() // weight.numel, weight.numel), (weight.numel,)
    else:
        frames = op.args[0].tensor.shape[0]
        whole, shape = (
            (frames, weight.numel, out.numel() // weight.numel // frames),
            (weight.numel, 1),
        )
    if prod(whole) != out.numel():
        return None
    padded = (1,) * (len(whole) - len(shape)) + tuple(shape)
    order = own.reshape(padded).expand(whole).flatten()
    # Entry p of the summand is at the outputs where `order` is p, in the order of positions.
    positions = order.argsort(stable=True).reshape(weight.numel, -1)
    return own.reshape(1, -1, 1), out[positions].unsqueeze(0)
