"""`bivouac cp NAME RANK:/path here`, or the other way round: files out of a rank's container and into it."""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from rich.console import Console

from infra.cli.look.inside import open_cluster
from infra.cli.records import record_of
from infra.cluster import transfer
from infra.cluster.execution import Containers
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.words import size
from infra.errors import UserError

_PLACE = re.compile(r"(?P<rank>\d+):(?P<path>.+)")


class CopyEnd(NamedTuple):
    rank: int | None
    """None: this machine."""
    path: str

    @classmethod
    def parse(cls, text: str) -> CopyEnd:
        match = _PLACE.fullmatch(text)
        return cls(None, text) if match is None else cls(int(match["rank"]), match["path"])


def cp_command(campaign: str, region: str, source: str, destination: str, console: Console) -> int:
    """Copy; exit code 0 when every byte has been compared."""
    begin, end = CopyEnd.parse(source), CopyEnd.parse(destination)
    if (begin.rank is None) == (end.rank is None):
        raise UserError(
            "one side must be a rank, the other one this machine",
            seen=f"{source} {destination}",
            cure=f"bivouac cp {campaign} 0:/local-checkpoints/x ./x, or ./x 0:/tmp/x; ./1:x is a file of this machine",
        )
    if begin.rank is None and not os.path.lexists(begin.path):
        raise UserError("there is no such file or folder", seen=begin.path, cure="write the path of one that is here")
    with open_cluster(record_of(campaign, region), "cp") as cluster:
        rank = begin.rank if begin.rank is not None else end.rank
        assert rank is not None, "one of them is a rank"
        member = cluster.rank(rank)
        cluster.note(member, "bivouac cp, out of it" if begin.rank is not None else "bivouac cp, into it")
        progress = Progress(console)
        with progress.stage("copy", f"{source} to {destination}"):
            copy = transfer.out_of if begin.rank is not None else transfer.into
            outcome = copy(Containers(cluster.http), member, begin.path, end.path, Counted(progress))
        say(console, f"{outcome['path']}: {outcome['files']} files, {size(outcome['bytes'])}, SHA-256 compared")
    return 0


class Counted:
    """Tells the bytes that have passed."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._bytes, self._begun = progress, 0, time.monotonic()
        self._of = ""

    def of(self, total: int) -> None:
        self._of = f" of {size(total)}"

    def passed(self, count: int) -> None:
        self._bytes += count
        rate = self._bytes / max(time.monotonic() - self._begun, 0.001)
        self._progress.step(f"{size(self._bytes)}{self._of}, {size(int(rate))}/s")

    def note(self, text: str) -> None:
        self._progress.note(text)
