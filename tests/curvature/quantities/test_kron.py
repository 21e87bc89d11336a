"""Kronecker factors: their scale, what they share, merges and refusals."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.curvature.results.eigenbasis import eigenbases
from tests.curvature import oracle
from tests.curvature.check import close, made
from tests.curvature.truth import Truth
from tests.curvature.zoo import ZOO, Net

NETWORKS = (
    *("linear-3d", "conv2d-groups", "conv2d-reflect", "conv-transpose1d-groups", "conv3d-uneven"),
    *("residual", "encoder-layer", "linear-positions-out", "image-to-image", "one-sample"),
)
SHARINGS = ("expand", "reduce")
Sharing = Literal["expand", "reduce"]


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("id", NETWORKS)
def test_factors_of_layers(id: str, sharing: Sharing) -> None:
    """A is an average and B a sum; test_support has their products on the zoo."""
    truth = Truth(id)
    problem = truth.problem("gaussian", torch.float64)
    ((h, _),) = truth.moments("gaussian", torch.float64, "exact")
    found = lk.kron(problem.model, problem.data, "gaussian", "exact", sharing)
    assert list(found) == list(truth.uses)
    for name, factors in found.items():
        if not truth.uses[name].exact:
            a, b = truth.uses[name].factors(h, sharing == "reduce")
            close(factors.output, b)
            assert (factors.input is None) == (a.shape[1] == 1)
            if factors.input is not None:
                close(factors.input, a)


SINGLE_POSITION = {
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (3,)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(4, 6, 2, groups=2), nn.Flatten()), (4, 2, 2)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 1, groups=2)), (4, 1)),
    "product": (lambda: Net(lambda net, x: x @ net.w, w=nn.Parameter(torch.randn(3, 4))), (3,)),
}


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("name", SINGLE_POSITION)
def test_exact_for_one_sample_at_one_position(name: str, sharing: Sharing) -> None:
    build, shape = SINGLE_POSITION[name]
    model, x = build().double(), torch.randn(1, *shape, dtype=torch.float64)
    y = oracle.labels(model(x).detach(), "categorical")
    cases: list[tuple[Literal["exact", "empirical"], Tensor]] = [
        ("exact", oracle.ggn(model, x, y, "categorical")),
        ("empirical", oracle.empirical(model, x, y, "categorical")),
    ]
    for method, matrix in cases:
        found = lk.kron(model, (x, y), "categorical", method, sharing)
        for parameter, factors in found.items():
            block = oracle.block(matrix, model, parameter)
            # A group's factors know nothing of other groups.
            inside = block * (factors.dense() != 0)
            close(factors.dense(), block if factors.groups == 1 else inside)
            v = torch.randn(2, *factors.shape, dtype=torch.float64)
            close(factors.product(v).flatten(1), v.flatten(1) @ factors.dense())
            close(factors.from_matrix(factors.to_matrix(v)), v)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_embedding_is_a_linear_layer_on_one_hot_tokens(sharing: Sharing) -> None:
    table = nn.Embedding(5, 3, padding_idx=1).double()
    head = nn.Linear(3, 2).double()
    tokens = torch.tensor([[0, 1, 4, 4], [2, 2, 1, 3]])
    hot = F.one_hot(tokens, 5).double() * (tokens != 1).unsqueeze(-1)
    body = nn.Linear(5, 3, bias=False).double()
    body.weight.data = table.weight.data.T
    one = lk.kron(nn.Sequential(table, nn.Tanh(), head), tokens, method="exact", sharing=sharing)
    two = lk.kron(nn.Sequential(body, nn.Tanh(), head), hot, method="exact", sharing=sharing)
    diagonal = one["0.weight"].input
    assert diagonal is not None and two["0.weight"].input is not None
    close(torch.diag_embed(diagonal) if sharing == "expand" else diagonal, two["0.weight"].input)
    # The Linear layer has columns at padding, where its input is zero.
    read = lk.kron(nn.Sequential(table, nn.Tanh()), tokens, method="exact", sharing=sharing)
    assert read["0.weight"].output.shape == (1, 3, 3)


def test_calls_of_a_module_that_get_the_same_columns() -> None:
    layers = nn.ModuleList(nn.Linear(3, 2, dtype=torch.float64) for _ in range(3))
    one = Net(lambda net, x: net.layer(x) + net.layer(2 * x) + net.layer(3 * x), layer=layers[0])
    three = Net(
        lambda net, x: net.a(x) + net.b(2 * x) + net.c(3 * x),
        **dict(zip("abc", layers, strict=True)),
    )
    x = torch.randn(4, 3, dtype=torch.float64)
    found = lk.kron(one, [x[:1], x[1:]], method="exact")
    apart = lk.kron(three, x, method="exact")
    for name in ("weight", "bias"):
        parts = torch.stack([apart[f"{layer}.{name}"].output for layer in "abc"])
        close(found[f"layer.{name}"].output, parts.sum(0))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_weight_and_bias_have_one_factor(sharing: Sharing) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)).double()
    data = torch.randn(2, 4, 2, 3, 3, dtype=torch.float64)
    found = lk.kron(model, list(data), method="exact", sharing=sharing)
    alone = lk.kron(model, list(data), method="exact", sharing=sharing, params=["0.bias", "3.bias"])
    for layer in ("0", "3"):
        assert found[f"{layer}.weight"].output is found[f"{layer}.bias"].output
        close(found.dense(f"{layer}.bias"), alone.dense(f"{layer}.bias"))
    merged = found.merge(found)
    bases = eigenbases(merged)
    for layer in ("0", "3"):
        weight, bias = f"{layer}.weight", f"{layer}.bias"
        assert merged[weight].output is merged[bias].output
        assert bases[weight].output is bases[bias].output
        close(bases[bias].dense(), 2 * found.dense(bias))
        close(bases[weight].dense(), 2 * found.dense(weight))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_bias_that_some_batches_leave_out(order: tuple[int, ...]) -> None:
    """What weight and bias had together does not grow by what one of them has alone."""
    layer = nn.Linear(3, 2, dtype=torch.float64)
    net = Net(
        lambda net, x: net.layer(x) if x.shape[1] != 3 else x @ net.layer.weight.T, layer=layer
    )
    data = [torch.randn(2, length, 3, dtype=torch.float64) for length in (2, 3, 4)]
    batches = [data[k] for k in order]
    found = lk.kron(net, batches, method="exact")
    apart = [lk.kron(net, batch, method="exact") for batch in batches]
    for name in found:
        parts = torch.stack([one[name].output for one in apart])
        close(found[name].output, parts.sum(0))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_columns_as_windows(sharing: Sharing) -> None:
    """Images so large that columns are carried as windows, and a bottleneck."""
    convs = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Conv2d(4, 1, 3),
    )
    narrow = nn.Sequential(
        nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 144), nn.Unflatten(1, (1, 12, 12))
    )
    for model, shape in ((convs, (1, 12, 12)), (nn.Sequential(narrow, *convs), (5,))):
        model = model.double().eval()
        x = torch.randn(1, *shape, dtype=torch.float64)
        found = lk.kron(model, x, method="exact", sharing=sharing)
        wanted = lk.kron(model, x, method="exact", sharing=sharing, route="autograd")
        corrected = lk.kron_corrected(model, x, method="exact", basis=wanted)
        other = lk.kron_corrected(model, x, method="exact", basis=wanted, route="autograd")
        for name in wanted:
            close(found[name].output, wanted[name].output)
            close(corrected[name].values, other[name].values)


def test_merge_of_a_branch_that_some_shards_never_take() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(net.a(x))
        return net.b(h.mT).mT if x.shape[1] == 3 else h

    model = Net(run, a=nn.Linear(2, 2), b=nn.ConvTranspose1d(2, 2, 1)).double()
    low, high = (torch.randn(2, length, 2, dtype=torch.float64) for length in (2, 3))
    whole = lk.kron(model, [low, high], method="exact")
    shards = [lk.kron(model, part, method="exact") for part in (low, high)]
    assert not shards[0]["b.weight"].used
    for merged in (shards[0].merge(shards[1]), shards[1].merge(shards[0])):
        for name in whole:
            close(merged.dense(name), whole.dense(name))


def test_a_parameter_that_is_not_used_has_a_block_of_zeros() -> None:
    model, x, y = made(ZOO["parameter-not-used"])
    found = lk.kron(model, (x, y), method="exact")
    assert not found["idle"].used and not found.dense("idle").any()
    assert found.dense("idle").shape == (4, 4)


@pytest.mark.parametrize(
    ("id", "name", "words"),
    [
        ("weight-norm", "original0", "makes a weight out of it"),
        ("autoencoder-tied", "encoder.weight", "different layouts"),
        ("cosine-classifier", "w", "div in the model"),
    ],
)
def test_refused(id: str, name: str, words: str) -> None:
    model, x, y = made(ZOO[id])
    with pytest.raises(lk.Refused, match=f"{name} has no Kronecker factors.*{words}.*diag, blocks"):
        lk.kron(model, (x, y))


def test_refuses_a_block_that_is_too_large() -> None:
    model = Net(lambda net, x: x + net.shift, shift=nn.Parameter(torch.zeros(1 << 15)))
    with pytest.raises(lk.Refused, match=r"shift would need a factor \[32768, 32768\] of 4.0 GiB"):
        lk.kron(model, torch.zeros(1, 1 << 15))


def test_arguments() -> None:
    model, x, _ = made(ZOO["linear"])
    with pytest.raises(ValueError, match="sharing='both'"):
        lk.kron(model, x, sharing="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="method='approx'"):
        lk.kron(model, x, method="approx")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'mc expand, .* and 'mc reduce, "):
        a = lk.kron(model, x)
        a.merge(lk.kron(model, x, sharing="reduce"))


@pytest.mark.parametrize("id", ["conv2d-groups", "module-twice", "embedding-padding-idx"])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_corrected_eigenvalues_are_no_worse(id: str, sharing: Sharing) -> None:
    """Than the products of eigenvalues, in this basis."""
    model, x, y = made(ZOO[id])
    plain = lk.kron(model, (x, y), method="exact", sharing=sharing)
    found = lk.kron_corrected(model, (x, y), method="exact", sharing=sharing)
    matrix = oracle.ggn(model, x, y)
    for name, basis in found.items():
        block = oracle.block(matrix, model, name)
        error = (plain.dense(name) - block).norm()
        assert (basis.dense() - block).norm() <= error + 1e-12 * block.norm()


def test_corrected_eigenvalues_add_up_in_one_basis() -> None:
    model, x, y = made(ZOO["conv2d-stride"])
    assert isinstance(x, Tensor)
    basis = lk.kron(model, x, method="exact")
    whole = lk.kron_corrected(model, x, method="exact", basis=basis)
    parts = [lk.kron_corrected(model, p, method="exact", basis=basis) for p in x.split(1)]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    for name in whole:
        close(merged[name].values, whole[name].values)
    with pytest.raises(ValueError, match="one basis"):
        whole.merge(lk.kron_corrected(model, x[:1], method="exact"))
    with pytest.raises(ValueError, match="read twice"):
        lk.kron_corrected(model, iter([x]), method="exact")
