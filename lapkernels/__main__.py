"""The command line: `python -m lapkernels info` and `python -m lapkernels demo`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one sub-command; what follows `demo` goes to the demo's own parser."""
    parser = argparse.ArgumentParser(prog="python -m lapkernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, machine, and which backend serves each op")
    commands.add_parser("demo", help="a short tour on a small model", add_help=False)
    arguments, rest = parser.parse_known_args(argv)
    # Imported here so that `info` needs none of the demo's extra packages.
    if arguments.command == "demo":
        from lapkernels import demo

        demo.main(rest)
    else:
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        from lapkernels import info

        info.main()


if __name__ == "__main__":
    main()
