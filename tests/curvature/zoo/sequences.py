"""Attention and recurrence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.zoo.network import Network, grouped, owning


def _self_attention(net: Any, x: Tensor) -> Tensor:
    return net.attention(x, x, x)[0]


def _self_attention_samples_second(net: Any, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return net.attention(x, x, x, need_weights=False)[0].transpose(0, 1)


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(2, (2, 2)).transpose(1, 2)


def _scaled_dot_product(causal: bool, net: Any, x: Tensor) -> Tensor:
    q, k, v = (_heads(part) for part in net.project(x).chunk(3, 2))
    found = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return net.out(found.transpose(1, 2).flatten(2))


def _masked(net: Any, x: Tensor, padding: Tensor) -> Tensor:
    found = net.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    return net.head(found.masked_fill(padding[:, :, None], 0.0).sum(1))


def _by_hand(net: Any, x: Tensor) -> Tensor:
    scores = net.query(x) @ net.key(x).mT / 2**0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return net.out(scores.masked_fill(mask, -torch.inf).softmax(-1) @ net.value(x))


def _language_model(net: Any, x: Tensor) -> Tensor:
    # Positions have no sample dimension.
    positions = net.position(torch.arange(x.shape[1], device=x.device))
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(positions)
    return net.head(net.layer(net.token(x) + positions, src_mask=mask, is_causal=True))


def _vision(net: Any, x: Tensor) -> Tensor:
    patches = net.patch(x).flatten(2).mT
    tokens = torch.cat([net.token.expand(len(x), -1, -1), patches], 1) + net.position
    return net.head(net.norm(net.layer(tokens))[:, 0])


def _pooled(net: Any, x: Tensor) -> Tensor:
    """Learned queries, the same for all samples, attend to the sample."""
    queries = net.queries.expand(len(x), -1, -1)
    return net.head(net.attention(queries, x, x)[0].flatten(1))


def _mha(**options: Any) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(4, 2, **options)


def _encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 5, batch_first=True, **options)


def _padding(samples: int) -> tuple[Tensor, Tensor]:
    lengths = torch.arange(samples) % 3 + 2
    return torch.randn(samples, 4, 4), torch.arange(4)[None] >= lengths[:, None]


ATTENTION = grouped("attention", [
    owning("multihead-batch-first", _self_attention, {"attention": lambda: _mha(batch_first=True)},
        (3, 4), "sequence", samples=2),
    owning("multihead-samples-second", _self_attention_samples_second,
        {"attention": lambda: _mha()}, (3, 4), "sequence", samples=2),
    owning("multihead-batch-first-as-many-samples-as-tokens", _self_attention,
        {"attention": lambda: _mha(batch_first=True)}, (3, 4), "sequence"),
    owning("multihead-samples-second-as-many-samples-as-tokens", _self_attention_samples_second,
        {"attention": lambda: _mha()}, (3, 4), "sequence"),
    owning("multihead-no-bias-extra-key", _self_attention,
        {"attention": lambda: _mha(bias=False, add_zero_attn=True, batch_first=True)}, (3, 4),
        "sequence", samples=2),
    owning("multihead-learned-key", _self_attention,
        {"attention": lambda: _mha(add_bias_kv=True, batch_first=True)}, (3, 4), "sequence",
        samples=2),
    owning("multihead-other-key-size",
        lambda net, x, z: net.attention(x, z, z.flip(1))[0].flatten(1),
        {"attention": lambda: _mha(kdim=3, vdim=3, batch_first=True)},
        lambda n: (torch.randn(n, 2, 4), torch.randn(n, 3, 3))),
    owning("multihead-padding-mask", _masked,
        {"attention": lambda: _mha(batch_first=True), "head": (4, 2)}, _padding),
    owning("multihead-learned-queries", _pooled,
        {"queries": [1, 2, 4], "attention": lambda: _mha(batch_first=True), "head": (8, 2)},
        (3, 4)),
    owning("scaled-dot-product", lambda net, x: _scaled_dot_product(False, net, x),
        {"project": (3, 12), "out": (4, 2)}, (4, 3), "sequence"),
    owning("scaled-dot-product-causal", lambda net, x: _scaled_dot_product(True, net, x),
        {"project": (3, 12), "out": (4, 2)}, (4, 3), "sequence"),
    owning("attention-by-hand", _by_hand,
        {"query": (3, 2), "key": (3, 2), "value": (3, 3), "out": (3, 2)}, (4, 3), "sequence"),
])  # fmt: skip

TRANSFORMER = grouped("transformer", [
    Network("encoder-layer", _encoder, (3, 4), "sequence", samples=2),
    Network("encoder-layer-norm-first-gelu", lambda: _encoder(norm_first=True, activation="gelu"),
        (3, 4), "sequence", samples=2),
    Network("encoder-layer-no-bias", lambda: _encoder(bias=False), (3, 4), "sequence", samples=2),
    Network("encoder-of-two-layers",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), 2,
            enable_nested_tensor=False), (3, 4), "sequence", samples=2),
    Network("decoder-layer", lambda: nn.TransformerDecoderLayer(4, 2, 5, batch_first=True),
        lambda n: (torch.randn(n, 3, 4), torch.randn(n, 2, 4)), "sequence", samples=2),
    owning("language-model", _language_model,
        {"token": lambda: nn.Embedding(5, 4), "position": lambda: nn.Embedding(3, 4),
            "layer": lambda: _encoder(norm_first=True, activation="gelu"),
            "head": lambda: nn.Linear(4, 5, bias=False)}, lambda n: torch.randint(0, 5, (n, 3)),
        "sequence", samples=2),
    owning("vision-transformer", _vision,
        {"patch": lambda: nn.Conv2d(1, 4, 2, stride=2), "token": [1, 1, 4], "position": [1, 5, 4],
            "layer": lambda: _encoder(norm_first=True, activation="gelu"),
            "norm": lambda: nn.LayerNorm(4), "head": (4, 3)}, (1, 4, 4)),
])  # fmt: skip


def _unrolled(net: Any, x: Tensor) -> Tensor:
    state = None
    for step in x.unbind(1):
        state = net.cell(step, state)
    return net.head(state[0] if isinstance(state, tuple) else state)


def _recurrent(net: Any, x: Tensor) -> Tensor:
    return net.head(net.layer(x)[0])


def _with_state(net: Any, x: Tensor) -> Tensor:
    """A learned first state, expanded over samples, which is the layer's second dimension."""
    return net.head(net.layer(x, net.state.expand(-1, len(x), -1).contiguous())[1][0])


