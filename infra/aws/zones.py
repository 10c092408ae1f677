"""Zones of a region, and the instance types sold in them."""

from __future__ import annotations

from infra.aws.account import Account
from infra.plan.facts import Zone


def zones_of(account: Account) -> tuple[Zone, ...]:
    """Return the account's availability zones, sorted by name, without local and wavelength zones."""
    kind = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    found = account.client("ec2").describe_availability_zones(Filters=kind)["AvailabilityZones"]
    zones = (Zone(name=one["ZoneName"], id=one["ZoneId"], state=one.get("State", "available")) for one in found)
    return tuple(sorted(zones, key=lambda zone: zone.name))


def zones_selling(account: Account, instance_type: str) -> tuple[str, ...]:
    """Return the zones of the region in which EC2 offers the type to this account; empty for an unknown type."""
    wanted = [{"Name": "instance-type", "Values": [instance_type]}]
    pages = account.client("ec2").get_paginator("describe_instance_type_offerings")
    found = pages.paginate(LocationType="availability-zone", Filters=wanted)
    return tuple(sorted(one["Location"] for page in found for one in page["InstanceTypeOfferings"]))
