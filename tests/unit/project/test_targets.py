"""Which modules may ask which target a spec has: the seam, and what writes or derives specs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.root import ROOT

SEAM = {
    "infra/target.py",  # the switch
    "infra/spec/campaign.py",  # sections that belong to one target
    "infra/spec/standing.py",
    "infra/spec/rehearsed.py",  # makes a rehearsal of a spec for AWS
    "infra/spec/workload/workload.py",  # its section `rehearsal`
    "infra/cli/hand/by_hand.py",  # pulumi typed by hand, outside of a site
    "infra/cli/prepare/init.py",  # asks for a target, and has no spec yet
}
BESIDE = {"rehearsal", "toolchain"}
"""Folders: the target's own, and one whose `kubernetes` is a program."""
TARGETS = {"aws", "rehearsal", "kubernetes"}
NAMES = {"STANDING"}
"""Constants whose value is a target."""


def compared_targets(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that compare something with the name of a target."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
            values = {side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)}
            names = {side.id for side in sides if isinstance(side, ast.Name)}
            if values & TARGETS or names & NAMES:
                yield node.lineno


def test_no_module_beside_the_seam_asks_for_the_target() -> None:
    asking = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "infra").rglob("*.py"))
        if not BESIDE & set(path.relative_to(ROOT).parts) and str(path.relative_to(ROOT)) not in SEAM
        for line in compared_targets(ast.parse(path.read_text()))
    }
    assert asking == set()


@pytest.mark.parametrize("code", ['x = spec.target == "aws"', 'if "aws" != self.target: pass', "x = raw == STANDING"])
def test_a_comparison_is_seen(code: str) -> None:
    assert list(compared_targets(ast.parse(code))) == [1]


def test_each_module_of_the_seam_is_there() -> None:
    assert [name for name in sorted(SEAM) if not Path(ROOT, name).is_file()] == []
