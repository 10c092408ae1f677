"""One node's share of a job: it starts the launcher, reads its lines, seals checkpoints, and ends by the contract."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterable, Mapping

from trainer.contract.exits import NOTHING_SOUND
from trainer.supervisor import activity, ends, family, launcher, serving, staging
from trainer.supervisor.ends import DONE, INTERRUPTED, STORAGE, USER, End
from trainer.supervisor.formats import Finished
from trainer.supervisor.place import Place
from trainer.supervisor.progress.record import Progress
from trainer.supervisor.running import Running
from trainer.supervisor.sealing import local as sealing
from trainer.supervisor.sealing.shared import AGAIN_S, NoSoundSeal

_LOOK_S, _RARELY = 1.0, 5
"""All processes are read in one look of five: that costs more than all else here."""
_WORKS_S = 0.05
"""Processor time between two looks that shows life."""
_SHOWN_S = 10.0
"""Between two lines of a progress bar that are passed on: it writes ten a second, and a log keeps each."""
SETTLED_S = 30.0
"""Ranks that save the same step end within this time of each other."""
_OF_A_NODE = (b"LOCAL_WORLD_SIZE", b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS")
_OF_ALL_NODES = (b"WORLD_SIZE", b"PMI_SIZE")
"""Variables of the processes that torchrun, `accelerate launch`, `deepspeed`, Open MPI and MPICH start."""
_OF_A_RANK = re.compile(r"(rng_state|random_states)_\d+\.(pth|pkl)|.*optim_states\.pt")


class RankCount:
    """The number of ranks that a job's own command starts on this node: one per GPU, until the environment of its
    processes or its checkpoints show another one. A format's last file may appear while ranks still write theirs, so
    the number tells whether a checkpoint is whole."""

    def __init__(self, config: Mapping[str, Any], place: Place) -> None:
        self.here, self._nodes = place.ranks_per_node, place.node_count
        self._is_local = config["checkpoints"].get("tier") == "local"
        self._restored: set[Path] = set()
        """Folders of checkpoints on a node's own disk that were laid back before the job starts: they have the files of
        all nodes' ranks. Empty on the shared tier."""
        self._is_known = False
        self._most, self._since = 0, 0.0

    def note_restored(self, folder: Path) -> None:
        """Note what has been laid back into the job's folder: also on a node's own disk it has all nodes' files."""
        self._restored = set(_rank_files(folder)) if self._is_local else set()

    def look(self, processes: Iterable[int], folder: Path) -> int:
        """Return the number by what processes and checkpoints show now."""
        if not self._is_known and (number := max(map(self._of_environment, processes), default=0)):
            self.here, self._is_known = number, True
        if not self._is_known:
            self._count_files(folder)
        return self.here

    def _of_environment(self, pid: int) -> int:
        """Return the number that a process was started with, 0 for none."""
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is another user's
            rows = (row.partition(b"=") for row in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            values = {name: value for name, _, value in rows}
            local_sizes = [int(values[name]) for name in _OF_A_NODE if name in values]
            return (
                local_sizes or [int(values[name]) // self._nodes for name in _OF_ALL_NODES if name in values] or [0]
            )[0]
        return 0

    def _count_files(self, folder: Path) -> None:
        """Take the most files of ranks in one checkpoint for the number, once they have stopped rising."""
        with contextlib.suppress(OSError):  # the job removes a folder meanwhile
            counts = {
                path: max(1, count // (1 if self._is_local and path not in self._restored else self._nodes))
                for path, count in _rank_files(folder).items()
            }
            largest_count = max(counts.values(), default=0)
            if largest_count > self._most:
                self._most, self._since = largest_count, time.monotonic()
                self.here = max(self.here, largest_count)
            elif largest_count and time.monotonic() - self._since >= SETTLED_S:
                self.here, self._is_known = largest_count, True


def _rank_files(folder: Path) -> Mapping[Path, int]:
    """Return the number of ranks' files in each folder of a checkpoint. Raises `OSError`."""
    paths = itertools.chain(folder.glob("*/*"), folder.glob("*/*/*"))
    return Counter(path.parent for path in paths if _OF_A_RANK.fullmatch(path.name))


class Job(Running):
    def __init__(
        self, config: Mapping[str, Any], place: Place, shared: Path, run: Path, local: Path = Path(sealing.LOCAL)
    ) -> None:
        super().__init__(config, place, run)
        self.tier = shared / place.campaign
        self.progress = Progress(
            config, place, self.tier, self.emit,
            lambda step: self.sealing.recogniser.told_steps.note(step),
            lambda step: self.sealing.recogniser.doubt_of(step),
        )  # fmt: skip
        self.generation = 0
        self.heard = time.monotonic()
        """When the job last used a processor."""
        self._worked = 0.0
        self._stages = False
        """Folders are copied to the node's disk, which takes minutes."""
        self.launcher = launcher.make_launcher(config, place)
        self.sealing = sealing.make_sealing(config, place, self.tier, local, self, place.ranks_per_node)
        self._ranks = RankCount(config, place)

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def tokens(self) -> int:
        return self.progress.tokens

    @property
    def loss(self) -> float | None:
        return self.progress.loss

    @property
    def committed_step(self) -> int:
        return self.sealing.committed

    # What the steward asks.

    def newest_steps(self) -> tuple[int, int]:
        return self.step, self.committed_step

    def answer(self, path: str) -> serving.Answer | None:
        return self.sealing.answer(path)

    def status(self) -> dict[str, Any]:
        """`trainer.contract.Status`."""
        self.heard = max(self.heard, self.sealing.heard, self.progress.heard)
        is_busy = self.sealing.busy or self._stages
        place, age = self.place, 0.0 if is_busy else round(time.monotonic() - self.heard, 3)
        first_rank = place.node_rank * place.ranks_per_node
        alive = is_busy or (self.process is not None and self.process.poll() is None)
        row = {"alive": alive, "step": self.step, "heartbeat_age_s": age}
        return {
            "campaign": place.campaign,
            "attempt": place.attempt,
            "generation": self.generation,
            "node": place.node_name,
            "phase": "training" if self.step else "starting",
            "step": self.step,
            "steps": self.progress.steps,
            "committed_step": self.committed_step,
            "tokens": self.tokens,
            "loss": self.loss,
            "step_seconds": self.progress.step_seconds,
            "data_wait_seconds": None,
            **self.sealing.accounts.status(),
            "ranks": [dict(row, rank=rank) for rank in range(first_rank, first_rank + place.ranks_per_node)],
        }

    # Its life.

    def run(self) -> End:
        """Run the job to its end; return how it ended. Nothing that it started is left."""
        if not self._unpack_all():
            return self._signal_end() if self.stopping else self.unfit
        if (staging_end := self._stage()) is not None:
            return staging_end
        try:
            resume = self.sealing.resume()
        except NoSoundSeal as error:
            return End(STORAGE, str(error), NOTHING_SOUND)
        self.progress.begin(self.generation, self.committed_step)
        self._ranks.note_restored(self.sealing.folder)
        environment = dict(os.environ, **self.launcher.environment(resume, str(self.run_folder)))
        words = self.launcher.command(environment)
        if self.launcher.unset:
            self.emit("unset_variables", names=sorted(self.launcher.unset))
        if self.stopping:
            return self._signal_end()
        if start_error := self.launcher.missing_program(environment) or self._start(words, environment):
            return End(USER, start_error)
        # Sealing reads all of a checkpoint, which takes minutes: life signs go on meanwhile.
        sealing_thread = threading.Thread(target=self._seal_while_it_runs, name="sealing", daemon=True)
        sealing_thread.start()
        exchange = threading.Thread(target=self._exchange_while_it_runs, name="other nodes", daemon=True)
        exchange.start()
        looks = 0
        while not self._over.wait(_LOOK_S):
            self._look() if looks % _RARELY == 0 else self._hear()
            looks += 1
        code = self._await_exit()
        own_code = ends.own_code(code, self.words, self._milestones())
        code = self.launcher.exit_code(code, str(self.words), bool(self.stopping), own_code)
        self._look()
        exchange.join()
        for message in self.progress.last_messages(not code and not self.stopping):
            self._told_checkpoint(message)
        sealing_thread.join()
        if not (code or self.launcher.many):
            self.sealing.ranks_here = 0  # what its ranks have not written they will not write
        self.sealing.finish(code)
        self.progress.keep(self.committed_step, is_last=True)
        return self._end(code)

    def _stage(self) -> End | None:
        """Copy what the spec stages to the node's disk; return the end that this means, if any."""
        sources, copies = map(Path, self.config.get("staging", ("", "")))
        self._stages = True
        try:
            for name, limit in self.config.get("staged", {}).items():
                staging.stage(name, sources / name, copies / name, limit, self.emit, lambda: bool(self.stopping))
        except staging.StagingStopped:
            return self._signal_end()
        except staging.Unstaged as error:
            return End(USER, str(error))
        except staging.SourceChanges as error:
            return End(STORAGE, str(error))
        finally:
            self._stages, self.heard = False, time.monotonic()
        return None

    def _end(self, code: int) -> End:
        if self.stopping:
            return self._signal_end()
        if code:
            launcher = self.launcher
            return ends.failure_end(
                code, self.words, self._places(), launcher.elsewhere, self._milestones(), launcher.rank
            )
        if self.place.node_rank:
            return End(DONE)  # node 0 judges by the step: it may have ended before this one could ask for the last one
        has_worked, left = self.progress.finish(self.committed_step)
        end_text = f"the job exited 0 at step {self.step} of {self.progress.steps}"
        if not has_worked or left > 0:
            self.emit("ended_early", step=self.step, steps=self.progress.steps)
        if not has_worked:
            return End(USER, end_text + self._silence() + str(self.words))
        return End(DONE, f"{end_text}, an estimate" if left else "")

    def _milestones(self) -> ends.Made:
        return ends.Made(*self.progress.has_made(self.committed_step), self.place.node_count)

    def _places(self) -> tuple[Path, ...]:
        """Return where the job writes: checkpoints, its own folder, temporary files."""
        return self.sealing.folder, Path(self.config.get("folder") or "."), self.run_folder

    def _signal_end(self) -> End:
        killed_text = ", killed when its grace was over" if self.killed else ""
        return End(INTERRUPTED, f"stopped by {self.stopping}{killed_text}{self._silence()}")

    def _silence(self) -> str:
        if self.step or self.place.node_rank:
            return ""
        missing_text = (
            "it has not called `beat`" if self.progress.by_client else 'it printed no JSON line with a "step"'
        )
        pattern = self.config.get("pattern")
        return f"; no step is known: {'no line that it printed fits `progress.pattern`' if pattern else missing_text}"

    # Its words and files.

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        shown_at = 0.0
        for line, safe, written_over in self.secrets.lines(self.process.stdout):
            self.launcher.hear(line)
            self.words.hear(safe)
            if not written_over or (safe and time.monotonic() - shown_at >= _SHOWN_S):
                shown_at = time.monotonic() if written_over else shown_at
                self.pass_on(safe)
            self.progress.hear_line(line)
        self.tell_dropped()

    def _look(self) -> None:
        """Note that the job works, take the ends of its orphans, and learn the step where it is not printed."""
        with contextlib.suppress(OSError):  # processes that cannot be seen now are looked for again
            self._look_at_processes()
        self._hear()
        self.progress.ask_first_node()

    def _look_at_processes(self) -> None:
        by_pid, launcher_pid = family.processes(), None if self.process is None else self.process.pid
        family.bury(by_pid, launcher_pid)
        processor_s = 0.0 if launcher_pid is None else activity.processor_seconds(launcher_pid, by_pid)
        if abs(processor_s - self._worked) >= _WORKS_S:  # a process that has ended takes its time out of the sum
            self._worked, self.heard = processor_s, time.monotonic()
        if not (launcher_pid is None or self.launcher.many):
            self.sealing.ranks_here = self._ranks.look(
                {launcher_pid} | family.descendants_of(launcher_pid, by_pid), self.sealing.folder
            )

    def _hear(self) -> None:
        """Take what the job tells by the client, here and on other nodes: steps, finished checkpoints."""
        for message in self.messages.news():
            self.heard = time.monotonic()
            if "folder" not in message:
                self.progress.hear_call(message)
            elif self.place.node_rank == 0:
                self._told_checkpoint(message)
            else:
                self.progress.checkpoint(message)
        for checkpoint_message in self.progress.news():
            self._told_checkpoint(checkpoint_message)
        self.progress.tell()

    def _told_checkpoint(self, message: Mapping[str, Any]) -> None:
        step, folder = message["step"], Path(message["folder"])
        if folder.exists():
            self.sealing.tell(Finished(step, folder), message.get("version"))
        else:
            reason = f"{folder} was told by rank {message['rank']} and is not on node 0"
            self.emit("not_sealed", step=step, why=reason)

    def _exchange_while_it_runs(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.progress.exchange()

    def _seal_while_it_runs(self) -> None:
        family.give_way()
        while not self._over.wait(_LOOK_S):
            try:
                self._seal_finished()
                self.progress.keep(self.committed_step)
            except Exception as error:  # a look that fails must not be the last one
                self.print_error(error)
                self.sealing.tell_failed_look(f"{type(error).__name__}: {error}")
                self._over.wait(AGAIN_S)

    def _seal_finished(self) -> None:
        self.sealing.look()
