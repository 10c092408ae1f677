"""The zones of a region, as an account has them, and what is sold in them."""

from __future__ import annotations

from infra.aws.account import Account
from infra.plan.facts import Zone


def zones_of(account: Account) -> tuple[Zone, ...]:
    """Availability zones that are there for this account, by name; no local and no wavelength zones."""
    kind = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    found = account.client("ec2").describe_availability_zones(Filters=kind)["AvailabilityZones"]
    zones = (Zone(name=one["ZoneName"], id=one["ZoneId"], state=one.get("State", "available")) for one in found)
    return tuple(sorted(zones, key=lambda zone: zone.name))


def zones_selling(account: Account, instance_type: str) -> tuple[str, ...]:
    """Names of the region's zones in which EC2 offers the type to this account; none where it knows no such type."""
    wanted = [{"Name": "instance-type", "Values": [instance_type]}]
    pages = account.client("ec2").get_paginator("describe_instance_type_offerings")
    found = pages.paginate(LocationType="availability-zone", Filters=wanted)
    return tuple(sorted(one["Location"] for page in found for one in page["InstanceTypeOfferings"]))
