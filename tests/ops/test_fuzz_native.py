"""The compiled ops called directly with nonsense raise, and never crash."""

from __future__ import annotations

import ast

import pytest

from tests.programs import python


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("cpp")
def test_nonsense_never_crashes(seed: int) -> None:
    result = python("-m", "tests.ops.fuzz_native", str(seed), "3000")
    last = "\n".join(result.stderr.splitlines()[-5:])
    assert result.returncode == 0, f"exit code {result.returncode}; the last calls were\n{last}"
    outcomes = ast.literal_eval(result.stdout)
    assert outcomes["refused"] > 1000, "hardly any call was nonsense"
    assert outcomes["accepted"] > 100, "hardly any call reached a kernel"
