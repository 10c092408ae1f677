"""The newest lines of a rank's log, followed by a thread while `bivouac watch` shows them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import httpx2
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console

from infra.cli.look.logs import Asked, PodReader, in_words, living_logs, node_of, pods_of
from infra.cli.records import record_of
from infra.errors import BivouacError, first_line

KEPT = 500
_LOOK_S = 2.0
FollowLines = Callable[[int, threading.Event], Iterator[str]]
"""Yields the lines of a rank's node as they come, until the event is set."""


class LogTail:
    """Follows one rank at a time: another rank, or None, ends what was followed before."""

    def __init__(self, follow: FollowLines) -> None:
        self._follow = follow
        self._rank: int | None = None
        self._closing = threading.Event()
        self.lines: deque[str] = deque(maxlen=KEPT)
        self.trouble = ""
        """Why no lines come."""

    def show(self, rank: int | None) -> None:
        """Follow this rank from now on, if it is another."""
        if rank == self._rank:
            return
        self._closing.set()
        self._rank, self._closing, self.lines, self.trouble = rank, threading.Event(), deque(maxlen=KEPT), ""
        if rank is not None:
            threading.Thread(target=self._run, args=(rank, self._closing, self.lines), daemon=True).start()

    def _run(self, rank: int, closing: threading.Event, lines: deque[str]) -> None:
        try:
            for line in self._follow(rank, closing):
                if closing.is_set():
                    return
                lines.append(line)
        except (BivouacError, BotoCoreError, ClientError, httpx2.HTTPError, OSError, ValueError) as error:
            if not closing.is_set():
                self.trouble = first_line(error)


def follow_rank(campaign: str, region: str) -> FollowLines:
    """Return a function that follows a rank's node in the newest attempts, from the record and from the cluster."""

    def follow(rank: int, closing: threading.Event) -> Iterator[str]:
        store, request = record_of(campaign, region), Asked(rank=rank, tail=KEPT)
        node, readers = node_of(store, rank), dict[str, PodReader]()
        with living_logs(store, Console(quiet=True)) as living:
            while not closing.is_set():
                for pod in pods_of(store, living, request, node, readers):
                    readers.setdefault(pod, PodReader(store, living, pod, request, ""))
                for reader in readers.values():
                    yield from map(in_words, reader.read(to_the_end=False))
                closing.wait(_LOOK_S)

    return follow
