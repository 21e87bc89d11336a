"""The command line, `python -m lapkernels`: what is installed, a demonstration, a benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import lapkernels

# Command: one line about it. Its module has a main(argv) with options of its own.
COMMANDS = {
    "info": "versions, machine, and which backend serves each op",
    "demo": "curvature and uncertainty of a small autoencoder, with a picture",
    "bench": "time and memory of curvature on this machine",
}
EPILOG = """
Exit codes: 0 if it worked, 1 if not (the reason is on stderr), 2 for arguments that are wrong.
Each command has a --help and a --json: JSON on stdout, everything else on stderr.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    lines = [f"  {name:<6} {text}" for name, text in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m lapkernels",
        description=f"{__doc__}\n\ncommands:\n" + "\n".join(lines),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=lapkernels.__version__)
    parser.add_argument("command", choices=COMMANDS, help=argparse.SUPPRESS, metavar="COMMAND")
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    try:
        # Imported here: `info` needs none of the packages that others do.
        import_module(f"lapkernels.{arguments.command}").main(arguments.options)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"python -m lapkernels {arguments.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
