"""The account's memory of what failed: GPU nodes and images, as later campaigns see them.

It lies in the foundation's folder of the state bucket, one object for each node or image of a campaign, since a record
is one campaign's own. A fault counts for `KEPT_FOR`.
"""

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
_MOST_READ = 200
_LONGEST = 300


class Fault(Frozen, extra="ignore"):
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
        return (
            f"{self.image or self.instance or self.node} failed on {self.at:%Y-%m-%d} in {self.campaign}: "
            + (self.reason[:_LONGEST])
        )


class KnownFaults(NamedTuple):
    faults: tuple[Fault, ...]
    """Those that still count, the newest first."""
    unread: tuple[str, ...] = ()
    """Keys of objects that could not be read, and of older ones beyond `_MOST_READ`: they refuse nothing."""

    def of_node(self, instance: str, hardware: Iterable[str]) -> Fault | None:
        """Return the newest fault of this instance or of one of these GPUs."""
        gpus = set(hardware)
        return next((row for row in self.faults if instance == row.instance or gpus & set(row.hardware)), None)

    def of_image(self, image: str) -> Fault | None:
        return next((row for row in self.faults if row.image == image), None)


def note_fault(put: Callable[[str, bytes], object], fault: Fault, root: str = "") -> None:
    """Store a fault by `put(key, content)`; a second one of the same node or image replaces the first. `root`: folder
    of all that is ours in the bucket, with a slash. Raises S3's errors."""
    name = fault.image or fault.instance or fault.node
    put(f"{root}{FOLDER}{fault.campaign}/{name}.json", fault.model_dump_json(exclude_defaults=True).encode())


def read_faults(s3: Any, bucket: str, now: datetime, root: str = "") -> KnownFaults:
    """Return the account's faults of the last `KEPT_FOR`; `root`: see `note_fault`. Raises S3's errors."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{root}{FOLDER}")
    rows = [row for page in pages for row in page.get("Contents", ()) if row["LastModified"] > now - KEPT_FOR]
    rows.sort(key=lambda row: row["LastModified"], reverse=True)
    faults, unread = list[Fault](), [str(row["Key"]) for row in rows[_MOST_READ:]]
    for row in rows[:_MOST_READ]:
        body = object_or_none(s3, bucket, row["Key"])
        try:
            fault = Fault.model_validate(json.loads(body or b""))
        except (ValidationError, ValueError, RecursionError):
            unread.append(str(row["Key"]))
        else:
            faults += [fault] if fault.at > now - KEPT_FOR else []
    return KnownFaults(tuple(sorted(faults, key=lambda fault: fault.at, reverse=True)), tuple(unread))
