"""The consequence of each kind of drift, by resource type and name: `consequences.yaml`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from infra.engine.drift import Row
from infra.tables import table


@cache
def _meanings() -> list[tuple[str, str, str]]:
    """Return rows of type, name and consequence; the first match wins."""
    return [(kind, name, meaning) for kind, name, meaning in table("infra.engine", "consequences")]


def consequence(row: Row) -> str:
    """Return the consequence of this drift; empty where only the difference is known."""
    bare = row.kind.rpartition(":")[2]
    for kind, name, meaning in _meanings():
        if fnmatchcase(bare, kind) and fnmatchcase(row.name, name):
            only_tags = row.changes and all(change.path.startswith(("tags", "description")) for change in row.changes)
            return "" if only_tags else meaning
    return ""
