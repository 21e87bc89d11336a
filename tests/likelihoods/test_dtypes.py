"""Results have the dtype and device of the outputs; half precision is computed in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapkernels.likelihoods import LossFunction
from tests.likelihoods.cases import Case, every_case
from tests.likelihoods.oracle import assert_close, drawn, gram


def results(case: Case, f: Tensor, y: Tensor) -> dict[str, Tensor]:
    likelihood = case.likelihood
    columns = likelihood.columns(f, y)
    return {
        "score": likelihood.score(f, y),
        "columns": columns.chunk(0, columns.count),
        "diagonal": likelihood.diagonal(f, y),
        "product": likelihood.product(f, f, y),
    }


@every_case
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)],
    ids=str,
)
def test_results_have_the_outputs_dtype(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    f = case.f.to(dtype)
    y = case.y.to(dtype) if case.y.is_floating_point() else case.y
    if isinstance(case.likelihood, LossFunction) and y.is_floating_point():
        y = y.float()
    case.likelihood.check(f, y)
    nll = case.likelihood.nll(f, y)
    # A sum over samples is beyond half precision soon.
    assert nll.dtype == torch.float32
    wide = y.double() if y.is_floating_point() else y
    assert_close(nll.double(), case.likelihood.nll(f.double(), wide), 1e-5)
    wanted = results(case, f.double(), wide)
    for name, value in results(case, f, y).items():
        assert value.dtype == dtype, name
        if name != "columns":
            assert_close(value.double(), wanted[name], tolerance)
    signs = drawn(case.likelihood.columns(f, y), f)
    assert signs.dtype == dtype and signs.isfinite().all()
    found = gram(case.likelihood.columns(f, y)).double()
    assert_close(found, gram(case.likelihood.columns(f.double(), wide)), tolerance)


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_samples_are_targets(case: Case, dtype: torch.dtype) -> None:
    if isinstance(case.likelihood, LossFunction):
        pytest.skip("a loss has no samples")
    f = case.f.to(dtype)
    y = case.likelihood.sample(f, torch.Generator().manual_seed(0))
    case.likelihood.check(f, y)
    assert y.dtype == (dtype if y.is_floating_point() else torch.long)
    y = case.y.to(dtype) if case.y.is_floating_point() else case.y
    column = case.likelihood.sampled_column(f, torch.Generator().manual_seed(0), y)
    assert column.dtype == dtype and column.shape == (1, *f.shape)


@pytest.mark.gpu
@every_case
def test_gpu_gives_what_the_cpu_gives(case: Case) -> None:
    wanted = results(case, case.f, case.y)
    found = results(case, case.f.cuda(), case.y.cuda())
    for name, value in found.items():
        assert value.is_cuda
        assert_close(value.cpu(), wanted[name])
    assert drawn(case.likelihood.columns(case.f.cuda(), case.y.cuda()), case.f.cuda()).is_cuda
