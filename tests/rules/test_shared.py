"""Columns that are the same for all samples."""

from __future__ import annotations

import pytest
import torch

from lapkernels.rules.base.shared import Scaled, is_shared, joined, shared_product


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_scaled_columns(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapkernels.ops.base.chunks.CHUNK", chunk)
    torch.manual_seed(0)
    rows = torch.randn(70, 70, dtype=torch.float64).triu()
    factor = torch.randn(3, 70, dtype=torch.float64)
    matrix = torch.randn(5, 70, dtype=torch.float64).mT
    columns = Scaled(rows, factor)
    s = rows.unsqueeze(1) * factor
    torch.testing.assert_close(columns.columns(), s)
    torch.testing.assert_close(columns.squares(), s.square().sum(0))
    torch.testing.assert_close(columns.product(matrix), s @ matrix)


def test_shared_columns_stay_shared() -> None:
    one = torch.randn(6, 1, 4).expand(-1, 3, -1)
    own = torch.randn(2, 3, 4)
    matrix = torch.randn(4, 5)
    assert is_shared(one) and not is_shared(own)
    assert is_shared(shared_product(one, matrix)) and not is_shared(shared_product(own, matrix))
    torch.testing.assert_close(shared_product(one, matrix), one @ matrix)
    assert is_shared(joined([one, one])) and not is_shared(joined([one, own]))
    torch.testing.assert_close(joined([one, own]), torch.cat([one, own]))
