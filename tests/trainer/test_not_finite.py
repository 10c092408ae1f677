"""A loss that is not finite is computed again, once; then it ends the training after the checkpoint being written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.test_loop_pace import alone
from trainer.builtin.checkpoint.commit import VOTES
from trainer.builtin.loop import Loop, Stepped
from trainer.builtin.watch.figures import Mine
from trainer.errors import NumericError, StorageError

NOT_A_NUMBER = float("nan")


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


def again(loop: Loop, losses: list[float], applied: bool = False) -> Stepped:
    """A step whose loss is the first of these, and each further one when it is computed again."""
    loop.step = 26
    loop.engine.was_step_applied = lambda: applied
    found = iter(losses)
    loop.overseer.compute = lambda fed: Mine(loss=next(found))  # type: ignore[method-assign]
    first = loop._agree(Mine(loss=next(found)), time.monotonic(), 0, 0.1)
    fed: Any = SimpleNamespace(digest=0)
    stepped = loop._recompute(first, fed, time.monotonic())
    assert next(found, None) is None
    return stepped


def ended(tmp_path: Path, error: Exception | None) -> tuple[Committer, list[dict[str, Any]]]:
    loop: Loop = alone(tmp_path)
    committer, beats = Committer(error), list[dict[str, Any]]()
    loop.committer = committer  # type: ignore[assignment]
    loop.heartbeat = SimpleNamespace(beat=lambda **told: beats.append(told))  # type: ignore[assignment]
    with pytest.raises(NumericError, match=r"not finite; seen: step 26, loss nan, first on rank 0, again when comp"):
        again(loop, [NOT_A_NUMBER, NOT_A_NUMBER])
    return committer, beats


def test_the_checkpoint_under_way_is_committed_on_both_tiers_and_told_before_the_end(tmp_path: Path) -> None:
    committer, beats = ended(tmp_path, None)
    assert committer.drained == [True] and beats[-1] == {"committed_step": 20}


def test_a_checkpoint_that_fails_then_does_not_hide_why_the_training_ends(tmp_path: Path) -> None:
    committer, beats = ended(tmp_path, StorageError("the disk is full", finding="0 bytes"))
    assert committer.drained == [True] and beats[-1] == {"committed_step": 0}


def test_a_step_that_is_finite_when_it_is_computed_again_counts_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stepped = again(alone(tmp_path), [NOT_A_NUMBER, 2.5])
    assert stepped.finite and stepped.loss == 2.5
    (told,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (told["event"], told["detector"], told["step"], told["ranks"]) == ("watch", "nan", 26, [0])


def test_what_the_optimizer_has_applied_cannot_be_computed_again(tmp_path: Path) -> None:
    loop = alone(tmp_path)
    loop._keep_what_is_written = lambda: None  # type: ignore[method-assign]
    with pytest.raises(NumericError, match=r"first on rank 0$"):
        again(loop, [NOT_A_NUMBER], applied=True)
