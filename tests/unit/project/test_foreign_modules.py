"""No program that the driver starts takes a module from the folder that a person stands in: `python -m` and `-c` look
there first, unless `-P` or `-I` says otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.root import ROOT

IN_PODS = {"infra/archive/model.py"}
"""Started in a container's own folder."""


def starts(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the options of each command that begins with this Python and `-m` or `-c`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        for number, item in enumerate(node.elts):
            if ast.unparse(item) != "sys.executable":
                continue
            options = [str(one.value) for one in node.elts[number + 1 :] if isinstance(one, ast.Constant)]
            if {"-m", "-c"} & set(options):
                yield item.lineno, options


def test_every_command_of_the_driver_leaves_the_persons_folder_out() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), line, options)
        for path in sorted((ROOT / "infra").rglob("*.py"))
        for line, options in starts(path)
    ]
    assert len(found) >= 4, "the commands are still written as lists"
    looking = [(path, line) for path, line, options in found if not {"-P", "-I"} & set(options)]
    assert [one for one in looking if one[0] not in IN_PODS] == []
    assert {path for path, _ in looking} == IN_PODS, "an exception that is none any more"
