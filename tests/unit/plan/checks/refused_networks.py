"""Specs whose network is refused: its ranges and doors, and an existing VPC, what they name of it and AWS says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.plan.facts import AclEntry, Facts, SeenBuilders, SeenNetwork, SeenSubnet, Zone
from infra.spec.sections import ENDPOINT_SERVICES
from tests.unit.plan.checks.refused import DRIVER, ON_AWS, PRIVATE, E, Row, W

VPC, GPU, FIRST, SECOND = "vpc-0123456789abcdef1", "subnet-0a", "subnet-0b", "subnet-0c"
GPU, FIRST, SECOND = (f"{name}{'0' * 15}" for name in (GPU, FIRST, SECOND))
SOUND: dict[str, Any] = {
    "network.vpc_id": VPC,
    "network.subnet_ids": {"gpu": GPU, "control_plane": [FIRST, SECOND]},
}
ACCOUNT = "123456789012"
EVERYWHERE = "0.0.0.0/0"


def entry(number: int, egress: bool, allow: bool = True, ports: tuple[int, int] = (0, 65535), cidr: str = EVERYWHERE,
          protocol: str = "-1") -> AclEntry:  # fmt: skip
    first, last = ports
    return AclEntry(egress=egress, number=number, allow=allow, protocol=protocol, first=first, last=last, cidr=cidr)


OPEN = tuple(entry(number, egress, number == 100) for egress in (True, False) for number in (100, 32767))


def subnet(id: str, zone: str, cidr: str, **changes: Any) -> SeenSubnet:
    there: dict[str, Any] = {
        "free_addresses": 251, "public_addresses": False, "default_route": "nat-0123456789abcdef0", "s3_gateway": True,
        "acl_id": "acl-0123456789abcdef0", "acl": OPEN,
    }  # fmt: skip
    return SeenSubnet(id=id, zone=zone, cidr=cidr, **there | changes)


def existing(at: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Callable[[Facts], Facts]:
    """A VPC that has all, but for `changes`; `at`: subnet -> what differs of it."""
    different = at or {}
    subnets = (
        subnet(GPU, **{"zone": "us-east-1a", "cidr": "10.9.0.0/24", **different.get(GPU, {})}),
        subnet(FIRST, **{"zone": "us-east-1a", "cidr": "10.9.1.0/24", **different.get(FIRST, {})}),
        subnet(SECOND, **{"zone": "us-east-1b", "cidr": "10.9.2.0/24", **different.get(SECOND, {})}),
    )
    seen = SeenNetwork(exists=True, owner=ACCOUNT, cidrs=("10.9.0.0/16",), dns_support=True, dns_hostnames=True,
                       name_servers=("AmazonProvidedDNS",), subnets=subnets,
                       endpoints=dict.fromkeys(ENDPOINT_SERVICES, ("10.9.0.0/16",)))  # fmt: skip
    zones = tuple(Zone(name=f"us-east-1{letter}", id=f"use1-az{n}") for letter, n in (("a", 1), ("b", 2), ("e", 3)))
    return lambda facts: facts.model_copy(update={"network": seen.model_copy(update=changes), "zones": zones})


def place(changes: dict[str, Any] | None = None, **seen: Any) -> Callable[[Facts], Facts]:
    """A place for builders behind a NAT gateway, with these differences of its subnet and of the rest."""
    sound = {"subnet": subnet(FIRST, "us-east-1a", "10.9.1.0/24", **changes or {}), "group": True,
             "https_to": ("0.0.0.0/0",)}  # fmt: skip
    return lambda facts: facts.model_copy(update={"builders": SeenBuilders(**sound | seen)})


def without(field: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in SOUND.items() if key != f"network.{field}"} | more


def row(rule: str, field: str, facts: Callable[[Facts], Facts], cure: str, level: Any = E, **changes: Any) -> Row:
    return Row(rule, level, field, {**SOUND, **{key.replace("__", "."): value for key, value in changes.items()}},
               facts, cure=cure)  # fmt: skip


IN_GPU, IN_CONTROL = "network.subnet_ids.gpu", "network.subnet_ids.control_plane"
THERE, REACHES, BLOCKS = (
    "existing-network", "existing-network-egress", "existing-network-acl"
)  # fmt: skip
NAMES, ROOM = "existing-network-dns", "existing-network-room"
WHOLE, APART = "existing-network-fields", "existing-network-overlap"
BUILDS = "builder-network"
BUILDERS = {"image.builders": {"subnet_id": FIRST, "security_group_id": "sg-01234567"}}
IN_PLACE, IN_GROUP = "image.builders.subnet_id", "image.builders.security_group_id"
CLOSED = (entry(90, True, False, (443, 443), protocol="6"), *OPEN)
DOORS = (
    Row("network-range", E, "network.cidr", {"network.cidr": "10.42.0.1/16"}, cure="10.42.0.0/16"),
    Row("network-range", E, "network.cidr", {"network.cidr": "10.42.0.0/24"}),
    Row("network-range", E, "network.cidr", {"network.cidr": "172.20.0.0/16"}, cure="stay out"),
    Row("network-range", E, "network.cidr", {"network.cidr": "8.8.0.0/16"}),
    Row("private-endpoint-access", E, "network.api_endpoint", {**ON_AWS, **PRIVATE}, cure="driver_vpc"),
    Row(
        "private-endpoint-access",
        E,
        "network.api_allowed_cidrs",
        {**PRIVATE, "network.api_allowed_cidrs": ["203.0.113.0/24"]},
        cure="public",
    ),
    Row(
        "public-endpoint-ranges",
        E,
        "network.api_allowed_cidrs",
        {**ON_AWS, "network.api_allowed_cidrs": []},
        cure="0.0.0.0/0",
    ),
    Row(
        "endpoint-ranges",
        E,
        "network.api_allowed_cidrs",
        {"network.api_allowed_cidrs": ["192.168.1.7/32"]},
        cure="checkip",
    ),
    Row(
        "endpoint-ranges",
        E,
        "network.api_allowed_cidrs",
        {"network.api_allowed_cidrs": ["203.0.113.7/24"]},
        cure="203.0.113.0/24",
    ),
    Row(
        "endpoint-ranges",
        E,
        "network.driver_vpc.cidr",
        {**PRIVATE, "network.driver_vpc": {**DRIVER, "cidr": "ten"}},
        cure="10.0.0.0/16",
    ),
    Row(
        "endpoint-ranges",
        E,
        "network.cidr",
        {**PRIVATE, "network.driver_vpc": {**DRIVER, "cidr": "10.42.128.0/20"}},
        cure="another",
    ),
)
VPCS = (
    Row(WHOLE, E, "network.vpc_id", without("subnet_ids"), cure="gpu in us-east-1a"),
    Row(WHOLE, E, "network.subnet_ids", without("vpc_id"), cure="vpc_id"),
    Row(WHOLE, E, IN_CONTROL,
        {**SOUND, "network.subnet_ids": {"gpu": GPU, "control_plane": [FIRST, FIRST]}}, cure="two zones"),
    Row(WHOLE, E, "network.cidr", {**SOUND, "network.cidr": "10.9.0.0/16"}, cure="remove"),
    Row(WHOLE, E, "second_zone", {**SOUND, "second_zone": "us-east-1c"}, cure="remove"),
    Row(WHOLE, E, "network.driver_vpc", {**SOUND, "network.driver_vpc": DRIVER},
        cure="api_allowed_cidrs"),
    Row("private-endpoint-access", E, "network.api_allowed_cidrs", {**SOUND, **ON_AWS, **PRIVATE},
        cure="the driver's range"),
    row(THERE, "network.vpc_id", existing(exists=False), "describe-vpcs"),
    row(THERE, "network.vpc_id", existing(owner="999999999999"), "the spec's account"),
    row(THERE, "network.vpc_id", existing(mark="bivouac:campaign=other"), "no campaign"),
    row(THERE, IN_GPU, existing(subnets=()), "describe-subnets"),
    row(THERE, IN_GPU, existing({GPU: {"zone": "us-east-1b"}}), "zone: us-east-1b"),
    row(THERE, IN_CONTROL, existing({SECOND: {"zone": "us-east-1a"}}), "another second"),
    row(THERE, IN_CONTROL, existing({SECOND: {"zone": "us-east-1e"}}), "another zone"),
    row(NAMES, "network.vpc_id", existing(dns_support=False), "--enable-dns-support"),
    row(NAMES, "network.vpc_id", existing(dns_hostnames=False), "--enable-dns-hostnames"),
    row(NAMES, "network.vpc_id", existing(name_servers=("10.0.0.2",)), "AmazonProvidedDNS"),
    row(APART, "network.vpc_id", existing(cidrs=("10.9.0.0/16", "172.20.128.0/20")), "outside"),
    row(ROOM, IN_GPU, existing({GPU: {"free_addresses": 25}}), "larger"),
    row(ROOM, IN_CONTROL, existing({FIRST: {"free_addresses": 45}}), "larger"),
    row(ROOM, IN_CONTROL, existing({SECOND: {"free_addresses": 5}}), "larger"),
    row(REACHES, IN_GPU, existing({GPU: {"public_addresses": True}}), "--no-map-public-ip-on-launch"),
    row(REACHES, IN_GPU, existing({GPU: {"default_route": ""}}), "NAT gateway"),
    row(REACHES, IN_CONTROL, existing({FIRST: {"default_route": "igw-0123456789abcdef0"}}), "its endpoints suffice"),
    row(REACHES, IN_GPU, existing({GPU: {"default_route": "pcx-0123456789abcdef0"}}, endpoints={}), "eks-auth"),
    row(REACHES, IN_GPU, existing({GPU: {"s3_gateway": False}}), "free", W),
    row(REACHES, "network.egress", existing(endpoints={}), "private DNS", network__egress="endpoints"),
    row(REACHES, IN_GPU, existing({GPU: {"s3_gateway": False}}), "gateway endpoint", network__egress="endpoints"),
    row(REACHES, IN_CONTROL, existing(endpoints=dict.fromkeys(ENDPOINT_SERVICES, ("10.9.0.0/24",))), "10.9.1.0/24",
        network__egress="endpoints"),
    row(BLOCKS, IN_GPU, existing({GPU: {"acl": CLOSED}}), "ACL"),
    row(BLOCKS, IN_CONTROL, existing({SECOND: {"acl": ()}}), "ACL"),
    Row(BUILDS, E, IN_PLACE, BUILDERS, place(subnet=None), cure="describe-subnets"),
    Row(BUILDS, E, IN_PLACE, BUILDERS, place({"free_addresses": 0}), cure="another subnet"),
    Row(BUILDS, E, IN_PLACE, BUILDERS, place({"default_route": "igw-0123456789abcdef0"}), cure="NAT gateway"),
    Row(BUILDS, E, IN_PLACE, BUILDERS, place({"acl": CLOSED}), cure="ACL"),
    Row(BUILDS, E, IN_GROUP, BUILDERS, place(group=False), cure="one of the VPC"),
    Row(BUILDS, E, IN_GROUP, BUILDERS, place(https_to=()), cure="TCP 443"),
    Row(BUILDS, W, IN_GROUP, BUILDERS, place(https_to=("10.0.0.0/8",)), cure="TCP 443"),
    Row(BUILDS, W, IN_GROUP, BUILDERS, place(let_in=("0.0.0.0/0",)), cure="without ingress"),
)  # fmt: skip
NETWORKS = DOORS + VPCS
