"""The generations of an attempt on one node: run the ranks, judge their end, meet the other nodes, run them again."""

from __future__ import annotations

import signal
import threading
import time
from typing import Protocol

from trainer.contract.exits import GPU, HARDWARE_SIGNALS, PEER_LOST, RESTARTABLE
from trainer.supervisor.ends import DONE, INTERNAL, INTERRUPTED, End
from trainer.supervisor.in_place.meeting import Decision, Meeting, Word


class Restartable(Protocol):
    """A job whose ranks can start more than once."""

    stopping: str

    def emit(self, event: str, **fields: object) -> None: ...
    def start_ranks(self, generation: int, over_event: threading.Event) -> End:
        """Start this node's ranks and return how they ended. None lives then; `over_event` ends them at once."""

    def suspicion(self) -> str:
        """Return why this node's devices are suspected; empty when they are not."""

    def prepare(self, generation: int, culprit: Word) -> None:
        """Make ready for the next generation, which follows a death."""


class Generations:
    def __init__(self, job: Restartable, node: str, meeting: Meeting, most: int) -> None:
        """`most`: restarts in place of this attempt; 0: none."""
        self._job, self._node, self._meeting, self._most = job, node, meeting, most

    def run(self) -> End:
        """Run generation after generation. Return the last one's end, which is the pod's."""
        generation = 0
        while True:
            over_event = threading.Event()
            if self._most:
                self._meeting.watch(generation, over_event)
            end = self._job.start_ranks(generation, over_event)
            over_event.set()
            outcome = self._continue_after(generation, end)
            if isinstance(outcome, End):
                return outcome
            generation += 1
            self._job.prepare(generation, outcome)

    def _continue_after(self, generation: int, end: End) -> End | Word:
        """Return the pod's end, or whose death is followed by another generation."""
        if end.code == DONE or not self._most:
            return end
        now, own_death, reason = time.time(), is_own(end), self._refusal(generation, end)
        if own_death and not reason:
            self._meeting.tell_over(generation)
        reason = reason or self._job.suspicion()
        word = Word(self._node, reason, own_death, end.rank, end.detail[:300] or end.reason, now)
        self._job.emit("agents_meet", after_generation=generation, refuses=reason, own=own_death, cause=word.cause)
        if reason:
            self._meeting.refuse(generation, word)
            decision = Decision(False, f"{self._node}: {reason}")
        else:
            decision = self._meeting.decide(generation, word, lambda: bool(self._job.stopping))
        if decision.go and decision.culprit is not None:
            return decision.culprit
        self._job.emit("not_restarted_in_place", after_generation=generation, why=decision.why)
        if not self._job.stopping or reason:
            return end
        detail = f"asked to stop while the agents met; before: {end.detail}"
        return end._replace(code=INTERRUPTED, reason="interrupted", detail=detail)

    def _refusal(self, generation: int, end: End) -> str:
        if self._job.stopping:
            return "it is asked to stop"
        if generation >= self._most:
            return f"{self._most} restarts in place are the most of an attempt"
        return refusal(end)


def refusal(end: End) -> str:
    """Return why an end is not for a restart in place; empty when it is, as far as the end itself tells."""
    if end.reason == GPU:
        return f"the error may come from the GPU: {end.detail[:200]}"
    if end.code != INTERNAL or end.reason not in RESTARTABLE:
        return f"the reason is {end.reason}"
    if end.signal in HARDWARE_SIGNALS:
        return f"{signal.Signals(end.signal).name} may come from the hardware"
    return ""


def is_own(end: End) -> bool:
    """Return whether a rank of this node died by itself, and not because of another node's."""
    return end.reason != PEER_LOST
