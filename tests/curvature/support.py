"""What is supported, from a run: every function, method and likelihood on every network of the zoo.

`python -m tests.curvature.support` writes docs/support.md, in about twenty minutes of one core;
with names of families behind it, only what concerns their networks is run anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import torch

import lapkernels as lk
from tests.curvature import support_page
from tests.curvature.methods import Turn, Variant, variants
from tests.curvature.support_page import COLUMNS, FLOAT64, NOISES, PATH, REASONS, Exceptions
from tests.curvature.truth import Case, Truth
from tests.curvature.zoo import GROUPS, NO_SECOND_DERIVATIVE, ZOO

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
# Of several calls the first of these is what is said of all: labels cannot be drawn from a loss of
# one's own, which other calls of the same column do not need.
UNDRAWN = "no distribution"
ORDER = ("wrong", *REASONS, FLOAT64, "right", UNDRAWN)


def outcomes(
    id: str,
    noises: Iterable[str] = tuple(NOISES),
    columns: Iterable[str] = COLUMNS,
    dtypes: Iterable[torch.dtype] = tuple(TOLERANCE),
) -> dict[tuple[str, str], str]:
    """By column and likelihood: one of `ORDER`."""
    torch.set_num_threads(1)
    # oneDNN rounds by where a tensor lies in memory, and so recurrent layers. Of a Hessian with a
    # repeated eigenvalue the last bit of an output decides which columns there are.
    if ZOO[id].group == "recurrent":
        with torch.backends.mkldnn.flags(enabled=False):
            return _outcomes(id, noises, columns, dtypes)
    return _outcomes(id, noises, columns, dtypes)


def _outcomes(
    id: str, noises: Iterable[str], columns: Iterable[str], dtypes: Iterable[torch.dtype]
) -> dict[tuple[str, str], str]:
    truth, found = Truth(id), dict[tuple[str, str], str]()
    for place, noise in enumerate(noise for noise in noises if truth.fits(noise)):
        turn = Turn(list(ZOO).index(id) + 3 * list(NOISES).index(noise))
        for variant in variants(turn):
            if variant.column not in columns or (not variant.likelihood and place > 0):
                continue
            single = turn.single or not variant.likelihood
            key = variant.column, noise
            for dtype in dtypes if single else (torch.float64,):
                new = _outcome(variant, Case(truth, noise, dtype))
                if new in REASONS and variant.options.get("route") == "autograd":
                    # What that route alone refuses is not refused.
                    default = replace(variant, options={**variant.options, "route": "auto"})
                    new = _outcome(default, Case(truth, noise, dtype))
                found[key] = min(found.get(key, UNDRAWN), new, key=ORDER.index)
    return found


def _outcome(variant: Variant, case: Case) -> str:
    try:
        found = variant.run(case.problem)
    except Exception as error:
        return _refusal(error) or _wrong(variant, case, f"{type(error).__name__}: {error}")
    if variant.column == "Hessian" and case.truth.network.id in NO_SECOND_DERIVATIVE:
        return _wrong(variant, case, "torch has no second derivative")
    error, tolerance = variant.error(case, found), TOLERANCE[case.dtype]
    if error <= tolerance:
        return "right"
    if case.dtype == torch.float32 and error <= 10 * max(map(case.single_error, variant.methods)):
        return FLOAT64
    return _wrong(variant, case, f"relative error {error:.1e}")


def _refusal(error: Exception) -> str | None:
    """The reason, if the message has one that is known."""
    if isinstance(error, NotImplementedError) and UNDRAWN in str(error):
        return UNDRAWN
    if not isinstance(error, lk.Refused):
        return None
    return next((key for key, one in REASONS.items() if re.search(one.message, str(error))), None)


def _wrong(variant: Variant, case: Case, words: str) -> str:
    print(f"{case}, {variant.column} {variant.options}: {words}", file=sys.stderr)
    return "wrong"


def exceptions(id: str) -> dict[str, str]:
    """By column, all that is not simply right; no reason but that of zeros depends on labels."""
    found = outcomes(id)
    result: dict[str, str] = {}
    for column in COLUMNS:
        values = {value for (name, _), value in found.items() if name == column} - {UNDRAWN}
        if values != {"right"}:
            result[column] = min(values, key=ORDER.index)
        if result.get(column) in set(REASONS) - {"z"} and len(values) > 1:
            result[column] = "wrong"
            print(f"{id}, {column}: depends on the likelihood: {values}", file=sys.stderr)
    return result


def main(*families: str) -> None:
    chosen = families or GROUPS
    ids = [id for id, network in ZOO.items() if network.group in chosen]
    known: Exceptions = support_page.written(PATH.read_text()) if families else {}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for id, found in zip(ids, pool.map(exceptions, ids), strict=True):
            print(f"{id}: {found or 'right'}", file=sys.stderr)
            known[id] = found
    wrong = [id for id, found in known.items() if "wrong" in found.values()]
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")
    PATH.write_text(support_page.page(known))


if __name__ == "__main__":
    main(*sys.argv[1:])
