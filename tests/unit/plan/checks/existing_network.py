"""What AWS says of an existing VPC, and of a place for builders, that have all they need but for some differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.plan.facts import AclEntry, Facts, SeenBuilders, SeenNetwork, SeenSubnet, Zone
from infra.spec.services import ENDPOINT_SERVICES

GPU, FIRST, SECOND = (f"subnet-0{letter}{'0' * 15}" for letter in "abc")
EXISTING_VPC: dict[str, Any] = {
    "network.vpc_id": "vpc-0123456789abcdef1",
    "network.subnet_ids": {"gpu": GPU, "control_plane": [FIRST, SECOND]},
}
BUILDERS: dict[str, Any] = {"image.builders": {"subnet_id": FIRST, "security_group_id": "sg-01234567"}}
ACCOUNT = "123456789012"
EVERYWHERE = "0.0.0.0/0"


def entry(number: int, egress: bool, allow: bool = True, ports: tuple[int, int] = (0, 65535), cidr: str = EVERYWHERE,
          protocol: str = "-1") -> AclEntry:  # fmt: skip
    first, last = ports
    return AclEntry(egress=egress, number=number, allow=allow, protocol=protocol, first=first, last=last, cidr=cidr)


OPEN = tuple(entry(number, egress, number == 100) for egress in (True, False) for number in (100, 32767))


CLOSED = (entry(90, True, False, (443, 443), protocol="6"), *OPEN)


def subnet(id: str, **changes: Any) -> SeenSubnet:
    """A subnet behind a NAT gateway; `acl`: closed for one that lets no HTTPS out."""
    sound: dict[str, Any] = {
        "zone": "us-east-1a", "cidr": "10.9.1.0/24", "free_addresses": 251, "public_addresses": False,
        "default_route": "nat-0123456789abcdef0", "s3_gateway": True, "acl_id": "acl-0123456789abcdef0", "acl": OPEN,
    }  # fmt: skip
    if changes.get("acl") == "closed":
        changes["acl"] = CLOSED
    return SeenSubnet(id=id, **sound | changes)


def existing(at: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Callable[[Facts], Facts]:
    """A VPC that has all, but for `changes`; `at`: gpu, first or second subnet -> what differs of it; `without`: a
    service that has no endpoint."""
    different, lacking = at or {}, changes.pop("without", "")
    subnets = (
        subnet(GPU, **{"cidr": "10.9.0.0/24", **different.get("gpu", {})}),
        subnet(FIRST, **different.get("first", {})),
        subnet(SECOND, **{"zone": "us-east-1b", "cidr": "10.9.2.0/24", **different.get("second", {})}),
    )
    if isinstance(admitted := changes.get("endpoints"), str):
        changes["endpoints"] = dict.fromkeys(ENDPOINT_SERVICES, (admitted,))
    sound = {"exists": True, "owner": ACCOUNT, "cidrs": ("10.9.0.0/16",), "dns_support": True, "dns_hostnames": True,
             "name_servers": ("AmazonProvidedDNS",), "subnets": subnets,
             "endpoints": {one: ("10.9.0.0/16",) for one in ENDPOINT_SERVICES if one != lacking}}  # fmt: skip
    network = SeenNetwork.model_validate(sound | changes)
    zones = tuple(Zone(name=f"us-east-1{letter}", id=f"use1-az{n}") for letter, n in (("a", 1), ("b", 2), ("e", 3)))
    return lambda facts: facts.model_copy(update={"network": network, "zones": zones})


def place(differences: dict[str, Any] | None = None, **changes: Any) -> Callable[[Facts], Facts]:
    """A place for builders behind a NAT gateway, with these differences of its subnet and of the rest."""
    sound = {"subnet": subnet(FIRST, **differences or {}), "group": True, "https_to": (EVERYWHERE,)}
    return lambda facts: facts.model_copy(update={"builders": SeenBuilders.model_validate(sound | changes)})
