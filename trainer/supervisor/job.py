"""One node's share of a job: it starts the launcher, reads its lines, seals checkpoints, and ends by the contract."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from typing import Any, Mapping

from trainer.supervisor import activity, ends, family, launcher
from trainer.supervisor.ends import DATA, DONE, INTERRUPTED, STORAGE, USER, End
from trainer.supervisor.formats import Finished
from trainer.supervisor.place import Place
from trainer.supervisor.progress import Reader
from trainer.supervisor.running import Running, say
from trainer.supervisor.sealing import local as sealing
from trainer.supervisor.sealing.shared import NothingSound

_LOOK_S, _RARELY = 1.0, 5
"""All processes are read in one look of five: that costs more than all else here."""
_WORKS_S = 0.05
"""Processor time between two looks that shows life."""
_SHOWN_S = 10.0
"""Between two lines of a progress bar that are passed on: it writes ten a second, and a log keeps each."""


class Job(Running):
    def __init__(
        self, config: Mapping[str, Any], place: Place, shared: Path, run: Path, local: Path = Path(sealing.LOCAL)
    ) -> None:
        super().__init__(config, place, run)
        self.tier = shared / place.campaign
        self.reader = Reader(config.get("pattern"))
        self.steps = int(config.get("steps") or 0)
        self.step, self.tokens, self.generation = 0, 0, 0
        self.loss: float | None = None
        self.step_seconds: float | None = None
        self.heard = time.monotonic()
        """When the job last told of a step or used a processor."""
        self._worked = 0.0
        self._by_client = config.get("progress") == "client"
        self.launcher = launcher.of(config, place)
        ranks = place.ranks_per_node if self.launcher.many else 0
        self.sealing = sealing.of(config, place, self.tier, local, self, ranks)
        self._last_step = self.heard

    @property
    def folder(self) -> Path:
        """Where the job writes its checkpoints."""
        return self.sealing.folder

    @property
    def committed(self) -> int:
        return self.sealing.committed

    # What the steward asks.

    def status(self) -> dict[str, Any]:
        """`trainer.contract.Status`."""
        self.heard = max(self.heard, self.sealing.heard)
        place, age = self.place, 0.0 if self.sealing.busy else round(time.monotonic() - self.heard, 3)
        first = place.node_rank * place.ranks_per_node
        alive = self.sealing.busy or (self.process is not None and self.process.poll() is None)
        row = {"alive": alive, "step": self.step, "heartbeat_age_s": age}
        return {
            "campaign": place.campaign,
            "attempt": place.attempt,
            "generation": self.generation,
            "node": place.node_name,
            "phase": "training" if self.step else "starting",
            "step": self.step,
            "steps": self.steps,
            "committed_step": self.committed,
            "tokens": self.tokens,
            "loss": self.loss,
            "step_seconds": self.step_seconds,
            "data_wait_seconds": None,
            **self.sealing.accounts.status(),
            "ranks": [dict(row, rank=rank) for rank in range(first, first + place.ranks_per_node)],
        }

    # Its life.

    def run(self) -> End:
        """Run the job to its end; return how it ended. Nothing that it started is left."""
        if not self._unpacked():
            return self._stopped() if self.stopping else End(DATA, "the code is not the campaign's")
        try:
            resume = self.sealing.resume()
        except NothingSound as error:
            return End(STORAGE, str(error), ends.NOTHING_SOUND)
        words = self.launcher.command()
        environment = dict(os.environ, **self.launcher.environment(resume, str(self.run_folder)))
        if self.stopping:
            return self._stopped()
        if why := self._start(words, environment):
            return End(USER, why)
        # Sealing reads all of a checkpoint, which takes minutes: life signs go on meanwhile.
        beside = threading.Thread(target=self._seal_while_it_runs, name="sealing", daemon=True)
        beside.start()
        looks = 0
        while not self._over.wait(_LOOK_S):
            self._look() if looks % _RARELY == 0 else self._hear()
            looks += 1
        code = self.launcher.ended(self._ended(), str(self.words), bool(self.stopping))
        self._look()
        beside.join()
        self.sealing.finish(code)
        return self._end(code)

    def _end(self, code: int) -> End:
        if self.stopping:
            return self._stopped()
        if code:
            return ends.failed(code, self.words, self._places(), self.launcher.elsewhere)
        # Other nodes judge no end by the step: node 0 may have ended before they could ask it for the last one.
        if self.place.node_rank == 0 and max(self.step, self.committed) < self.steps:
            self.emit("ended_early", step=self.step, steps=self.steps)
            return End(USER, f"the job exited 0 at step {self.step} of {self.steps}{self._silence()}{self.words}")
        return End(DONE)

    def _places(self) -> tuple[Path, ...]:
        """Return where the job writes: checkpoints, its own folder, temporary files."""
        return self.folder, Path(self.config.get("folder") or "."), self.run_folder

    def _stopped(self) -> End:
        killed = ", killed when its grace was over" if self.killed else ""
        return End(INTERRUPTED, f"stopped by {self.stopping}{killed}{self._silence()}")

    def _silence(self) -> str:
        if self.step or self.place.node_rank:
            return ""
        how = "no line that it printed fits `progress.pattern`" if self.config.get("pattern") else ""
        how = how or ("it has not called `beat`" if self._by_client else 'it printed no JSON line with a "step"')
        return f"; no step is known: {how}"

    # Its words and files.

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        shown = 0.0
        for line, safe, written_over in self.secrets.lines(self.process.stdout):
            self.launcher.heard(line)
            found = None if self._by_client else self.reader.read(line)
            self.words.heard(safe)
            if not written_over or (safe and time.monotonic() - shown >= _SHOWN_S):
                shown = time.monotonic() if written_over else shown
                say(safe)
            if found is not None:
                self._reached(*found)

    def _reached(self, step: int, figures: Mapping[str, float]) -> None:
        now, figures = time.monotonic(), {name: value for name, value in figures.items() if math.isfinite(value)}
        if step > self.step:
            self.step_seconds = round((now - self._last_step) / max(1, step - self.step), 6)
            self._last_step = now
        self.heard, self.step = now, step
        self.sealing.recogniser.hear(step)
        self.loss = figures.get("loss", self.loss)
        self.tokens = int(figures.get("tokens", self.tokens))
        if self.place.node_rank == 0:
            self.emit("step", step=step, loss=figures.get("loss"), seconds=self.step_seconds or 0.0)

    def _look(self) -> None:
        """Note that the job works, take the ends of its orphans, and learn the step where it is not printed."""
        among, launched = family.processes(), None if self.process is None else self.process.pid
        family.bury(among, launched)
        worked = 0.0 if launched is None else activity.processor_seconds(launched, among)
        if abs(worked - self._worked) >= _WORKS_S:  # a process that has ended takes its time out of the sum
            self._worked, self.heard = worked, time.monotonic()
        self._hear()
        if self.place.node_rank != 0:
            self.step = max(self.step, activity.step_of(self.place.rendezvous))

    def _hear(self) -> None:
        """Take what the job tells by the client: steps of its first rank, finished checkpoints."""
        for news in self.told.news():
            self.heard = time.monotonic()
            if "folder" in news:
                self.sealing.tell(Finished(news["step"], Path(news["folder"])))
            elif self._by_client and news["rank"] == self.place.node_rank * self.place.ranks_per_node:
                self._reached(news["step"], {name: news[name] for name in ("loss", "tokens") if name in news})

    def _seal_while_it_runs(self) -> None:
        family.give_way()
        while not self._over.wait(_LOOK_S):
            self._seal_finished()

    def _seal_finished(self) -> None:
        self.sealing.look()
