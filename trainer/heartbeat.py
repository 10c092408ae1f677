"""How a rank tells its agent where it stands: one small file, replaced at every step; no thread beats for it."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainer.contract import Phase

STOP_NAME = "stop"


class Outcome(BaseModel):
    """How a rank ended, when it could still say so."""

    model_config = ConfigDict(frozen=True)

    exit_code: int
    reason: str
    detail: str = ""


class Beat(BaseModel):
    model_config = ConfigDict(frozen=True)

    rank: int
    pid: int
    at: float
    """CLOCK_MONOTONIC of this machine, seconds."""
    phase: Phase = Phase.STARTING
    step: int = 0
    committed_step: int = -1
    tokens: int = 0
    loss: float | None = None
    step_seconds: float | None = None
    data_wait_seconds: float | None = None
    outcome: Outcome | None = None


class Heartbeat:
    """The writing side; fields stay until they are set again."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = beat_path(folder, rank)
        self._beat = Beat(rank=rank, pid=os.getpid(), at=time.monotonic())
        self.beat()

    def beat(self, **changes: object) -> None:
        loss = changes.get("loss")
        if isinstance(loss, float) and not math.isfinite(loss):
            changes["loss"] = None
        self._beat = self._beat.model_copy(update={**changes, "at": time.monotonic()})
        temporary = self._path.with_suffix(".partial")
        temporary.write_text(self._beat.model_dump_json())
        temporary.rename(self._path)


def read_beats(folder: Path) -> list[Beat]:
    """The last beat of every local rank that has started, by rank."""
    beats = [Beat.model_validate_json(path.read_bytes()) for path in folder.glob("rank-*.json")]
    return sorted(beats, key=lambda beat: beat.rank)


def beat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def request_stop(folder: Path) -> None:
    """Ask the local ranks to commit and end; a file, so that it also reaches a rank that is still starting."""
    (folder / STOP_NAME).touch()


def stop_requested(folder: Path) -> bool:
    return (folder / STOP_NAME).exists()
