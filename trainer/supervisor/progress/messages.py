"""What a job tells by `trainer.client`, and one node passes on to another: lines in files of a folder, one per rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

from trainer.supervisor.progress.lines import LARGEST

ASKS, STOP = "asks", "stop"
"""Files: the job asks whether it should stop; it should."""
_AT_ONCE = 1 << 20
"""Bytes that are read of one file in one look."""
_FINITE = 1e300


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
            whole = content[: content.rfind(b"\n") + 1] or content[: len(content) if len(content) == _AT_ONCE else 0]
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            for line in whole.splitlines():
                if (message := _message(line)) is not None:
                    yield dict(message, rank=int(rank))

    def asks(self) -> bool:
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
    told, folder = {"step": message["step"]}, message.get("folder")
    if folder is not None:
        return {**told, "folder": folder, **_version(message)} if isinstance(folder, str) else None
    if message.get("ended") is True:
        return {**told, "ended": True}
    return {**told, **{name: float(message[name]) for name in ("loss", "tokens") if _is_figure(message.get(name))}}


def _version(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint was when it was told, if the client has noted that."""
    version = message.get("version")
    noted = isinstance(version, list) and len(version) == 3 and all(type(one) is int for one in version)
    return {"version": version} if noted else {}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _FINITE
