"""Readers of the catalogue's files and of what our images hold, and the error for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.errors import UserError
from infra.folders import CODE, asset
from infra.tables import parse, table


def read(name: str) -> dict[str, Any]:
    """Return the content of `infra/plan/catalogue/<name>.yaml`."""
    return dict(table("infra.plan.catalogue", name))


def image_versions(root: Path = CODE) -> dict[str, Any]:
    """Return the content of `images/versions.yaml`, by role."""
    return dict(parse(asset("images/versions.yaml", root).read_text())["versions"])


def unknown(kind: str, name: str, candidates: Iterable[str]) -> UserError:
    """Return the error for an unknown name; it lists the nearest names, or all if none is near."""
    names = sorted(candidates)
    nearest = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    cure = f"near names: {', '.join(nearest)}" if nearest else f"the catalogue has: {', '.join(names)}"
    return UserError(f"the catalogue has no {kind} of this name", seen=name, cure=cure)
