"""The generations of an attempt in one agent: run the ranks, judge their end, meet the other agents, run them again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.builtin.heartbeat import forget_beats, read_beats, stop_requested
from trainer.builtin.in_place.meeting import Meeting, Word
from trainer.builtin.ranks import Ranks
from trainer.contract import ExitCode, Termination
from trainer.contract.exits import HARDWARE_SIGNALS, PEER_LOST, RESTARTABLE
from trainer.events import emit
from trainer.health.gpus import suspicion
from trainer.health.looking import Look, look
from trainer.place import GENERATION_VARIABLE
from trainer.supervisor.place import Place

_LOOK_S = 0.2
_GPU_SIGNS = (
    "cuda error", "cuda failure", "cuda driver error", "cudnn", "cublas", "nvml", "xid", " ecc ", "uncorrectable",
)  # fmt: skip
"""Words of errors behind which a GPU may be broken."""


@dataclass(frozen=True)
class Generations:
    place: Place
    run_folder: Path
    most: int
    """Restarts in place of this attempt; 0: none."""
    meet_s: float
    accelerated: bool
    verdict: Callable[[dict[int, int]], Termination]
    """Return the cause of this node's end from the exit codes of its ranks."""
    look: Look = look

    def run(self, ranks: Ranks) -> Termination:
        """Run generation after generation. Return the last one's end, which is the pod's."""
        meeting, generation = Meeting(ranks.store, self.place, self.meet_s), 0
        while True:
            end_event = threading.Event()
            if self.most:
                meeting.watch(generation, end_event)
            termination = self._termination_of(ranks.run(generation, end_event), end_event)
            end_event.set()
            outcome = self._continue_after(meeting, generation, termination)
            if isinstance(outcome, Termination):
                return outcome
            generation += 1
            self._begin(generation, outcome)

    def _termination_of(self, codes: Mapping[int, int], end_event: threading.Event) -> Termination:
        """Return this node's end. Ranks that ended only since another node's agent had said so have lost a peer."""
        termination = self.verdict(dict(codes))
        by_us = end_event.is_set() and all(code in (0, -signal.SIGTERM) for code in codes.values())
        if by_us and not any(beat.outcome for beat in read_beats(self.run_folder)):
            changes = {"reason": PEER_LOST, "rank": None, "detail": "another node's agent said that a process had died"}
            return termination.model_copy(update={"exit_code": int(ExitCode.INTERNAL), **changes})
        return termination

    def _continue_after(self, meeting: Meeting, generation: int, termination: Termination) -> Termination | Word:
        """Return the pod's end, or whose death is followed by another generation."""
        if termination.exit_code == ExitCode.DONE or not self.most:
            return termination
        now, own_death, reason = time.time(), is_own(termination), self._refusal(generation, termination)
        if own_death and not reason:
            meeting.tell_over(generation)
        reason = reason or sick(self.accelerated, self.look)
        cause = termination.detail[:300] or termination.reason
        node, rank = self.place.node_name, termination.rank
        word = Word(node=node, refuses=reason, own=own_death, rank=rank, cause=cause, at=now)
        emit("agents_meet", after_generation=generation, refuses=reason, own=own_death, cause=cause)
        decision = meeting.decide(generation, word, lambda: stop_requested(self.run_folder))
        if decision.go and decision.culprit is not None:
            return decision.culprit
        emit("not_restarted_in_place", after_generation=generation, why=decision.why)
        return _interruption(termination) if stop_requested(self.run_folder) and not reason else termination

    def _refusal(self, generation: int, termination: Termination) -> str:
        if stop_requested(self.run_folder):
            return "it is asked to stop"
        if generation >= self.most:
            return f"{self.most} restarts in place are the most of an attempt"
        return refusal(termination)

    def _begin(self, generation: int, culprit: Word) -> None:
        """Prepare for the next generation: its ranks inherit the environment, and beats of dead ranks are no news."""
        forget_beats(self.run_folder)
        os.environ[GENERATION_VARIABLE] = str(generation)
        if self.place.node_rank == 0:
            thread = threading.Thread(target=self._tell, args=(generation, culprit), name="restarted", daemon=True)
            thread.start()

    def _tell(self, generation: int, culprit: Word) -> None:
        """Say that ranks were started again, with the seconds from the death to their first new step."""
        while os.environ.get(GENERATION_VARIABLE) == str(generation):
            beats = read_beats(self.run_folder)
            if len(beats) == self.place.ranks_per_node and all(beat.step_seconds is not None for beat in beats):
                emit(
                    "restarted_in_place",
                    generation=generation,
                    step=min(beat.step for beat in beats),
                    culprit=culprit.rank,
                    of_node=culprit.node,
                    cause=culprit.cause,
                    seconds=round(max(0.0, time.time() - culprit.at), 2),
                )
                return
            time.sleep(_LOOK_S)


def refusal(termination: Termination) -> str:
    """Return why an end is not for a restart in place; empty when it is, as far as the end itself tells."""
    if termination.exit_code != ExitCode.INTERNAL or termination.reason not in RESTARTABLE:
        return f"the reason is {termination.reason}"
    if termination.signal in HARDWARE_SIGNALS:
        return f"{signal.Signals(termination.signal).name} may come from the hardware"
    words = f" {termination.detail.lower()} "
    gpu_sign = next((sign for sign in _GPU_SIGNS if sign in words), None)
    return f"the error may come from the GPU: {termination.detail[:200]}" if gpu_sign else ""


def is_own(termination: Termination) -> bool:
    """Return whether a rank of this node died by itself, and not because of another node's."""
    return termination.reason != PEER_LOST


def sick(has_gpu: bool, look: Look) -> str:
    """Return why this node's GPUs are suspected; empty when they are not, and without GPUs."""
    return suspicion(look) if has_gpu else ""


def _interruption(termination: Termination) -> Termination:
    detail = f"asked to stop while the agents met; before: {termination.detail}"[:1500]
    changes = {"exit_code": int(ExitCode.INTERRUPTED), "reason": "interrupted", "detail": detail}
    return termination.model_copy(update=changes)
