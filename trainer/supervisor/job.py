"""One node's share of a job: it starts the launcher, reads its lines, seals checkpoints, and ends by the contract."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from trainer.supervisor import activity, ends, family, formats, launcher, seal
from trainer.supervisor.ends import DATA, DONE, INTERRUPTED, STORAGE, USER, End
from trainer.supervisor.formats import FORMATS, Finished
from trainer.supervisor.place import Place
from trainer.supervisor.progress import Reader
from trainer.supervisor.running import Running, say

_LOOK_S, _RARELY = 1.0, 5
"""All processes are read in one look of five: that costs more than all else here."""
_CHOICE_S = 600.0
"""For node 0 to compare all of a checkpoint with its digests."""
_WORKS_S = 0.05
"""Processor time between two looks that shows life."""
_SHOWN_S = 10.0
"""Between two lines of a progress bar that are passed on: it writes ten a second, and a log keeps each."""
_AGAIN_S = 30.0
"""Between two tries to seal a checkpoint that could not be sealed; the last one is at the job's end."""


class NothingSound(Exception):
    """The tier has sealed checkpoints, and none may be used: a start from the beginning would be a person's choice."""


class Job(Running):
    def __init__(self, config: Mapping[str, Any], place: Place, shared: Path, run: Path) -> None:
        super().__init__(config, place, run)
        self.tier = shared / place.campaign
        self.checkpoints = config["checkpoints"]
        self.folder = Path(self.checkpoints["folder"])
        self.reader = Reader(config.get("pattern"))
        self.steps = int(config.get("steps") or 0)
        self.step, self.tokens = 0, 0
        self.loss: float | None = None
        self.step_seconds: float | None = None
        self.committed = -1
        self.heard = time.monotonic()
        """When the job last told of a step, used a processor, or finished a checkpoint."""
        self._worked = 0.0
        self._by_client = config.get("progress") == "client"
        self._finished: dict[int, Finished] = {}
        """Checkpoints that the job has told by the client, by their steps."""
        self._not_sealed: dict[int, float] = {}
        """Step -> when to try again."""
        self.launcher = launcher.of(config, place)
        self._sealing = False
        self._last_step = self.heard

    # What the steward asks.

    def status(self) -> dict[str, Any]:
        """`trainer.contract.Status`."""
        place, age = self.place, 0.0 if self._sealing else round(time.monotonic() - self.heard, 3)
        first = place.node_rank * place.ranks_per_node
        alive = self._sealing or (self.process is not None and self.process.poll() is None)
        row = {"alive": alive, "step": self.step, "heartbeat_age_s": age}
        return {
            "campaign": place.campaign,
            "attempt": place.attempt,
            "node": place.node_name,
            "phase": "training" if self.step else "starting",
            "step": self.step,
            "steps": self.steps,
            "committed_step": self.committed,
            "tokens": self.tokens,
            "loss": self.loss,
            "step_seconds": self.step_seconds,
            "data_wait_seconds": None,
            "ranks": [dict(row, rank=rank) for rank in range(first, first + place.ranks_per_node)],
        }

    # Its life.

    def resume(self, restarts: int = 0) -> str:
        """Return where the job resumes, empty from the start. Node 0 checks and lays back; the others wait for it."""
        name = f"attempt-{self.place.attempt:04d}" + (f"-{restarts}" if restarts else "")
        choice = self.tier / "resume" / f"{name}.json"
        if self.place.node_rank == 0:
            choice.parent.mkdir(parents=True, exist_ok=True)
            seal.publish(choice, json.dumps(self._chosen()).encode())
        self._wait_for(choice, _CHOICE_S)
        if self.stopping:
            return ""
        chosen = json.loads(choice.read_text())
        self.committed = chosen["step"]
        return str(chosen["path"])

    def _chosen(self) -> dict[str, Any]:
        """Lay the newest sound step back where the job's framework looks for it, and remove later ones: they are
        damaged or were never sealed, and the job would write over them or take them up. Raises `NothingSound`."""
        seal.tidy(self.tier)
        refused: list[str] = []
        for step in seal.committed(self.tier):
            why = seal.fault(self.tier, step, self.place.campaign, self.config["identity"])
            if not why:
                path = self.folder / seal.origin(self.tier, step)
                seal.lay_back(self.tier, step, path)
                formats.forget_later(self.checkpoints["format"], self.folder, Finished(step, path))
                self.emit("restored", step=step)
                return {"step": step, "path": str(path)}
            self.emit("refused_step", step=step, why=why)
            refused.append(f"step {step}: {why}")
        if refused:
            raise NothingSound(f"none of its {len(refused)} sealed checkpoints is sound; {refused[0]}")
        formats.forget_later(self.checkpoints["format"], self.folder, None)
        self.emit("started_fresh", step=0)
        return {"step": -1, "path": ""}

    def run(self) -> End:
        """Run the job to its end; return how it ended. Nothing that it started is left."""
        if not self._unpacked():
            return self._stopped() if self.stopping else End(DATA, "the code is not the campaign's")
        try:
            resume = self.resume()
        except NothingSound as error:
            return End(STORAGE, str(error), ends.NOTHING_SOUND)
        words = self.launcher.command()
        environment = dict(os.environ, **self.launcher.environment(resume, str(self.run_folder)))
        if self.stopping:
            return self._stopped()
        if why := self._start(words, environment):
            return End(USER, why)
        # Sealing reads all of a checkpoint, which takes minutes: life signs go on meanwhile.
        sealing = threading.Thread(target=self._seal_while_it_runs, name="sealing", daemon=True)
        sealing.start()
        looks = 0
        while not self._over.wait(_LOOK_S):
            self._look() if looks % _RARELY == 0 else self._hear()
            looks += 1
        code = self.launcher.ended(self._ended(), str(self.words), bool(self.stopping))
        self._look()
        sealing.join()
        self._not_sealed.clear()
        self._seal_finished()
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
                self._finished[news["step"]] = Finished(news["step"], Path(news["folder"]))
            elif self._by_client and news["rank"] == self.place.node_rank * self.place.ranks_per_node:
                self._reached(news["step"], {name: news[name] for name in ("loss", "tokens") if name in news})

    def _seal_while_it_runs(self) -> None:
        family.give_way()
        while not self._over.wait(_LOOK_S):
            self._seal_finished()

    def _seal_finished(self) -> None:
        """Seal what the job has finished. Node 0 does it for all: the folder is shared."""
        if self.place.node_rank != 0 or not self.folder.is_dir():
            return
        for step in [step for step, one in self._finished.items() if step <= self.committed or not one.root.exists()]:
            del self._finished[step]
        told = list(self._finished.values())
        finished = list(told)
        with contextlib.suppress(OSError):  # the job has removed a folder while it was listed: the next look is soon
            finished += self._found()
        for found in sorted(finished):
            if found.step > self.committed and time.monotonic() >= self._not_sealed.get(found.step, 0.0):
                self._seal(found, told)

    def _found(self) -> Iterator[Finished]:
        ranks = self.place.world_size if self.launcher.many else 0
        return FORMATS[self.checkpoints["format"]](self.folder, ranks)

    def _seal(self, found: Finished, told: Sequence[Finished]) -> None:
        place, config = self.place, self.config
        identity = seal.Identity(
            place.campaign, config["identity"], place.attempt, place.world_size, config["config_digest"],
            config.get("data_digest", ""), place.code_digest, place.image_digest,
        )  # fmt: skip
        begun, self._sealing = time.monotonic(), True
        try:
            files = formats.files_of(found.root)
            # The newest one is looked for after the files: it may have come, and this one be half removed, meanwhile.
            if missing := formats.missing(found, files, max([found, *told, *self._found()])):
                raise ValueError(f"the job removes it: {missing[0]} is missing")
            seal.seal(found.root, files, self.folder, self.tier, found.step, identity, self.tokens, self.loss)
        except (OSError, ValueError) as error:
            why = ends.of_error(error, self.tier) if isinstance(error, OSError) else str(error)
            self.emit("not_sealed", step=found.step, why=why[:500])
            self._not_sealed[found.step] = time.monotonic() + _AGAIN_S
            return
        finally:
            self._sealing, self.heard = False, time.monotonic()
        self.committed = found.step
        self.emit("committed", step=found.step, tier="shared", seconds=round(time.monotonic() - begun, 3))
        gone = seal.keep(self.tier, int(self.checkpoints.get("keep", 3)))
        if gone:
            self.emit("pruned", steps=gone)
