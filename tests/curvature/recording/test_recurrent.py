"""Recurrent layers, whole and packed, against brute force of one sample at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lapkernels as lk
from lapkernels.curvature.recording import replay
from tests.curvature import oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "ignore:TF32")

LAYERS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch-first": {"batch_first": True},
    "both-ways": {"bidirectional": True},
    "deep": {"num_layers": 2, "bias": False, "dropout": 0.5},
    "deep-both-ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "projected": {"proj_size": 2, "num_layers": 2, "bidirectional": True},
}
# The layer, its options, what of its results is used, whether first states are learned.
CASES = [
    *(("lstm", options, use, first)
      for options, use, first in (
          ("plain", "all", True), ("batch-first", "last step", False), ("both-ways", "cells", True),
          ("deep", "states", False), ("deep-both-ways", "all", True), ("projected", "all", True),
          ("projected", "cells", False),
      )),
    *(("gru", options, use, first)
      for options, use, first in (
          ("plain", "all", True), ("both-ways", "states", False), ("deep-both-ways", "all", True),
      )),
    *(("tanh", options, use, first)
      for options, use, first in (("deep-both-ways", "all", True), ("deep", "states", False))),
    ("relu", "both-ways", "all", True),
]  # fmt: skip
PACKED = [case for case in CASES if case[1] not in ("plain", "deep")]


class Net(nn.Module):
    """A head on some of the results of a layer."""

    def __init__(self, kind: str, options: str, use: str, first: bool, packed: str = "") -> None:
        super().__init__()
        given = OPTIONS[options]
        self.layer, self.use, self.packed = LAYERS[kind](3, 4, **given), use, packed
        self.turn = not given.get("batch_first")
        directions = 1 + given.get("bidirectional", False)
        rows, width = directions * given.get("num_layers", 1), given.get("proj_size", 4)
        size = {"last step": directions * width, "states": rows * width, "cells": 4 * rows}
        self.head = nn.Linear(size.get(use, directions * width + rows * width), 2)
        self.first = nn.ParameterList()
        if first:
            widths = (width, 4) if kind == "lstm" else (width,)
            self.first.extend(nn.Parameter(torch.randn(rows, 1, own)) for own in widths)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        states: Any = [one.expand(-1, len(x), -1).contiguous() for one in self.first]
        states = tuple(states) if len(states) == 2 else states[0] if states else None
        x = x.transpose(0, 1) if self.turn else x
        if lengths is None:
            out, ends = self.layer(x, states)
        else:
            ordered = self.packed == "sorted"
            rows = pack_padded_sequence(x, lengths.cpu(), not self.turn, enforce_sorted=ordered)
            out, ends = self.layer(rows, states)
            out, read = pad_packed_sequence(out, not self.turn, -1.0, total_length=6)
            assert torch.equal(read, lengths)
        ends = ends if isinstance(ends, tuple) else (ends,)
        out = out.transpose(0, 1) if self.turn else out
        state, cell = (one.transpose(0, 1).flatten(1) for one in (ends[0], ends[-1]))
        if self.use == "last step":
            return self.head(out[:, -1])
        if self.use == "states":
            return self.head(state)
        return self.head(cell if self.use == "cells" else torch.cat([out[:, 1], state], 1))


def made(*case: Any) -> Net:
    torch.manual_seed(0)
    net = Net(*case).double().eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.7)
    return net


def agree(net: Net, x: Any, j: dict[str, Tensor]) -> None:
    """Diagonal, covariance and blocks, of rules at full batch."""
    y = torch.zeros(len(next(iter(j.values()))), 2, dtype=torch.float64)
    variance = {name: torch.rand_like(p).detach() for name, p in net.named_parameters()}
    flat = {name: rows.flatten(2) for name, rows in j.items()}
    scaled = [rows * variance[k].flatten() @ rows.mT for k, rows in flat.items()]
    covariance = torch.stack(scaled).sum(0)
    for _ in range(2):  # recorded, and perhaps replayed
        found = lk.diag(net, (x, y), "gaussian", "exact")
        for name, rows in flat.items():
            close(found[name].flatten(), rows.square().sum((0, 1)))
        close(lk.predictive_covariance(net, x, variance), covariance)
    for module, block in lk.blocks(net, (x, y), "gaussian").items():
        rows = torch.cat([flat[name] for name in flat if name.startswith(f"{module}.")], 2)
        close(block, torch.einsum("ncp,ncq->pq", rows, rows))


def close(found: Tensor, true: Tensor) -> None:
    tolerance = 1e-11 * float(true.abs().max())
    torch.testing.assert_close(found, true, rtol=0, atol=max(tolerance, 1e-13))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_layers(case: Any) -> None:
    net, x = made(*case), torch.randn(3, 5, 3, dtype=torch.float64)
    agree(net, x, oracle.jacobians(net, x)[0])


@pytest.mark.parametrize("packed", ["sorted", "in any order"])
@pytest.mark.parametrize("case", PACKED, ids=lambda case: "-".join(map(str, case)))
def test_packed_sequences(case: Any, packed: str) -> None:
    net, x = made(*case, packed), torch.randn(4, 6, 3, dtype=torch.float64)
    lengths = torch.tensor([5, 3, 3, 1] if packed == "sorted" else [3, 1, 5, 3])
    x[1, -1] = torch.inf  # nothing reads what is beyond a length
    agree(net, (x, lengths), oracle.jacobians(net, (x, lengths))[0])


@pytest.mark.parametrize("kind", LAYERS)
def test_a_diagonal_beyond_a_length_is_zero(kind: str) -> None:
    """The approximate diagonal and the propagated variance are those of each sequence alone."""
    net = made(kind, "both-ways", "states", False, "in any order")
    x, lengths = torch.randn(3, 5, 3, dtype=torch.float64), torch.tensor([2, 5, 3])
    variance = {name: torch.rand_like(p).detach() for name, p in net.named_parameters()}
    alone = [
        (one[None, :size], torch.zeros(1, 2).double()) for one, size in zip(x, lengths, strict=True)
    ]
    found = lk.diag(net, ((x, lengths), torch.zeros(3, 2).double()), "gaussian", "approx")
    true = lk.diag(net, alone, "gaussian", "approx")
    for name in variance:
        close(found[name], true[name])
    pushed = lk.propagated_variance(net, (x, lengths), variance)
    close(pushed, torch.cat([lk.propagated_variance(net, one, variance) for one, _ in alone]))


def test_further_batches_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    real = replay.record
    monkeypatch.setattr(replay, "record", lambda *a, **k: recorded.append(a) or real(*a, **k))
    net = made("lstm", "deep-both-ways", "last step", False)
    for _ in range(3):
        x = torch.randn(3, 5, 3, dtype=torch.float64)
        found = lk.diag(net, x, "gaussian", "exact")
        j = oracle.jacobians(net, x)[0]
        for name, rows in j.items():
            close(found[name].flatten(), rows.flatten(2).square().sum((0, 1)))
    assert len(recorded) == 1


def test_a_result_that_is_overwritten() -> None:
    class Overwritten(Net):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            out = self.layer(x.transpose(0, 1))[0]
            return self.head(out.mul_(2).tanh_()[-1])

    torch.manual_seed(0)
    net = Overwritten("gru", "plain", "last step", False).double().eval()
    x = torch.randn(3, 5, 3, dtype=torch.float64)
    agree(net, x, oracle.jacobians(net, x)[0])


def test_dropout_between_layers_is_refused_in_training() -> None:
    net = made("lstm", "deep", "states", False).train()
    with pytest.raises(lk.Refused, match="in training mode"):
        lk.diag(net, torch.randn(2, 3, 3, dtype=torch.float64), "gaussian")


def test_rows_that_are_read_otherwise_have_lost_their_samples() -> None:
    class OfRows(Net):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            rows = pack_padded_sequence(x.transpose(0, 1), torch.as_tensor(lengths)).data.tanh()
            return self.head(rows.sum(0).expand(len(x), -1))

    net = OfRows("gru", "plain", "last step", False).double().eval()
    net.head = nn.Linear(3, 2).double()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    with pytest.raises(lk.Refused), pytest.warns(RuntimeWarning, match="packed"):
        lk.diag(net, ((x, torch.tensor([4, 2])), torch.zeros(2, 2)), "gaussian")
