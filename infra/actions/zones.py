"""The zones of a region, as an account has them."""

from __future__ import annotations

from infra.account import Account
from infra.facts import Zone


def zones_of(account: Account) -> tuple[Zone, ...]:
    """Availability zones that are there for this account, by name; no local and no wavelength zones."""
    kind = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    found = account.client("ec2").describe_availability_zones(Filters=kind)["AvailabilityZones"]
    zones = (Zone(name=one["ZoneName"], id=one["ZoneId"], state=one.get("State", "available")) for one in found)
    return tuple(sorted(zones, key=lambda zone: zone.name))
