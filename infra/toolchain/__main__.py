"""`python -m infra.toolchain ensure [--all | NAME...]` and `... list`."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from infra.errors import BivouacError
from infra.toolchain.ensure import ensure, locate, select
from infra.toolchain.table import ON_REQUEST, TOOLS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.toolchain", description="The engine of any campaign, and the tools of a rehearsal."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    getting = commands.add_parser("ensure", help="get them from PATH, cache, official release or Go")
    getting.add_argument("--all", action="store_true", help="all of the set-up (also the default)")
    getting.add_argument(
        "names", nargs="*", metavar="NAME", help=", ".join(tool.name for tool in (*TOOLS, *ON_REQUEST))
    )
    commands.add_parser("list", help="show where they are now")
    arguments = parser.parse_args()
    # SIGINT too: a shell ignores it for background jobs, and Python would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _as_interrupt)
    try:
        if arguments.command == "list":
            return _list()
        for tool_path in ensure([] if arguments.all else arguments.names):
            print(f"{tool_path.tool:24} {tool_path.version:10} {tool_path.origin:11} {tool_path.path}")
        return 0
    except BivouacError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted: no partial files are left", file=sys.stderr)
        return 130


def _list() -> int:
    missing = 0
    for tool in select([]):
        program = locate(tool)
        missing += program is None
        version, origin, path = (
            (program.version, program.origin, str(program.path)) if program else (tool.version, "missing", "")
        )
        print(f"{tool.name:24} {version:10} {origin:11} {path}")
    return 1 if missing else 0


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM as SIGINT, so that a stopped `make` cleans up too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
