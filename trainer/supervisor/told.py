"""What a job tells by `trainer.client`: lines in files of the run's folder, one file per rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

ASKS, STOP = "asks", "stop"
"""Files: the job asks whether it should stop; it should."""


class Told:
    def __init__(self, run: Path) -> None:
        self._run = run
        self._read: dict[str, int] = {}

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield each whole line since the last call, with its rank, the lowest rank first."""
        for path in sorted(self._run.glob("told-[0-9]*.jsonl"), key=lambda path: (len(path.name), path.name)):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            for line in whole.splitlines():
                if (said := _said(line)) is not None:
                    yield dict(said, rank=int(path.stem.partition("-")[2]))

    def asks(self) -> bool:
        return (self._run / ASKS).exists()

    def stop(self) -> None:
        (self._run / STOP).touch()


def _said(line: bytes) -> dict[str, Any] | None:
    """Return what the client wrote; None for anything else, since the file is the job's to write."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("step"), int) else None
