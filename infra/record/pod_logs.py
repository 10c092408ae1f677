"""Pods' logs in a campaign's record: pieces `logs/<pod>/<number>.log`, each written once, together what was printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from infra.record.store import CampaignStore

FOLDER = "logs/"
UNTIL = "until"
"""Metadata of a piece: where in the pod's log it ends, as `Position.stored`."""


class Position(NamedTuple):
    """A place in a pod's log, by the times that the node's container runtime put to its lines."""

    at: int = 0
    """Time of the last line before it, ns since the epoch."""
    lines: int = 0
    """How many lines of that very time lie before it."""

    def stored(self) -> str:
        return f"{self.at} {self.lines}"

    @classmethod
    def parse(cls, stored: str) -> Position:
        at, lines = stored.split()
        return cls(int(at), int(lines))


def piece(pod: str, number: int) -> str:
    """Name in the record of a pod's piece, counted from 0."""
    return f"{FOLDER}{pod}/{number:06d}.log"


def pods(store: CampaignStore) -> list[str]:
    return store.folders(FOLDER)


def pieces(store: CampaignStore, pod: str) -> list[str]:
    """Keys of a pod's pieces in order."""
    return sorted(store.keys(f"{FOLDER}{pod}/"))


def by_pod(keys: Iterable[str]) -> dict[str, list[str]]:
    """Pod -> the keys of its pieces in order, of all keys of a record."""
    found: dict[str, list[str]] = {}
    for key in sorted(keys):
        folder, _, _ = key.rpartition("/")
        above, _, pod = folder.rpartition("/")
        if f"{above}/".endswith(f"/{FOLDER}"):
            found.setdefault(pod, []).append(key)
    return found
