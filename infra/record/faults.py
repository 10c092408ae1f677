"""The account's memory of what failed: GPU nodes and images, as later campaigns see them. It lies in the foundation's
folder of the state bucket, one object for each node or image of a campaign."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import AwareDatetime, ValidationError

from infra.record.objects import object_or_none
from trainer.contract.frozen import Frozen

FOLDER = "foundation/faults/"
"""Prefix in the state bucket; below it a folder for each campaign, the only one where its steward may write."""
KEPT_FOR = timedelta(days=14)
"""AWS repairs or retires a broken host within days, and a fault that nobody can look up any more helps nobody."""
_LONGEST = 300


class PastFault(Frozen, extra="ignore"):
    """What failed once, and how it can be known again."""

    at: AwareDatetime
    campaign: str
    reason: str
    node: str = ""
    instance: str | None = None
    hardware: tuple[str, ...] = ()
    """UUIDs of its GPUs, by which a host is known again under another instance ID. Empty: nobody has read them."""
    network: tuple[str, ...] = ()
    """Its place in the network, from the top layer down, by EKS's labels from DescribeInstanceTopology."""
    image: str | None = None
    """AMI on which every node failed alike; None for a fault of one node."""

    def __str__(self) -> str:
        name, end = self.image or self.instance or self.node, self.at + KEPT_FOR
        words = f"{name} failed on {self.at:%Y-%m-%d} in {self.campaign} (avoided until {end:%Y-%m-%d})"
        return f"{words}: {self.reason[:_LONGEST]}"


class KnownFaults(NamedTuple):
    faults: tuple[PastFault, ...]
    """Those that still count, the newest first."""
    unread: tuple[str, ...] = ()
    """Keys of objects that could not be read: they refuse nothing."""

    def of_node(self, instance: str, hardware: Iterable[str]) -> PastFault | None:
        """Return the newest fault of this instance or of one of these GPUs."""
        gpus = set(hardware)
        return next((row for row in self.faults if instance == row.instance or gpus & set(row.hardware)), None)

    def of_image(self, image: str) -> PastFault | None:
        return next((row for row in self.faults if row.image == image), None)


def note_fault(store_object: Callable[[str, bytes], object], fault: PastFault) -> None:
    """Store a fault by `store_object(key, content)`; a second one of the same node or image replaces the first. Raises
    S3's errors."""
    name = fault.image or fault.instance or fault.node
    store_object(f"{FOLDER}{fault.campaign}/{name}.json", fault.model_dump_json(exclude_defaults=True).encode())


def read_faults(s3: Any, bucket: str, now: datetime) -> KnownFaults:
    """Return the account's faults of the last `KEPT_FOR`. Raises S3's errors."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=FOLDER)
    rows = [row for page in pages for row in page.get("Contents", ()) if row["LastModified"] > now - KEPT_FOR]
    faults, unread = list[PastFault](), list[str]()
    for row in rows:
        body = object_or_none(s3, bucket, row["Key"])
        try:
            fault = PastFault.model_validate(json.loads(body or b""))
        except (ValidationError, ValueError, RecursionError):
            unread.append(str(row["Key"]))
        else:
            faults += [fault] if fault.at > now - KEPT_FOR else []
    return KnownFaults(tuple(sorted(faults, key=lambda fault: fault.at, reverse=True)), tuple(unread))
