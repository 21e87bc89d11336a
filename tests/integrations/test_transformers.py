"""Decoders of Hugging Face as they come, with their cache of keys, against brute force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapkernels as lk
from lapkernels.likelihoods import resolve
from tests.curvature import check, oracle

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

COMMON = {
    "vocab_size": 50,
    "num_labels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8},
    "Llama": SIZES,
    "Qwen2": SIZES,
    "Gemma": SIZES,
    "Mistral": {**SIZES, "sliding_window": 3},
}
# All but GPT-2 compute their norms in float32, whatever their parameters are.
TOLERANCE = {"GPT2": 1e-10}
SINGLE = 100 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Problem:
    """A classifier of sequences, inputs and labels, and Jacobians of single samples."""

    name: str
    model: nn.Module
    inputs: dict[str, Tensor]
    y: Tensor
    jacobians: dict[str, Tensor]
    f: Tensor

    @property
    def hessian(self) -> Tensor:
        return oracle.output_hessian(self.f, self.y, "categorical")

    def diagonal(self, m: Tensor) -> dict[str, Tensor]:
        """Of the sum of Jᵀ M J, with M [N, D, D] at the outputs."""
        formula = "nc...,ncd,nd...->..."
        return {name: torch.einsum(formula, j, m, j) for name, j in self.jacobians.items()}

    def call(self, function: Callable[..., Any], **options: Any) -> Any:
        with check.quiet():
            return function(
                self.model, (self.inputs, self.y), "categorical", output="logits", **options
            )

    def assert_close(self, found: dict[str, Tensor], true: dict[str, Tensor]) -> None:
        check.assert_close(found, true, TOLERANCE.get(self.name, SINGLE))


@cache
def made(name: str, padded: bool) -> Problem:
    config = getattr(transformers, f"{name}Config")(**OPTIONS[name], **COMMON)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForSequenceClassification")(config).double().eval()
        tokens = torch.randint(3, 50, (3, 5))
    inputs = {"input_ids": tokens}
    if padded:
        mask = (torch.arange(5) < torch.tensor([[3], [5], [4]])).long()
        inputs = {"input_ids": tokens * mask, "attention_mask": mask}
    assert model(**inputs).past_key_values is not None
    jacobians, f = oracle.jacobians(model, inputs, lambda out: out.logits)
    return Problem(name, model, inputs, oracle.labels(f, "categorical"), jacobians, f)


@pytest.fixture(params=[True, False], ids=["padded", "whole"])
def problem(request: pytest.FixtureRequest, name: str) -> Problem:
    return made(name, request.param)


@pytest.fixture(params=OPTIONS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("route", ["auto", "autograd"])
def test_exact_diagonal(problem: Problem, route: str) -> None:
    found = problem.call(lk.diag, method="exact", route=route)
    problem.assert_close(found, problem.diagonal(problem.hessian))


def test_sampled_diagonal(problem: Problem) -> None:
    """Labels are drawn for all samples together, or for one after the other."""
    likelihood, errors = resolve("categorical"), list[float]()
    found = problem.call(lk.diag, method="mc", generator=torch.Generator().manual_seed(0))
    for size in (len(problem.f), 1):
        generator = torch.Generator().manual_seed(0)
        s = torch.cat(
            [
                likelihood.sampled_column(f, generator, y)[0]
                for f, y in zip(problem.f.split(size), problem.y.split(size), strict=True)
            ]
        )
        true = problem.diagonal(s.unsqueeze(2) * s.unsqueeze(1))
        errors.append(check.error(found, true))
    assert min(errors) <= TOLERANCE.get(problem.name, SINGLE)


def test_kronecker_factors(problem: Problem) -> None:
    found = problem.call(lk.kron, method="exact")
    true = factors(problem)
    assert len(true) == (9 if problem.name == "GPT2" else 15)
    for name, (a, b) in true.items():
        one = found[name]
        pairs = {"a": one.input * found.count, "b": one.output}, {"a": a[None], "b": b[None]}
        problem.assert_close(*pairs)


def factors(problem: Problem) -> dict[str, tuple[Tensor, Tensor]]:
    """By weight: the sums over samples of x xᵀ, a mean over positions, and of Σ s M sᵀ."""
    model, found = problem.model, dict[str, tuple[Tensor, Tensor]]()
    calls: list[tuple[str, Tensor, Tensor]] = []
    hooks = [
        module.register_forward_hook(
            lambda _, inputs, z, name=name: calls.append((f"{name}.weight", inputs[0], z))
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | transformers.pytorch_utils.Conv1D)
    ]
    for sample, m in zip(oracle.samples(problem.inputs), problem.hessian, strict=True):
        calls.clear()
        f = oracle.call(model, sample, lambda out: out.logits)
        for name, x, z in calls:
            x, s = x[0].detach(), oracle.jacobian(f, [z])[0][:, 0]  # [T, I], [D, T, O]
            a, b = found.get(name, (0.0, 0.0))
            b = b + torch.einsum("cto,cd,dtp->op", s, m, s)
            found[name] = a + x.mT @ x / len(x), b
    for hook in hooks:
        hook.remove()
    return found
