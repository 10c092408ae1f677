"""How far the job of a node is: its step, loss and tokens, heard from its lines and calls on any node."""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

from trainer.supervisor import activity
from trainer.supervisor.place import Place
from trainer.supervisor.progress.lines import LARGEST, Figures, Line, LineReader
from trainer.supervisor.progress.messages import TOLD, Inbox, Outbox, folder_of
from trainer.supervisor.progress.resume import Memory
from trainer.supervisor.progress.steps import Laps, Steps
from trainer.supervisor.running import Allowance

_STEPS, _STEPS_PER_S = 2000, 50
"""Events of steps: so many at once, and so many per second after that."""
_SILENT_S = 60.0
"""A rank that tells steps speaks for the ranks above it until it has told none for so long."""
_LAST_S, _LEAST_S, _PAUSE_S = 10.0, 2.5, 0.2
"""For other nodes' last words, once the job has ended on node 0: at most, and at least where checkpoints are told."""


class Progress:
    def __init__(
        self,
        config: Mapping[str, Any],
        place: Place,
        tier: Path,
        emit: Callable[..., None],
        hear: Callable[[int], None],
        doubt_of: Callable[[int], int],
    ) -> None:
        """`emit` says an event; `hear` takes each step; `doubt_of` returns by how many steps a sealed one may be too
        large."""
        self._place, self._tier, self._emit, self._hear = place, tier, emit, hear
        self._doubt_of = doubt_of
        self.steps = int(config.get("steps") or 0)
        self.by_client = config.get("progress") == "client"
        self._is_exact = config.get("ends") == "exact"
        self._tells_checkpoints = config["checkpoints"]["format"] == "client"
        self._reader = LineReader(config.get("pattern"))
        self._memory = Memory(tier, str(config.get("config_digest", "")))
        self._events = Allowance(_STEPS_PER_S, _STEPS)
        self._alone = threading.RLock()
        self.step, self.tokens = 0, 0
        self.loss: float | None = None
        self.step_seconds: float | None = None
        self.heard = self._risen = time.monotonic()
        """When something was told last."""
        if not place.node_rank:
            shutil.rmtree(tier / TOLD, ignore_errors=True)  # by earlier attempts
        self._start(0, -1, None)

    def begin(self, generation: int, resume_step: int) -> None:
        """Begin with a start of the ranks, which resume from `resume_step`, -1 from none."""
        self._start(generation, resume_step, self._memory.begin(resume_step))

    def _start(self, generation: int, resume_step: int, laps: Laps | None) -> None:
        with self._alone:
            folder, rank = folder_of(self._tier, self._place.attempt, generation), self._first_rank
            self._inbox = Inbox(folder) if rank == 0 else None
            self._outbox = Outbox(folder, rank) if rank else None
            self._counter = Steps(self.steps, max(0, resume_step), laps)
            self._spoke: dict[int, float] = {}
            """Rank -> when it told a step last."""
            self._row: dict[str, Any] = {}
            self._is_said = True
            """The row of the newest step is said. One without a loss waits a moment: it may come on the next line."""
            self.step = max(0, resume_step) if generation else 0
            self._offered = self._noted = resume_step
            self.heard = time.monotonic()

    @property
    def _first_rank(self) -> int:
        return self._place.node_rank * self._place.ranks_per_node

    # What the job tells.

    def hear_line(self, text: str) -> None:
        """Take a line of the job."""
        if self.by_client or (line := self._reader.read(text)) is None:
            return
        rank = self._first_rank if line.rank is None else line.rank
        if line.evaluation or self._speaks(rank):
            self._take(line)

    def hear_call(self, message: Mapping[str, Any]) -> None:
        """Take a step that one of this node's ranks has told by the client."""
        if self.by_client and self._speaks(message["rank"]):
            self._take(_line(message), certain=True)

    def checkpoint(self, message: Mapping[str, Any]) -> None:
        """Pass on to node 0 that a checkpoint is whole."""
        if self._outbox is not None:
            self._outbox.checkpoint(message)

    def _speaks(self, rank: int) -> bool:
        """Return whether no rank below this one has told a step lately: ranks have losses of their own."""
        now = time.monotonic()
        with self._alone:
            if rank < self._place.world_size:
                self._spoke[rank] = now
            return not any(
                other_rank < rank and now - told_at < _SILENT_S for other_rank, told_at in self._spoke.items()
            )

    def _take(self, line: Line, certain: bool = False) -> None:
        with self._alone:
            self.heard = time.monotonic()
            figures = {name: value for name, value in line.figures.items() if math.isfinite(value)}
            step = self._counter.count(line, certain)
            if step is not None:
                self._rise(step, figures)
            elif figures and (line.step is None or self._counter.repeats(line)):
                self._add(figures)

    def _rise(self, step: int, figures: Figures) -> None:
        now = time.monotonic()
        self.tell()
        if step > self.step:
            self.step_seconds = round((now - self._risen) / max(1, step - self.step), 6)
            self.step, self._risen = step, now
        self._row = {"step": step, "loss": None, "seconds": self.step_seconds or 0.0, "time": round(time.time(), 3)}
        self._is_said = False
        self._hear(step)
        if self._outbox is None:
            self._say(self._memory.hear_step(step, self._counter))
        self._add(figures)

    def _add(self, figures: Figures) -> None:
        """Take the figures of the newest step. The first loss is its loss."""
        self.tokens = int(min(max(0.0, figures.get("tokens", self.tokens)), LARGEST))
        if "loss" not in figures or not self._row or self._row["loss"] is not None:
            return
        self.loss = self._row["loss"] = figures["loss"]
        self._is_said = False
        self.tell()
        if self._outbox is None:
            self._say(self._memory.hear_loss(self._row["step"], self.loss))

    def tell(self) -> None:
        """Say the newest step, if it has not been said."""
        with self._alone:
            if self._is_said:
                return
            self._is_said = True
            if self._outbox is not None:
                loss = {} if self._row["loss"] is None else {"loss": self._row["loss"]}
                self._outbox.step(self._row["step"], {**loss, **({"tokens": self.tokens} if self.tokens else {})})
            elif self._events.take(1):
                self._emit("step", **self._row)

    def _say(self, event: dict[str, Any]) -> None:
        if event:
            self._emit(**event)

    # Between nodes and attempts.

    def ask_first_node(self) -> None:
        """Learn node 0's step, on another node."""
        if self._outbox is not None:
            step, sealed_step = activity.steps_of(self._place.rendezvous)
            if step > self.step:
                self._hear(step)
            self.step, self._noted = max(self.step, step), max(self._noted, sealed_step)
            self._outbox.note_first_node(step)

    def exchange(self) -> None:
        """Bring to node 0 what the job tells elsewhere. It may wait for the tier."""
        box = self._inbox or self._outbox
        if box is not None and self._place.node_count > 1:
            box.exchange()

    def news(self) -> Iterator[Mapping[str, Any]]:
        """Take the steps that other nodes have told; yield the checkpoints."""
        for message in self._inbox.news() if self._inbox is not None else ():
            if "folder" in message:
                yield message
            elif self._speaks(message["rank"]):
                self._take(_line(message), certain=True)

    def keep(self, sealed_step: int, is_last: bool = False) -> None:
        """Keep for the next attempt what is known of steps and losses. It may wait for the tier."""
        if self._outbox is None:
            if sealed_step > self._noted:
                self._noted = sealed_step
                self._memory.note_sealed(sealed_step, self._counter.laps, self._doubt_of(sealed_step))
            self._memory.write(is_last)

    def last_messages(self, well: bool) -> Iterator[Mapping[str, Any]]:
        """Hear the last words of other nodes, once the job has ended on node 0, or say this node's to node 0; yield
        checkpoints. `well`: it has ended by itself with code 0, so there is time to wait for them."""
        self.tell()
        if self._place.node_count == 1:
            return
        if self._outbox is not None:
            self._outbox.note_first_node(activity.steps_of(self._place.rendezvous)[0], is_last=True)
            self._outbox.exchange(is_last=True)
            return
        assert self._inbox is not None
        start_s = time.monotonic()
        while time.monotonic() < start_s + _LAST_S:
            self._inbox.exchange()
            yield from self.news()
            early = self._tells_checkpoints and time.monotonic() < start_s + _LEAST_S
            if not well or (not early and self._counter.step is not None and not self._inbox.telling):
                break
            time.sleep(_PAUSE_S)
        self.tell()

    # Its end.

    def has_made(self, sealed_step: int) -> tuple[bool, bool]:
        """Return whether this start has told a step, and whether a newer checkpoint than it came from is sealed."""
        has_stepped = self._counter.step is not None or self.step > max(0, self._offered)
        return has_stepped, max(sealed_step, self._noted) > self._offered

    def finish(self, sealed_step: int) -> tuple[bool, int]:
        """Return whether a job that exits 0 has done its work: it has told a step, or a checkpoint newer than it came
        from is sealed, and where its end is `exact` it is there (the last step of a count from 0 is one less). And by
        how many steps it has ended before its estimate, negative: after it; 0 for about there."""
        step = self._counter.settle()
        if step is not None and step > self.step:
            self._rise(step, {})
            self.tell()
        reached_step = max(self.step, sealed_step)
        has_worked = step is not None or sealed_step > self._offered or reached_step >= self.steps
        left = self.steps - reached_step
        tolerance = max(1, self._counter.interval, self.steps // 100)
        return has_worked and not (self._is_exact and left > 1), left if abs(left) > tolerance else 0


def _line(message: Mapping[str, Any]) -> Line:
    return Line(message["step"], {name: float(message[name]) for name in ("loss", "tokens") if name in message})
