"""The whole table of networks, a few minutes at a time.

python -m benchmarks.pieces                    # all pieces one after the other, then the report
python -m benchmarks.pieces --list             # their names
python -m benchmarks.pieces 3c3d unet
python -m benchmarks.pieces --report docs/measured/networks

A piece is a network with all quantities; it leaves `benchmarks/results/pieces/NAME.json`. Pieces
that are there already are not run again, but for those that are named.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "pieces"
# Quantities with one column, and with all.
SHORT = ("diag_mc", "diag_empirical", "diag_approx", "kfac")
LONG = ("diag_exact", "kflr", "predictive_variance")
NETWORKS = ("3c3d", "mlp", "resnet", "transformer", "mlp-ae", "conv-ae", "unet")
# The approximate diagonal is compared with compositions that follow layers in sequence only.
BRANCHED = ("resnet", "transformer", "unet")
RESOLUTIONS = (32, 64, 128, 256)


def _pieces() -> dict[str, str]:
    """A pattern of cases by name."""
    found: dict[str, list[str]] = {}

    def add(name: str, quantities: Sequence[str], case: str) -> None:
        found.setdefault(name, []).extend(f"{quantity}-{case}" for quantity in quantities)

    for network in NETWORKS:
        short = [one for one in SHORT if one != "diag_approx" or network not in BRANCHED]
        add(network, (*short, *LONG), f"{network}-r")
    add("3c3d", ("laplace_diag", "laplace_kron"), "3c3d-r")
    add("conv-ae", ("online_step",), "conv-ae")
    for resolution in RESOLUTIONS:
        add(f"conv5-{resolution}", SHORT, f"conv5-r{resolution}-n4")
        add(f"conv5-{resolution}", (*LONG, "diag_mixed", "blocks"), f"conv5-r{resolution}-n1")
    return {name: " or ".join(words) for name, words in found.items()}


PIECES = _pieces()


def run(name: str) -> None:
    """Measure one piece."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    part = RESULTS / f"{name}.part"
    command = [
        *(sys.executable, "-m", "pytest", "benchmarks", "-q", "--benchmark-only"),
        *("-p", "no:cacheprovider", f"--benchmark-json={part}"),
        *("--case-seconds", "1", "--method-seconds", "60", "-k", PIECES[name]),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        # Ours failed the gate, or the process ended: the others go on.
        print(f"{name}:\n{done.stdout[-2000:]}", file=sys.stderr)
    if part.exists():
        part.rename(RESULTS / f"{name}.json")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("pieces", nargs="*", choices=[*PIECES, []], help="pieces to run")
    parser.add_argument("--list", action="store_true", help="print the names of all pieces")
    parser.add_argument("--report", type=Path, help="only write the report of all that is there")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(PIECES))
        return
    if not arguments.report:
        # What is measuring ends with us.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        missing = [name for name in PIECES if not (RESULTS / f"{name}.json").exists()]
        for name in arguments.pieces or missing:
            run(name)
    if arguments.report or not arguments.pieces:
        found = [RESULTS / f"{name}.json" for name in PIECES]
        files = [str(path) for path in found if path.exists()]
        report.main([*files, "--out", str(arguments.report or RESULTS.parent)])


if __name__ == "__main__":
    main()
