"""The capacity blocks that the emulated EC2 offers, and their behaviour."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from infra.rehearsal.aws.operations import AwsError, Parameters
from trainer.contract.frozen import Frozen

BLOCK_HOURLY_USD = {
    "p4d.24xlarge": 11.80,
    "p4de.24xlarge": 14.80,
    "p5.4xlarge": 3.933,
    "p5.48xlarge": 31.464,
    "p5e.48xlarge": 34.608,
    "p5en.48xlarge": 36.184,
    "p6-b200.48xlarge": 68.8,
    "p6-b300.48xlarge": 86.0,
    "trn1.32xlarge": 9.532,
    "trn2.48xlarge": 35.7,
}
"""Invented round figures near the public ones: a rehearsal needs a fee, not a quotation."""
OFFERINGS_PER_TYPE = 2
MAX_BLOCK = timedelta(days=182)


class Blocks(Frozen):
    """Settings of `/_site/blocks` for the offers and for the bought blocks; an empty body reads them."""

    start_in_s: float | None = None
    """The first offering begins this long after it was set; None means tomorrow at 11:30 UTC, as on AWS."""
    asked_at: datetime | None = None
    late_s: float = 0.0
    """A block stays `scheduled` for this long after its begin."""
    payment: Literal["succeeds", "fails"] = "succeeds"
    end_in_s: float | None = None
    """Bought blocks end after this time."""
    sold_out: bool = False
    """If True, a purchase removes its offering; otherwise it can be bought again, which AWS does not rule out."""
    groups: dict[str, tuple[str, ...]] = {}
    """ARN of a resource group -> the reservations in it."""


class Bought(Frozen):
    """Body of `/_site/bought`: capacity that somebody has bought before a campaign, under the name in its spec."""

    name: str
    """`cr-...`, the ARN of a resource group, or `open`."""
    kind: Literal["default", "capacity-block"]
    instance_type: str
    zone: str
    count: int
    """Places; one that is there already keeps what it has beyond them."""

    @property
    def reservation_id(self) -> str:
        """Return the reservation's id: the name, or one that a group's or any reservation of this sort always has."""
        if self.name.startswith("cr-"):
            return self.name
        return f"cr-{hashlib.sha256(f'{self.name} {self.instance_type} {self.zone}'.encode()).hexdigest()[:17]}"


def offerings(params: Parameters, region: str, blocks: Blocks) -> list[dict[str, Any]]:
    """Return the answer of DescribeCapacityBlockOfferings."""
    kind, count = params.get("InstanceType") or "", int(params.get("InstanceCount") or 1)
    hourly_usd = BLOCK_HOURLY_USD.get(kind)
    if hourly_usd is None:
        return []
    hours = int(params["CapacityDurationHours"])
    if hours % 24 or not timedelta(hours=24) <= timedelta(hours=hours) <= MAX_BLOCK:
        raise AwsError("InvalidParameterValue", f"CapacityDurationHours {hours} is not a number of whole days")
    earliest = max(utc(params.get("StartDateRange")) or datetime.now(UTC), datetime.now(UTC))
    offers = []
    for number in range(OFFERINGS_PER_TYPE):
        start = earliest.replace(hour=11, minute=30, second=0, microsecond=0) + timedelta(days=number + 1)
        if blocks.start_in_s is not None:
            start = (blocks.asked_at or earliest) + timedelta(seconds=blocks.start_in_s, days=number)
        digest = hashlib.sha256(f"{kind} {count} {hours} {start}".encode()).hexdigest()
        offering = {
            "CapacityBlockOfferingId": f"cbr-{digest[:17]}",
            "InstanceType": kind,
            "AvailabilityZone": f"{region}{'ab'[number % 2]}",
            "InstanceCount": count,
            "StartDate": start,
            "EndDate": start + timedelta(hours=hours),
            "CapacityBlockDurationHours": hours,
            "UpfrontFee": str(math.ceil(hourly_usd * hours * count * 100) / 100),
            "CurrencyCode": "USD",
            "Tenancy": "default",
        }
        latest = utc(params.get("EndDateRange"))
        if latest is None or start + timedelta(hours=hours) <= latest:
            offers.append(offering)
    return offers


def utc(moment: datetime | None) -> datetime | None:
    """Mark a time as UTC: moto's parser returns naive UTC."""
    return moment.replace(tzinfo=UTC) if moment else None
