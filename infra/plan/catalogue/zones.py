"""Zones in which EKS places no control plane."""

from __future__ import annotations

from functools import cache

from infra.plan.catalogue.reading import read


@cache
def no_control_plane() -> frozenset[str]:
    """Return ids of zones in which EKS accepts no subnet of a cluster."""
    return frozenset(zone for zones in read("zones")["no_control_plane"].values() for zone in zones)
