"""What a job tells by `trainer.client`, and one node passes on to another: lines in files of a folder, one per rank.

Node 0 seals, and its log has the steps. Another node keeps what its ranks tell, asks node 0 for its step as it does
anyway, and begins to write it down, on the shared tier, once node 0 is behind what it knew at the last time: where node
0's own ranks tell their steps, nothing is written. A finished checkpoint is always written down.
"""

from __future__ import annotations

import contextlib
import json
import queue
from collections import deque
from pathlib import Path
from typing import Any, Iterator, Mapping

from trainer.supervisor.progress.lines import LARGEST

ASKS, STOP = "asks", "stop"
"""Files: the job asks whether it should stop; it should."""
_AT_ONCE = 1 << 20
"""Bytes that are read of one file in one look."""
_FINITE = 1e300
TOLD = "told"
"""Folder below the campaign's on the shared tier."""
_KEPT = 1000
"""Steps that a node keeps for node 0."""


class Messages:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield each whole line since the last call, with its rank, the lowest rank first."""
        for path in sorted(self._folder.glob("told-[0-9]*.jsonl"), key=lambda path: (len(path.name), path.name)):
            rank = path.stem.partition("-")[2]
            if not rank.isdecimal():
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                content = file.read(_AT_ONCE)
            whole_lines = (
                content[: content.rfind(b"\n") + 1] or content[: len(content) if len(content) == _AT_ONCE else 0]
            )
            self._read[path.name] = self._read.get(path.name, 0) + len(whole_lines)
            for line in whole_lines.splitlines():
                if (message := _message(line)) is not None:
                    yield dict(message, rank=int(rank))

    def job_asks(self) -> bool:
        return (self._folder / ASKS).exists()

    def stop(self) -> None:
        (self._folder / STOP).touch()


def _message(line: bytes) -> dict[str, Any] | None:
    """Return what the client wrote; None for anything else, since the file is the job's to write."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not _is_count(message.get("step")):
        return None
    fields, folder = {"step": message["step"]}, message.get("folder")
    if folder is not None:
        return {**fields, "folder": folder, **_version(message)} if isinstance(folder, str) else None
    if message.get("ended") is True:
        return {**fields, "ended": True}
    return {**fields, **{name: float(message[name]) for name in ("loss", "tokens") if _is_figure(message.get(name))}}


def _version(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint was when it was told, if the client has noted that."""
    version = message.get("version")
    is_version = isinstance(version, list) and len(version) == 3 and all(type(part) is int for part in version)
    return {"version": version} if is_version else {}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _FINITE


def folder_of(tier: Path, attempt: int, generation: int) -> Path:
    return tier / TOLD / f"attempt-{attempt:04d}-generation-{generation}"


class Outbox:
    """Of a node other than 0. `rank`: its first one."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = folder / f"told-{rank}.jsonl"
        self._steps: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._checkpoints: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._newest, self._known = -1, -1
        """Newest step, and the one before node 0 was asked last."""
        self._first_nodes = 0
        """Step that node 0 has told."""
        self._needed = False

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self._steps.append({"step": step, **figures})
        self._newest = step

    def checkpoint(self, message: Mapping[str, Any]) -> None:
        self._checkpoints.append({name: message[name] for name in ("step", "folder", "version") if name in message})

    def note_first_node(self, step: int, is_last: bool = False) -> None:
        """Take node 0's step, 0 where it does not answer. `is_last`: this node's ranks have ended."""
        if step or not self._first_nodes:  # it may have ended before this node, and knew its steps then
            self._needed = self._needed or step < (self._newest if is_last else self._known)
        self._known, self._first_nodes = self._newest, max(step, self._first_nodes)

    def exchange(self, is_last: bool = False) -> None:
        """Write down what node 0 lacks."""
        rows = [self._checkpoints.popleft() for _ in range(len(self._checkpoints))]
        if self._needed:
            rows += [self._steps.popleft() for _ in range(len(self._steps))]
        if is_last and (rows or self._file.exists()):
            rows.append({"step": 0, "ended": True})
        if not rows:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
        except OSError:  # a full tier: checkpoints are told again, steps that are lost are followed by others
            self._checkpoints.extendleft(row for row in reversed(rows) if "folder" in row)


class Inbox:
    """Of node 0."""

    def __init__(self, folder: Path) -> None:
        self._messages = Messages(folder)
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.telling: set[int] = set()
        """First ranks of the nodes that have told something and have not ended."""

    def exchange(self) -> None:
        with contextlib.suppress(OSError):  # a tier that does not answer: the next look is soon
            for message in self._messages.news():
                self._queue.put(message)

    def news(self) -> Iterator[dict[str, Any]]:
        while not self._queue.empty():
            message = self._queue.get()
            if "ended" in message:
                self.telling.discard(message["rank"])
            else:
                self.telling.add(message["rank"])
                yield message
