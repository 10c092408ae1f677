"""A rank's heartbeat for its agent: a small file, replaced at every step by the rank itself, not by a thread."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from trainer.contract import Phase, StepFigures
from trainer.contract.frozen import Frozen
from trainer.supervisor.progress.messages import STOP


class Outcome(Frozen, extra="ignore"):
    """The end of a rank, if the rank could still write it."""

    exit_code: int
    reason: str
    detail: str = ""


class Beat(Frozen, extra="ignore"):
    rank: int
    pid: int
    at: float
    """Seconds of this machine's CLOCK_MONOTONIC."""
    phase: Phase = Phase.STARTING
    step: int = 0
    committed_step: int = -1
    tokens: int = 0
    loss: float | None = None
    step_seconds: float | None = None
    data_wait_seconds: float | None = None
    figures: StepFigures | None = None
    alarms: int = 0
    outcome: Outcome | None = None


class Heartbeat:
    """Writes the heartbeat; fields keep their values until they are set again."""

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
    """Return the last beat of every local rank that has started, by rank."""
    beats = [Beat.model_validate_json(path.read_bytes()) for path in folder.glob("rank-*.json")]
    return sorted(beats, key=lambda beat: beat.rank)


def forget_beats(folder: Path) -> None:
    """Remove the beats of ranks that have ended, before others are started in their place."""
    for path in folder.glob("rank-*.json"):
        path.unlink(missing_ok=True)


def beat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def stop_requested(folder: Path) -> bool:
    """Return whether the agent has asked the local ranks to commit and end."""
    return (folder / STOP).exists()
