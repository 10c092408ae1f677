"""AWS's regions, from botocore's list."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files


@cache
def regions() -> dict[str, str]:
    """Return region -> partition of all partitions. Read as a file, since botocore's loader takes long to import."""
    listed = json.loads((files("botocore") / "data/partitions.json").read_text())["partitions"]
    return {name: part["id"] for part in listed for name in part["regions"] if not name.endswith("-global")}
