"""Every public curvature function with every method, as it is called and as brute force has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapkernels as lk
from tests.curvature import check, oracle
from tests.curvature.truth import THRESHOLD, Case, Truth

Named = Mapping[str, Tensor]
# What was found and what is true, to be compared name by name.
Pair = tuple[Named, Named]
METHODS = ("exact", "mc", "empirical")
DIAGONALS: dict[str, dict[str, Any]] = {
    "exact": {},
    "mc": {"method": "mc"},
    "empirical": {"method": "empirical"},
    "approx": {"method": "approx"},
    "mixed": {"method": "mixed", "threshold": THRESHOLD},
}


@dataclass(frozen=True)
class Turn:
    """Options that need not be crossed with all others: every network has its turn of each."""

    number: int

    @property
    def single(self) -> bool:
        """Whether to run in float32 too."""
        return self.number % 2 == 0

    @property
    def route(self) -> str:
        return ("auto", "autograd")[self.number // 2 % 2]

    @property
    def sharing(self) -> str:
        return ("expand", "reduce")[self.number // 4 % 2]

    @property
    def by(self) -> str:
        return ("layer", "parameter", "neuron", "kernel")[self.number // 2 % 4]

    @property
    def diagonal(self) -> str:
        return tuple(DIAGONALS)[self.number % 5]

    @property
    def budget(self) -> dict[str, int]:
        """Whether columns go one at a time, which they do in float64 alone."""
        return {"memory_budget": 1} if self.number % 4 == 1 else {}


@dataclass(frozen=True)
class Variant:
    """One call. `compare` has what it found and the truth, perhaps one for each way to draw."""

    column: str
    call: Callable[[check.Problem, dict[str, Any]], Any]
    compare: Callable[[Case, Any], list[Pair]]
    options: dict[str, Any] = field(default_factory=dict)
    likelihood: bool = True
    gradient: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """Whose rounding errors this has: a gradient is as well known as its squares are."""
        drawn = self.options.get("sampler", "labels")
        method = "signs" if drawn == "signs" else self.options.get("method", "exact")
        return (method, "empirical") if self.gradient else (method,)

    def run(self, problem: check.Problem) -> Any:
        options = dict(self.options)
        if self.likelihood:
            options["generator"] = torch.Generator(problem.f.device).manual_seed(0)
        with check.quiet():
            return self.call(problem, options)

    def error(self, case: Case, found: Any) -> float:
        """The largest relative error of any part."""
        return min(check.error(*pair) for pair in self.compare(case, found))


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    def call(problem: check.Problem, options: dict[str, Any]) -> Any:
        given = {"likelihood": problem.likelihood, "output": problem.output, **options}
        return function(problem.model, problem.data, *arguments, **given)

    return call


def _diagonals(turn: Turn) -> Iterator[Variant]:
    def compare(method: str, case: Case, found: Any) -> list[Pair]:
        return [(found, true) for true in case.diagonals(method)]

    def hessian(case: Case, found: Any) -> list[Pair]:
        return [(found, case.truth.diag(case.hessian()))]

    def with_gradient(method: str, case: Case, found: Any) -> list[Pair]:
        true = case.truth.gradient(case.noise, case.dtype)
        size = case.truth.gradient_size(case.noise, case.dtype)
        # Both may cancel to nothing: errors are relative to the size of their terms.
        shifted = {name: size[name] + g - true[name] for name, g in found.gradient.items()}
        loss = case.truth.loss_size(case.noise, case.dtype)
        known = {"loss": loss, **_prefixed(size)}
        own = {"loss": loss + found.loss - case.truth.loss(case.noise, case.dtype)}
        own.update({**_prefixed(shifted), **found.diagonal})
        return [(own, {**known, **diagonal}) for diagonal in case.diagonals(method)]

    call = _called(lk.diag)
    by_turns = {"mc": {"route": turn.route}, "empirical": {"route": turn.route}}
    for method, options in DIAGONALS.items():
        chosen = {**options, **by_turns.get(method, {})}
        yield Variant(method, call, partial(compare, method), chosen)
    exact = partial(compare, "exact")
    yield Variant("exact", call, exact, {"route": "autograd"})
    yield Variant("by rules", call, exact, {"route": "rules"})
    yield Variant("mc", call, partial(compare, "signs"), {"method": "mc", "sampler": "signs"})
    yield Variant("Hessian", call, hessian, {"method": "hessian"})
    yield Variant(
        turn.diagonal,
        _called(lk.gradient_and_diag),
        partial(with_gradient, turn.diagonal),
        {"method": "exact", **DIAGONALS[turn.diagonal]},
        gradient=True,
    )


def _prefixed(gradient: Named) -> Named:
    return {f"gradient of {name}": g for name, g in gradient.items()}


def _whole(turn: Turn) -> Iterator[Variant]:
    def compare(method: str, case: Case, found: Any) -> list[Pair]:
        return [({"": found.matrix}, {"": m}) for m in case.matrices(method)]

    def hessian(case: Case, found: Any) -> list[Pair]:
        return [({"": found.matrix}, {"": case.hessian()})]

    for method in METHODS:
        options = {"method": method, "route": turn.route}
        yield Variant("full", _called(lk.full), partial(compare, method), options)
    yield Variant("Hessian", _called(lk.full), hessian, {"method": "hessian"})


def _blocks(turn: Turn) -> Iterator[Variant]:
    def compare(by: str, method: str, case: Case, found: Any) -> list[Pair]:
        return [
            (found, {key: _block(case.truth, found, by, m, key) for key in found})
            for m in case.matrices(method)
        ]

    for by, method in dict.fromkeys((("neuron", "exact"), *((turn.by, m) for m in METHODS))):
        yield Variant(
            "neurons" if by == "neuron" else "blocks",
            _called(lk.blocks),
            partial(compare, by, method),
            {"by": by, "method": method, "route": turn.route},
        )


def _block(truth: Truth, found: lk.Blocks, by: str, matrix: Tensor, key: str) -> Tensor:
    if by == "layer":
        return oracle.layer_block(matrix, truth.model, found.names[key])
    if by == "parameter":
        return oracle.block(matrix, truth.model, key)
    parameter = oracle.trainable(truth.model)[key]
    entries = torch.arange(parameter.numel())
    if parameter.dim() < 2:
        entries = entries.unsqueeze(1)
    elif by == "kernel":
        entries = entries.reshape(*parameter.shape[:2], -1)
    else:
        # A parameter that a weight is applied to has rows for neurons, or those of the product.
        rows = entries.reshape(parameter.shape[0], -1)
        own = truth.neurons(key, rows)
        entries = own if len(own) == len(found[key]) else rows
    return oracle.gather_blocks(oracle.block(matrix, truth.model, key), entries)


def _kroneckers(turn: Turn) -> Iterator[Variant]:
    reduce = turn.sharing == "reduce"

    def compare(method: str, case: Case, found: Any) -> list[Pair]:
        dense = {name: found.dense(name) for name in found}
        return [(dense, case.truth.kron(m, reduce)) for m, _ in case.moments(method)]

    def corrected(method: str, case: Case, found: Any) -> list[Pair]:
        truth = case.truth
        return [
            _in_basis(truth, found, truth.kron(first, reduce), truth.matrix(second))
            for first, second in case.moments(method)
        ]

    for method in METHODS:
        options = {"method": method, "sharing": turn.sharing, "route": turn.route}
        yield Variant("kron", _called(lk.kron), partial(compare, method), options)
        yield Variant("kron", _called(lk.kron_corrected), partial(corrected, method), options)


def _in_basis(truth: Truth, found: Any, factors: Named, matrix: Tensor) -> Pair:
    """Eigenvectors are orthonormal and diagonalise the factors; values are those of the matrix."""
    parts: dict[str, Tensor] = {}
    true: dict[str, Tensor] = {}
    for name, one in found.items():
        size = one.values.numel()
        unit = torch.eye(size, dtype=one.values.dtype).reshape(size, *one.factors.shape)
        # Row p has entry p of the parameter in the basis.
        q = one.rotate(one.factors.to_matrix(unit)).flatten(1).double()
        parts[f"{name}: product"], true[f"{name}: product"] = q.T @ q, torch.eye(size).double()
        turned = q.T @ factors[name] @ q
        parts[f"{name}: basis"], true[f"{name}: basis"] = turned.diagonal().diag(), turned
        block = oracle.block(matrix, truth.model, name)
        parts[name], true[name] = one.values.flatten(), (q.T @ block @ q).diagonal()
    return parts, true


def _operators() -> Iterator[Variant]:
    def size(problem: check.Problem) -> int:
        return sum(p.numel() for p in oracle.trainable(problem.model).values())

    def product(problem: check.Problem, options: dict[str, Any]) -> Any:
        like = next(iter(problem.model.parameters()))
        draws = options["generator"]
        v = torch.randn(
            size(problem), 2, generator=draws, device=draws.device, dtype=torch.float32
        ).to(like)
        budget = {name: value for name, value in options.items() if name == "memory_budget"}
        return v, _called(lk.ggn_product, v)(problem, budget)

    def product_true(case: Case, found: Any) -> list[Pair]:
        (matrix,) = case.matrices("exact")
        return [({"": found[1]}, {"": matrix @ found[0].double()})]

    def low_rank(problem: check.Problem, options: dict[str, Any]) -> Any:
        return _called(lk.low_rank, min(3, size(problem)))(problem, options)

    def low_rank_true(case: Case, found: Any) -> list[Pair]:
        (matrix,) = case.matrices("exact")
        values = torch.linalg.eigvalsh(matrix).flip(0)[: len(found.values)]
        products = {"values": found.values, "vectors": found.vectors.T @ found.vectors}
        return [(products, {"values": values, "vectors": torch.eye(len(values)).double()})]

    yield Variant("low rank", product, product_true)
    yield Variant("low rank", low_rank, low_rank_true)


def _predictive() -> Iterator[Variant]:
    def call(function: Any, problem: check.Problem, options: dict[str, Any]) -> Any:
        draws, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
        parameters = oracle.trainable(problem.model).items()
        drawn = {
            n: torch.rand(p.shape, generator=draws, device=cpu, dtype=torch.float32)
            for n, p in parameters
        }
        variance = {n: drawn[n].to(p) + 0.125 for n, p in parameters}
        found = function(problem.model, problem.x, variance, output=problem.output, **options)
        return torch.cat([v.flatten() for v in variance.values()]).double(), found

    def joint(case: Case, found: Any) -> list[Pair]:
        return [({"": found[1]}, {"": case.truth.covariance(found[0])})]

    def marginal(case: Case, found: Any) -> list[Pair]:
        true = case.truth.covariance(found[0]).diagonal(dim1=1, dim2=2)
        return [({"": found[1]}, {"": true.reshape(found[1].shape)})]

    def propagated(case: Case, found: Any) -> list[Pair]:
        return [({"": found[1]}, {"": case.truth.propagated(found[0])})]

    functions = (lk.predictive_variance, marginal), (lk.predictive_covariance, joint)
    for options in ({}, {"route": "autograd"}):
        for function, compared in functions:
            yield Variant("predictive", partial(call, function), compared, options, False)
    forward = partial(call, lk.propagated_variance)
    yield Variant("propagated", forward, propagated, likelihood=False)


def variants(turn: Turn) -> list[Variant]:
    """All calls of one network with one likelihood."""
    found = [
        *_diagonals(turn),
        *_kroneckers(turn),
        *_blocks(turn),
        *_whole(turn),
        *_operators(),
        *_predictive(),
    ]
    # Variances go forward without columns.
    return [
        one if one.column == "propagated" else replace(one, options={**one.options, **turn.budget})
        for one in found
    ]