RECURRENT = grouped("recurrent", [
    *[
        owning(
            f"{cell.__name__.lower()}-unrolled",
            _unrolled,
            {"cell": lambda cell=cell: cell(2, 3), "head": (3, 2)},
            (3, 2),
        )
        for cell in (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
    ],
    *[
        owning(
            f"{layer.__name__.lower()}",
            _recurrent,
            {"layer": lambda layer=layer: layer(2, 3, batch_first=True), "head": (3, 2)},
            (3, 2),
            "sequence",
        )
        for layer in (nn.RNN, nn.LSTM, nn.GRU)
    ],
    owning("gru-both-ways", _recurrent,
        {"layer": lambda: nn.GRU(2, 2, batch_first=True, bidirectional=True), "head": (4, 2)},
        (3, 2), "sequence"),
    owning("lstm-two-layers", _recurrent,
        {"layer": lambda: nn.LSTM(2, 2, num_layers=2, batch_first=True), "head": (2, 2)}, (3, 2),
        "sequence"),
    owning("lstm-projected", _recurrent,
        {"layer": lambda: nn.LSTM(2, 3, batch_first=True, proj_size=2), "head": (2, 2)}, (3, 2),
        "sequence"),
    owning("lstm-samples-second",
        lambda net, x: net.head(net.layer(x.transpose(0, 1))[0].transpose(0, 1)),
        {"layer": lambda: nn.LSTM(2, 3), "head": (3, 2)}, (3, 2), "sequence"),
    owning("gru-learned-first-state", _with_state,
        {"layer": lambda: nn.GRU(2, 3, batch_first=True), "state": [1, 1, 3], "head": (3, 2)},
        (3, 2)),
])  # fmt: skip

NETWORKS = [*ATTENTION, *TRANSFORMER, *RECURRENT]
