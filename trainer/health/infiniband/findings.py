"""The probes of InfiniBand and RoCE: each says the places that are bad, and the cure."""

from __future__ import annotations

from collections.abc import Iterable

from trainer.contract import Probe

CABLE_CURE = "reseat or replace the cable, and look at the switch's port: iblinkinfo -S GUID"
MANAGER_CURE = "start a subnet manager: opensm on one host, or the switch's own; sminfo says which one rules"
RIGHTS_CURE = "give the pod /dev/infiniband/umad* and root, and the image Debian's infiniband-diags"
_SHOWN = 4


def finding(
    name: str, bad: Iterable[str], fine: str, target: str, cure: str, blamed_nodes: Iterable[str] | None = None
) -> Probe:
    """Return the probe: failed with all bad places, else passed with what is fine. `blamed_nodes`: see `Probe`."""
    places = several(bad)
    if not places:
        return Probe(name=name, ok=True, seen=fine, wanted=target)
    nodes = None if blamed_nodes is None else tuple(dict.fromkeys(blamed_nodes))
    return Probe(name=name, ok=False, seen=places, wanted=target, cure=cure, blamed_nodes=nodes)


def several(places: Iterable[str]) -> str:
    """Return places in words, cut after the first ones."""
    rows = list(places)
    return "; ".join(rows[:_SHOWN]) + (f"; and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
