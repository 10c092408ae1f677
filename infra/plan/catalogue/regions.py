"""AWS's regions, from botocore's list, and zones in which EKS places no control plane."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from infra.plan.catalogue.reading import read


@cache
def regions() -> dict[str, str]:
    """Return region -> partition of all partitions. Read as a file, since botocore's loader takes long to import."""
    partitions = json.loads((files("botocore") / "data/partitions.json").read_text())["partitions"]
    return {name: part["id"] for part in partitions for name in part["regions"] if not name.endswith("-global")}


@cache
def no_control_plane() -> frozenset[str]:
    """Return ids of zones in which EKS accepts no subnet of a cluster."""
    return frozenset(zone for zones in read("zones")["no_control_plane"].values() for zone in zones)
