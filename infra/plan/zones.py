"""Zones: of a campaign's nodes, of its control plane, which EKS takes in some only, and of builders. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from infra.errors import UserError
from infra.plan.catalogue import no_control_plane
from infra.plan.facts import Zone
from infra.spec.campaign import Spec

_PAUSED = "unavailable"


def build_network_zone(instance_type: str, sold: Sequence[str], zones: Sequence[Zone], now: str | None) -> str:
    """Where builders of this type start: `now`, where it is sold there, else the first zone in which it is.

    Raises `UserError` where no zone of the account sells it.
    """
    able = sorted(zone.name for zone in zones if zone.state != _PAUSED and zone.name in sold)
    if now in sold:
        return str(now)
    if not able:
        raise UserError(
            "no zone sells the instance type that images are baked on",
            seen=f"{instance_type}, among {', '.join(sorted(zone.name for zone in zones)) or 'no zone'}",
            cure="take another region",
        )
    return able[0]


def control_plane_zones(spec: Spec, zones: Sequence[Zone]) -> tuple[str, str]:
    """The two for the cluster's subnets; the first, where EKS takes it, is the zone of the nodes.

    The second is the spec's, else the next in the alphabet, round. `zones`: of the region, as this account has them.
    Raises `UserError` where the account lacks a zone that the spec names, or EKS takes fewer than two.
    """
    named = {zone.name: zone for zone in zones}
    able = sorted(zone.name for zone in zones if zone.state != _PAUSED and zone.id not in no_control_plane())
    if spec.zone not in named:
        raise UserError(
            "the account has no such zone", seen=f"zone: {spec.zone}", cure=f"write one of {', '.join(sorted(named))}"
        )
    first = spec.zone if spec.zone in able else next(iter(able), None)
    later = [zone for zone in able if first is not None and zone > first]
    others = [*later, *(zone for zone in able if zone not in (first, *later))]
    if first is None or not others:
        raise UserError(
            "a control plane needs subnets in two zones that EKS takes",
            seen=f"{', '.join(able) or 'none'} of {', '.join(f'{zone.name} ({zone.id})' for zone in zones)}",
            cure="take another region",
        )
    second = spec.second_zone
    if second is None:
        return first, others[0]
    if second not in others:
        what = "the account has no such zone" if second not in named else "EKS puts no second half of a cluster there"
        seen = second if second not in named else f"second_zone: {second} ({named[second].id}, {named[second].state})"
        cure = f"write one of {', '.join(others)}, or leave second_zone out"
        raise UserError(what, seen=seen, cure=cure)
    return first, second
