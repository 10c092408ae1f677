"""Zones of a region, and the instance types sold in them."""

from __future__ import annotations

from infra.aws.account import Account, every
from infra.plan.facts import Zone


def zones_of(account: Account) -> tuple[Zone, ...]:
    """Return the account's availability zones, sorted by name, without local and wavelength zones."""
    kind = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    descriptions = account.client("ec2").describe_availability_zones(Filters=kind)["AvailabilityZones"]
    zones = (
        Zone(name=description["ZoneName"], id=description["ZoneId"], state=description.get("State", "available"))
        for description in descriptions
    )
    return tuple(sorted(zones, key=lambda zone: zone.name))


def zones_selling(account: Account, instance_type: str) -> tuple[str, ...]:
    """Return the zones of the region in which EC2 offers the type to this account; empty for an unknown type."""
    filters = [{"Name": "instance-type", "Values": [instance_type]}]
    request = {"LocationType": "availability-zone", "Filters": filters}
    offerings = every(account.client("ec2"), "describe_instance_type_offerings", "InstanceTypeOfferings", **request)
    return tuple(sorted(offering["Location"] for offering in offerings))
