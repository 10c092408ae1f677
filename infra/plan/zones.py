"""Zones for a campaign's nodes, for its control plane (EKS does not support all zones) and for builders. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from infra.errors import UserError
from infra.plan.catalogue import no_control_plane
from infra.plan.facts import Zone
from infra.spec.campaign import Spec

_PAUSED = "unavailable"


def build_network_zone(instance_type: str, sold: Sequence[str], zones: Sequence[Zone], now: str | None) -> str:
    """Return the zone for builders of this type: `now` if it sells the type, else the first zone that does.

    Raises `UserError` if no zone of the account sells it.
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
    """Return the two zones of the cluster's subnets; the first is the nodes' zone if EKS supports it.

    The second is the spec's, else the alphabetically next one, cyclically. `zones` are those of the account and region.
    Raises `UserError` if the account lacks a zone of the spec, or EKS supports fewer than two.
    """
    zones_by_name = {zone.name: zone for zone in zones}
    able = sorted(zone.name for zone in zones if zone.state != _PAUSED and zone.id not in no_control_plane())
    if spec.zone not in zones_by_name:
        raise UserError(
            "the account has no such zone",
            seen=f"zone: {spec.zone}",
            cure=f"write one of {', '.join(sorted(zones_by_name))}",
        )
    first_zone = spec.zone if spec.zone in able else next(iter(able), None)
    following = [zone for zone in able if first_zone is not None and zone > first_zone]
    candidates = [*following, *(zone for zone in able if zone not in (first_zone, *following))]
    if first_zone is None or not candidates:
        raise UserError(
            "a control plane needs subnets in two zones that EKS supports",
            seen=f"{', '.join(able) or 'none'} of {', '.join(f'{zone.name} ({zone.id})' for zone in zones)}",
            cure="take another region",
        )
    second = spec.second_zone
    if second is None:
        return first_zone, candidates[0]
    if second not in candidates:
        message = "the account has no such zone" if second not in zones_by_name else "EKS places no control plane there"
        detail = (
            second
            if second not in zones_by_name
            else f"second_zone: {second} ({zones_by_name[second].id}, {zones_by_name[second].state})"
        )
        cure = f"write one of {', '.join(candidates)}, or leave second_zone out"
        raise UserError(message, seen=detail, cure=cure)
    return first_zone, second
