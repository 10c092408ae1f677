"""Pods' logs in a campaign's record: pieces `logs/<pod>/<number>.log`, each written once, which join to the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from infra.record.store import CampaignStore

FOLDER = "logs/"
UNTIL = "until"
"""Metadata key of a piece: its end in the pod's log, as `Position.stored`."""


class Position(NamedTuple):
    """A place in a pod's log, by the container runtime's time of each line."""

    at: int = 0
    """Time of the last line before the position, ns since the epoch."""
    lines: int = 0
    """Number of lines of that time before the position."""

    def stored(self) -> str:
        return f"{self.at} {self.lines}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return it; the log's beginning for anything else: lines that are read twice are better than none."""
        try:
            time, lines = map(int, text.split())
        except ValueError:
            return cls()
        return cls(time, lines)


def piece(pod: str, number: int) -> str:
    """Return the name of a pod's piece in the record; numbers begin at 0."""
    return f"{FOLDER}{pod}/{number:06d}.log"


def pods(store: CampaignStore) -> list[str]:
    return store.folders(FOLDER)


def pieces(store: CampaignStore, pod: str) -> list[str]:
    """Return the keys of a pod's pieces in order."""
    return sorted(store.keys(f"{FOLDER}{pod}/"))


def read(store: CampaignStore, key: str) -> tuple[Position, str]:
    """Return a piece: its end in the pod's log, and its lines. Raises S3's errors."""
    piece = store.s3.get_object(Bucket=store.bucket, Key=key)
    return Position.parse(piece["Metadata"].get(UNTIL, "")), piece["Body"].read().decode(errors="replace")


def by_pod(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return pod -> keys of its pieces in order, from all keys of a record."""
    keys_by_pod: dict[str, list[str]] = {}
    for key in sorted(keys):
        folder, _, _ = key.rpartition("/")
        parent, _, pod = folder.rpartition("/")
        if f"{parent}/".endswith(f"/{FOLDER}"):
            keys_by_pod.setdefault(pod, []).append(key)
    return keys_by_pod
