"""Brute force of every curvature of one network of the zoo, for all likelihoods from the same J.

Parameters, inputs and labels are rounded to float32 first, so that both precisions have one truth.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapkernels.likelihoods import resolve
from tests.curvature import check, kron_oracle, op_oracle, oracle
from tests.curvature.op_recording import Recorded, recorded
from tests.curvature.zoo import ZOO
from tests.likelihoods.oracle import drawn

THRESHOLD = 7
# Ops of complex numbers, and one whose gradient torch writes by hand, have no J op by op.
NOT_OP_BY_OP = ("shape-fourier", "cosine-similarity")


class Truth:
    """A network's Jacobians [N, D, P] in float64, and what follows from them."""

    def __init__(self, id: str) -> None:
        self.network = ZOO[id]
        self.model, self.x = self.network.make(torch.float32)
        self._known: dict[Any, Any] = {}

    @cached_property
    def jacobians(self) -> tuple[Tensor, Tensor]:
        """J [N, D, P] and outputs f."""
        return oracle.flat_jacobians(self.model, self.x, self.network.output)

    @cached_property
    def passes(self) -> list[Recorded]:
        """Ops of every sample."""
        return recorded(self.model, self.x, self.network.output)

    @cached_property
    def uses(self) -> dict[str, kron_oracle.Uses]:
        """How each parameter enters."""
        if self.network.id in NOT_OP_BY_OP:
            return kron_oracle.uses_of_layers(self.model, self.x, self.network.output)
        return kron_oracle.uses(self.passes)

    def neurons(self, name: str, otherwise: Tensor) -> Tensor:
        """The entries [O, I] of a weight as its first use has them; `otherwise` if it is none."""
        for use in (use for sample in self.uses[name].samples for use in sample):
            if use.x is not None and not use.embedding:
                return use.entries.flatten(0, 1)
        return otherwise

    @cached_property
    def second(self) -> Tensor:
        """[N, D, P, P]: the Hessian of each output."""
        model = oracle.in_double(self.model)
        parameters = list(oracle.trainable(model).values())
        samples: list[Tensor] = []
        for sample in oracle.samples(self.x):
            f = _twice_differentiable(model, sample, self.network.output)
            samples.append(torch.stack([_second(entry, parameters) for entry in f.reshape(-1)]))
        return torch.stack(samples)

    def fits(self, noise: str) -> bool:
        """Whether the likelihood can be meant for such outputs."""
        return check.NOISES[noise].fits(self.problem("gaussian", torch.float32).f)

    def problem(self, noise: str, dtype: torch.dtype) -> check.Problem:
        """The network with labels in a precision."""
        key = "problem", noise, dtype
        if key not in self._known:
            single = check.of(self.model, self.x, noise, self.network.output)
            made = single
            if dtype == torch.float64:
                model = oracle.in_double(self.model)
                made = check.of(model, _double(self.x), noise, self.network.output)
                made = replace(made, y=_double(single.y))
            self._known[key] = made
        return self._known[key]

    def moments(self, noise: str, dtype: torch.dtype, method: str) -> list[tuple[Tensor, Tensor]]:
        """M [N, D, D] at the outputs, for which the curvature is sum_n J_n^T M_n J_n.

        Of a first and a second pass over the data, which draw samples of their own; drawn for all
        samples together, or for one after the other.
        """
        key = "moments", noise, dtype if method in ("mc", "signs") else None, method
        if key not in self._known:
            self._known[key] = self._moments(self.problem(noise, dtype), method)
        return self._known[key]

    def _moments(self, problem: check.Problem, method: str) -> list[tuple[Tensor, Tensor]]:
        f, y = self.jacobians[1], problem.y
        if method == "exact":
            h = problem.noise.hessian(f, y)
            return [(h, h)]
        if method == "empirical":
            s = problem.noise.score(f, y)
            return [(_outer(s), _outer(s))]
        likelihood, f = resolve(problem.likelihood), problem.f
        found: list[tuple[Tensor, Tensor]] = []
        for size in (len(f), 1):
            generator = torch.Generator().manual_seed(0)
            draws: list[Tensor] = []
            for _ in range(2):
                columns = [
                    drawn(likelihood.columns(some, label), some, generator)[0]
                    if method == "signs"
                    else likelihood.sampled_column(some, generator, label)[0]
                    for some, label in zip(f.split(size), y.split(size), strict=True)
                ]
                draws.append(_outer(torch.cat(columns).reshape(len(f), -1).double()))
            found.append((draws[0], draws[1]))
        return found

    def matrix(self, m: Tensor) -> Tensor:
        """[P, P]."""
        j = self.jacobians[0]
        return torch.einsum("ncp,ncd,ndq->pq", j, m, j)

    def hessian(self, noise: str, dtype: torch.dtype) -> Tensor:
        """[P, P] of the summed loss: J^T H J and the second derivatives of the outputs."""
        problem, f = self.problem(noise, dtype), self.jacobians[1]
        h = oracle.output_hessian(f, problem.y, problem.loss)
        score = problem.noise.score(f, problem.y)
        return self.matrix(h) + torch.einsum("nd,ndpq->pq", score, self.second)

    def loss(self, noise: str, dtype: torch.dtype) -> Tensor:
        """Of all samples."""
        problem, f = self.problem(noise, dtype), self.jacobians[1]
        y = problem.y.double() if problem.y.is_floating_point() else problem.y
        return problem.loss(f, y)

    def loss_size(self, noise: str, dtype: torch.dtype) -> Tensor:
        """What rounding errors of the loss scale with, as its terms may cancel."""
        problem, f = self.problem(noise, dtype), self.jacobians[1]
        score = problem.noise.score(f, problem.y)
        return self.loss(noise, dtype).abs() + (score * f.reshape(score.shape)).abs().sum()

    def gradient(self, noise: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """Of the summed loss."""
        problem, (j, f) = self.problem(noise, dtype), self.jacobians
        flat = torch.einsum("nd,ndp->p", problem.noise.score(f, problem.y), j)
        return oracle.diag(flat.diag(), self.model)

    def gradient_size(self, noise: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """The same with all terms positive: what rounding errors of the gradient scale with."""
        problem, (j, f) = self.problem(noise, dtype), self.jacobians
        score = problem.noise.score(f, problem.y)
        flat = torch.einsum("nd,ndp->p", score.abs(), j.abs())
        return oracle.diag(flat.diag(), self.model)

    def single_error(self, noise: str, method: str) -> float:
        """How far autograd itself is off where the model runs in float32, one sample at a time.

        That is the error of the diagonal for `method` exact, empirical, mc, signs or hessian.
        """
        key = "single", noise, method
        if key not in self._known:
            problem, model = self.problem(noise, torch.float32), copy.deepcopy(self.model)
            parameters = list(oracle.trainable(model).values())
            total = torch.zeros(self.jacobians[0].shape[2:], dtype=torch.float64)
            for n, y in enumerate(problem.y.split(1)):
                sample = _mapped(self.x, lambda value, n=n: value[n : n + 1].clone())
                f = _twice_differentiable(model, sample, self.network.output)
                if method == "hessian":
                    total += _second(problem.loss(f, y), parameters).diagonal()
                    continue
                rows = oracle.jacobian(f, parameters)
                j = torch.cat([row.flatten(1) for row in rows], 1).double()
                noise_of = problem.noise
                if method == "exact":
                    m = noise_of.hessian(f, y)[0]
                elif method == "empirical":
                    m = _outer(noise_of.score(f, y))[0]
                else:
                    m = self.moments(noise, torch.float32, method)[0][0][n]
                total += torch.einsum("cp,cd,dp->p", j, m, j)
            if method == "hessian":
                true = self.hessian(noise, torch.float32)
            else:
                true = self.matrix(self.moments(noise, torch.float32, method)[0][0])
            self._known[key] = check.error(self.diag(total.diag()), self.diag(true))
        return self._known[key]

    def covariance(self, variance: Tensor) -> Tensor:
        """[N, D, D] of the linearised outputs, for variances [P] of the parameters."""
        j = self.jacobians[0]
        return torch.einsum("ndp,p,nep->nde", j, variance, j)

    def propagated(self, variance: Tensor) -> Tensor:
        """Variances of the outputs, each op passing on variances alone."""
        f = self.jacobians[1]
        return (self.squares @ variance).reshape(f.shape)

    @cached_property
    def squares(self) -> Tensor:
        """[N, D, P]: the approximate diagonal for each output of each sample alone."""
        f = self.jacobians[1].reshape(len(self.jacobians[1]), -1)
        found: list[Tensor] = []
        for n, d in torch.cartesian_prod(*map(torch.arange, f.shape)).tolist():
            m = f.new_zeros(*f.shape, f.shape[1])
            m[n, d, d] = 1.0
            found.append(torch.cat([v.flatten() for v in self.op_by_op(m, 0).values()]))
        return torch.stack(found).reshape(*f.shape, -1)

    def op_by_op(self, m: Tensor, threshold: float) -> dict[str, Tensor]:
        """The approximate diagonal, or the mixed one."""
        return op_oracle.diagonal(self.model, self.passes, m, threshold)

    def diag(self, matrix: Tensor) -> dict[str, Tensor]:
        return oracle.diag(matrix, self.model)

    def kron(self, m: Tensor, reduce: bool) -> dict[str, Tensor]:
        """B ⊗ A of each parameter as a matrix."""
        matrix, found = self.matrix(m), {}
        for name, uses in self.uses.items():
            block = uses.block(m, oracle.block(matrix, self.model, name), reduce)
            assert block is not None, f"{name} has no Kronecker factors"
            found[name] = block
        return found


@dataclass(frozen=True)
class Case:
    """A network with a likelihood in a precision."""

    truth: Truth
    noise: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.truth.network.id}, {self.noise}, {self.dtype}"

    @property
    def problem(self) -> check.Problem:
        return self.truth.problem(self.noise, self.dtype)

    def moments(self, method: str) -> list[tuple[Tensor, Tensor]]:
        return self.truth.moments(self.noise, self.dtype, method)

    def matrices(self, method: str) -> list[Tensor]:
        """The curvature matrix, for each way to draw."""
        return [self.truth.matrix(m) for m, _ in self.moments(method)]

    def diagonals(self, method: str) -> list[dict[str, Tensor]]:
        """Its diagonal, or the approximate or mixed one."""
        if method in ("approx", "mixed"):
            ((m, _),) = self.moments("exact")
            return [self.truth.op_by_op(m, THRESHOLD if method == "mixed" else 0)]
        return [self.truth.diag(m) for m in self.matrices(method)]

    def hessian(self) -> Tensor:
        return self.truth.hessian(self.noise, self.dtype)

    def single_error(self, method: str) -> float:
        """Of autograd in float32, for the method; the worst of all where it has no such method."""
        if method in ("approx", "mixed"):
            return max(map(self.single_error, ("exact", "empirical", "hessian")))
        known = method if method in ("empirical", "mc", "signs", "hessian") else "exact"
        return self.truth.single_error(self.noise, known)


def _twice_differentiable(
    model: nn.Module, sample: oracle.Inputs, output: oracle.Select | None
) -> Tensor:
    """The output, by the only attention with a second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return oracle.call(model, sample, output)


def _second(entry: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """[P, P]: the Hessian of one number."""
    first = grad(entry, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
    flat = torch.cat([g.to_dense().reshape(-1) for g in first])
    rows = oracle.jacobian(flat, parameters)
    return torch.cat([row.reshape(len(flat), -1) for row in rows], 1)


def _outer(s: Tensor) -> Tensor:
    return s.unsqueeze(2) * s.unsqueeze(1)


def _double(value: Any) -> Any:
    return _mapped(value, lambda one: one.double() if one.is_floating_point() else one)


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(entry, function) for name, entry in value.items()}
    return tuple(_mapped(one, function) for one in value) if isinstance(value, tuple) else value
