"""The index of the decisions, by their titles."""

from __future__ import annotations

from tests.docs.tables import item
from tests.root import ROOT

_HEAD = """# Decisions

<!-- Made by `make docs` from the pages beside it. Do not edit it by hand. -->

Each page says why something is as it is: context, decision, consequence. A later decision that changes an earlier one
says so; the earlier page stays.
"""


def page() -> str:
    lines = [_HEAD]
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        number, _, title = path.read_text().partition("\n")[0].removeprefix("# ").partition(": ")
        lines += item(f"[{number}]({path.name}): {title[:1].upper()}{title[1:]}")
    return "\n".join([*lines, ""])
