"""A loss that is not finite ends the training after the checkpoint that was being written, not before."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.test_loop_pace import alone
from trainer.checkpoint.commit import VOTES
from trainer.errors import NumericError, StorageError
from trainer.loop import Loop


class Committer:
    """Step 20 is being written; a drain commits it, or fails."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.committed_step, self.drained = error, 0, list[bool]()

    def votes(self) -> list[float]:
        return [0.0] * VOTES

    def drain(self, replicate: bool) -> None:
        self.drained.append(replicate)
        if self.error is not None:
            raise self.error
        self.committed_step = 20


def ended(tmp_path: Path, error: Exception | None) -> tuple[Committer, list[dict[str, Any]]]:
    loop: Loop = alone(tmp_path)
    committer, beats = Committer(error), list[dict[str, Any]]()
    loop.committer = committer  # type: ignore[assignment]
    loop.heartbeat = SimpleNamespace(beat=lambda **told: beats.append(told))  # type: ignore[assignment]
    loop.step = 26
    with pytest.raises(NumericError, match=r"not finite; seen: step 26, loss nan"):
        loop._agree(float("nan"), time.monotonic(), 0, 0.0, 0.1)
    return committer, beats


def test_the_checkpoint_under_way_is_committed_on_both_tiers_and_told_before_the_end(tmp_path: Path) -> None:
    committer, beats = ended(tmp_path, None)
    assert committer.drained == [True] and beats[-1] == {"committed_step": 20}


def test_a_checkpoint_that_fails_then_does_not_hide_why_the_training_ends(tmp_path: Path) -> None:
    committer, beats = ended(tmp_path, StorageError("the disk is full", seen="0 bytes"))
    assert committer.drained == [True] and beats[-1] == {"committed_step": 0}
