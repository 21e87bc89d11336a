"""Attention and recurrence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.curvature.zoo.network import Net, Network, grouped, parameter


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


ATTENTION = grouped(
    "attention",
    [
        Network(
            "multihead-batch-first",
            lambda: Net(_self_attention, attention=_mha(batch_first=True)),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "multihead-samples-second",
            lambda: Net(_self_attention_samples_second, attention=_mha()),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "multihead-batch-first-as-many-samples-as-tokens",
            lambda: Net(_self_attention, attention=_mha(batch_first=True)),
            (3, 4),
            "sequence",
        ),
        Network(
            "multihead-samples-second-as-many-samples-as-tokens",
            lambda: Net(_self_attention_samples_second, attention=_mha()),
            (3, 4),
            "sequence",
        ),
        Network(
            "multihead-no-bias-extra-key",
            lambda: Net(
                _self_attention, attention=_mha(bias=False, add_zero_attn=True, batch_first=True)
            ),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "multihead-learned-key",
            lambda: Net(_self_attention, attention=_mha(add_bias_kv=True, batch_first=True)),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "multihead-other-key-size",
            lambda: Net(
                lambda net, x, z: net.attention(x, z, z.flip(1))[0].flatten(1),
                attention=_mha(kdim=3, vdim=3, batch_first=True),
            ),
            lambda n: (torch.randn(n, 2, 4), torch.randn(n, 3, 3)),
        ),
        Network(
            "multihead-padding-mask",
            lambda: Net(_masked, attention=_mha(batch_first=True), head=nn.Linear(4, 2)),
            _padding,
        ),
        Network(
            "multihead-learned-queries",
            lambda: Net(
                _pooled,
                queries=parameter(1, 2, 4),
                attention=_mha(batch_first=True),
                head=nn.Linear(8, 2),
            ),
            (3, 4),
        ),
        Network(
            "scaled-dot-product",
            lambda: Net(
                lambda net, x: _scaled_dot_product(False, net, x),
                project=nn.Linear(3, 12),
                out=nn.Linear(4, 2),
            ),
            (4, 3),
            "sequence",
        ),
        Network(
            "scaled-dot-product-causal",
            lambda: Net(
                lambda net, x: _scaled_dot_product(True, net, x),
                project=nn.Linear(3, 12),
                out=nn.Linear(4, 2),
            ),
            (4, 3),
            "sequence",
        ),
        Network(
            "attention-by-hand",
            lambda: Net(
                _by_hand,
                query=nn.Linear(3, 2),
                key=nn.Linear(3, 2),
                value=nn.Linear(3, 3),
                out=nn.Linear(3, 2),
            ),
            (4, 3),
            "sequence",
        ),
    ],
)

TRANSFORMER = grouped(
    "transformer",
    [
        Network("encoder-layer", _encoder, (3, 4), "sequence", samples=2),
        Network(
            "encoder-layer-norm-first-gelu",
            lambda: _encoder(norm_first=True, activation="gelu"),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "encoder-layer-no-bias",
            lambda: _encoder(bias=False),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "encoder-of-two-layers",
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), 2, enable_nested_tensor=False
            ),
            (3, 4),
            "sequence",
            samples=2,
        ),
        Network(
            "decoder-layer",
            lambda: nn.TransformerDecoderLayer(4, 2, 5, batch_first=True),
            lambda n: (torch.randn(n, 3, 4), torch.randn(n, 2, 4)),
            "sequence",
            samples=2,
        ),
        Network(
            "language-model",
            lambda: Net(
                _language_model,
                token=nn.Embedding(5, 4),
                position=nn.Embedding(3, 4),
                layer=_encoder(norm_first=True, activation="gelu"),
                head=nn.Linear(4, 5, bias=False),
            ),
            lambda n: torch.randint(0, 5, (n, 3)),
            "sequence",
            samples=2,
        ),
        Network(
            "vision-transformer",
            lambda: Net(
                _vision,
                patch=nn.Conv2d(1, 4, 2, stride=2),
                token=parameter(1, 1, 4),
                position=parameter(1, 5, 4),
                layer=_encoder(norm_first=True, activation="gelu"),
                norm=nn.LayerNorm(4),
                head=nn.Linear(4, 3),
            ),
            (1, 4, 4),
        ),
    ],
)


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


RECURRENT = grouped(
    "recurrent",
    [
        *[
            Network(
                f"{cell.__name__.lower()}-unrolled",
                lambda cell=cell: Net(_unrolled, cell=cell(2, 3), head=nn.Linear(3, 2)),
                (3, 2),
            )
            for cell in (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
        ],
        *[
            Network(
                f"{layer.__name__.lower()}",
                lambda layer=layer: Net(
                    _recurrent, layer=layer(2, 3, batch_first=True), head=nn.Linear(3, 2)
                ),
                (3, 2),
                "sequence",
            )
            for layer in (nn.RNN, nn.LSTM, nn.GRU)
        ],
        Network(
            "gru-both-ways",
            lambda: Net(
                _recurrent,
                layer=nn.GRU(2, 2, batch_first=True, bidirectional=True),
                head=nn.Linear(4, 2),
            ),
            (3, 2),
            "sequence",
        ),
        Network(
            "lstm-two-layers",
            lambda: Net(
                _recurrent,
                layer=nn.LSTM(2, 2, num_layers=2, batch_first=True),
                head=nn.Linear(2, 2),
            ),
            (3, 2),
            "sequence",
        ),
        Network(
            "lstm-projected",
            lambda: Net(
                _recurrent,
                layer=nn.LSTM(2, 3, batch_first=True, proj_size=2),
                head=nn.Linear(2, 2),
            ),
            (3, 2),
            "sequence",
        ),
        Network(
            "lstm-samples-second",
            lambda: Net(
                lambda net, x: net.head(net.layer(x.transpose(0, 1))[0].transpose(0, 1)),
                layer=nn.LSTM(2, 3),
                head=nn.Linear(3, 2),
            ),
            (3, 2),
            "sequence",
        ),
        Network(
            "gru-learned-first-state",
            lambda: Net(
                _with_state,
                layer=nn.GRU(2, 3, batch_first=True),
                state=parameter(1, 1, 3),
                head=nn.Linear(3, 2),
            ),
            (3, 2),
        ),
    ],
)

NETWORKS = [*ATTENTION, *TRANSFORMER, *RECURRENT]
