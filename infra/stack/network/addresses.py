"""Arithmetic of subnets and zones. No Pulumi here."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from infra.errors import UserError
from infra.spec.campaign import Spec

SERVICE_CIDR = "172.20.0.0/16"
"""Range of Kubernetes services, outside of 10.0.0.0/8."""
_SMALLEST_VPC = 20


@dataclass(frozen=True)
class SubnetPlan:
    public: str
    control_plane: tuple[str, str]
    """One per zone; the first also holds the system nodes."""
    gpu: str
    """Half of the VPC: every pod takes an address."""


def subnet_plan(cidr: str) -> SubnetPlan:
    """Cut a VPC's range: eighths for public and control plane, the upper half for the GPU nodes. Raises `UserError` for
    an invalid range or one that is too small for a campaign."""
    try:
        network = IPv4Network(cidr)
    except ValueError as error:
        cure = "give a network such as 10.42.0.0/16, with no host bits"
        raise UserError("network.cidr is no network", seen=cidr, cure=cure) from error
    if network.prefixlen > _SMALLEST_VPC or network.prefixlen < 16:
        raise UserError("network.cidr must be between /16 and /20", seen=cidr, cure="for instance 10.42.0.0/16")
    if network.overlaps(IPv4Network(SERVICE_CIDR)):
        raise UserError("network.cidr overlaps the service network", seen=cidr, cure=f"stay out of {SERVICE_CIDR}")
    eighths = list(network.subnets(prefixlen_diff=3))
    half = list(network.subnets(prefixlen_diff=1))[1]
    return SubnetPlan(public=str(eighths[0]), control_plane=(str(eighths[1]), str(eighths[2])), gpu=str(half))


def second_zone(spec: Spec) -> str:
    """Return the spec's second zone, or the next letter, `a` after `f`, where no driver chose (see
    `infra.plan.zones`)."""
    if spec.second_zone is not None:
        return spec.second_zone
    letter = spec.zone[-1]
    return spec.zone[:-1] + ("a" if letter >= "f" else chr(ord(letter) + 1))
