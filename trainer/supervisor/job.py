"""One node's share of a job: it starts the launcher, reads its lines, seals checkpoints, and ends by the contract."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from trainer.supervisor import activity, formats, launcher, seal
from trainer.supervisor.formats import FORMATS, Finished
from trainer.supervisor.place import Place
from trainer.supervisor.progress import Reader
from trainer.supervisor.told import Told

DONE, USER, DATA, INTERNAL, STORAGE, INTERRUPTED, NUMERIC = 0, 64, 65, 70, 74, 75, 76
"""`trainer.contract.ExitCode`."""
_LOOK_S = 1.0
_CHOICE_S, _SOURCE_S = 600.0, 600.0
"""For node 0 to compare all of a checkpoint with its digests, and for new code to appear on the shared tier."""
_WORKS_S = 0.05
"""Processor time between two looks that shows life."""
REDACTED = "[secret]"


class Job:
    def __init__(self, config: Mapping[str, Any], place: Place, shared: Path, run: Path) -> None:
        self.config, self.place, self.run_folder = config, place, run
        self.tier = shared / place.campaign
        self.checkpoints = config["checkpoints"]
        self.folder = Path(self.checkpoints["folder"])
        self.reader = Reader(config.get("pattern"))
        self.secrets = [value for name in config.get("secrets", ()) if (value := os.environ.get(name))]
        self.steps = int(config.get("steps") or 0)
        self.step, self.tokens = 0, 0
        self.loss: float | None = None
        self.step_seconds: float | None = None
        self.committed = -1
        self.heard = time.monotonic()
        """When the job last told of a step, used a processor, or finished a checkpoint."""
        self._worked = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = ""
        self.told = Told(run)
        self._by_client = config.get("progress") == "client"
        self._finished: deque[Finished] = deque()
        """Checkpoints that the job has told by the client, not yet sealed."""
        self._not_sealed: tuple[int, str] | None = None
        self._rank_code: int | None = None
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

    def emit(self, event: str, **fields: object) -> None:
        line = {"event": event, **fields, "time": round(time.time(), 3)}
        line.update(node=self.place.node_name, attempt=self.place.attempt)
        self._print(json.dumps(line))

    # Its life.

    def resume(self) -> str:
        """Return where the job resumes, empty from the start. Node 0 checks and lays back; the others wait for it."""
        choice = self.tier / "resume" / f"attempt-{self.place.attempt:04d}.json"
        if self.place.node_rank == 0:
            choice.parent.mkdir(parents=True, exist_ok=True)
            seal.publish(choice, json.dumps(self._chosen()).encode())
        self._wait_for(choice, _CHOICE_S)
        if self.stopping:
            return ""
        chosen = json.loads(choice.read_text())
        self.committed = chosen["step"]
        return str(chosen["path"])

    def _wait_for(self, path: Path, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not path.exists() and not self.stopping:
            if time.monotonic() > until:
                raise TimeoutError(f"{path} has not appeared within {seconds:.0f} s")
            time.sleep(0.2)

    def _chosen(self) -> dict[str, Any]:
        """Lay the newest sound step back where the job's framework looks for it, and remove later ones: they are
        damaged or were never sealed, and the job would write over them or take them up."""
        for step in seal.committed(self.tier):
            why = seal.fault(self.tier, step, self.place.campaign, self.config["identity"])
            if not why:
                path = self.folder / seal.origin(self.tier, step)
                seal.lay_back(self.tier, step, path)
                formats.forget_later(self.checkpoints["format"], self.folder, Finished(step, path))
                self.emit("restored", step=step)
                return {"step": step, "path": str(path)}
            self.emit("refused_step", step=step, why=why)
        formats.forget_later(self.checkpoints["format"], self.folder, None)
        self.emit("started_fresh", step=0)
        return {"step": -1, "path": ""}

    def run(self) -> int:
        """Run the job to its end; return the exit code of the contract."""
        if not self._unpacked():
            return INTERRUPTED if self.stopping else DATA
        resume = self.resume()
        words = launcher.command(self.config, self.place, str(self.run_folder))
        environment = dict(os.environ, **launcher.environment(self.config, self.place, resume, str(self.run_folder)))
        if self.stopping:
            return INTERRUPTED
        try:
            self.process = subprocess.Popen(
                words, env=environment, cwd=self.config.get("folder") or None, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_hears_signals,
            )  # fmt: skip
        except OSError as error:
            self.emit("not_started", why=str(error), command=words)
            return USER
        reading = threading.Thread(target=self._read, name="lines", daemon=True)
        reading.start()
        # Sealing reads all of a checkpoint, which takes minutes: life signs go on meanwhile.
        sealing = threading.Thread(target=self._seal_while_it_runs, name="sealing", daemon=True)
        sealing.start()
        while self.process.poll() is None:
            self._look()
            time.sleep(_LOOK_S)
        self._end_group(signal.SIGKILL)  # daemons that it forked
        reading.join(timeout=10.0)
        self._look()
        sealing.join()
        self._seal_finished()
        return self._meaning(self.process.returncode)

    def _unpacked(self) -> bool:
        """Put the job's code where it starts. Return False for code with another digest than the campaign's."""
        packed, folder = self.config.get("source"), str(self.config.get("folder"))
        if not packed:
            return True
        # The file system imports new code from S3 some time after its upload.
        self._wait_for(Path(packed), _SOURCE_S)
        if self.stopping:
            return False
        size, digest = seal.digest_of(Path(packed))
        if digest != self.config["source_digest"]:
            self.emit("refused_source", size_bytes=size, sha256=digest, wanted=self.config["source_digest"])
            return False
        with tarfile.open(packed) as tar:
            tar.extractall(folder)  # our own, by its digest
        return True

    def stop(self, number: int, grace_s: float) -> None:
        """Ask the job to stop: a job that asks for it by the client has half of the grace for that, others get SIGTERM
        at once. What has not ended after the grace is killed."""
        self.stopping = signal.Signals(number).name
        self.emit("stopping", signal=self.stopping)
        self.told.stop()
        for after_s, sent in ((grace_s / 2 if self.told.asks() else 0.0, signal.SIGTERM), (grace_s, signal.SIGKILL)):
            timer = threading.Timer(after_s, self._end_group, (sent,))
            timer.daemon = True
            timer.start()

    def _end_group(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _meaning(self, code: int) -> int:
        if self.stopping:
            return INTERRUPTED
        if code and self._rank_code:
            code = self._rank_code
        told = self.place.node_rank == 0 or self.step  # other nodes may have heard of no step
        if code == 0 and told and max(self.step, self.committed) < self.steps:
            self.emit("ended_early", step=self.step, steps=self.steps)
            return USER
        if code in (DONE, USER, DATA, INTERNAL, STORAGE, INTERRUPTED, NUMERIC):
            return code
        return INTERNAL

    # Its words and files.

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            if self._rank_code is None and self.config["launcher"] == "torchrun":
                self._rank_code = launcher.rank_code(line)
            found = None if self._by_client else self.reader.read(line)
            self._print(line)
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

    def _print(self, line: str) -> None:
        for secret in self.secrets:
            line = line.replace(secret, REDACTED)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _look(self) -> None:
        """Note that the job lives, and what it tells by the client: steps of its first rank, finished checkpoints."""
        worked = activity.processor_seconds(self.process.pid) if self.process is not None else 0.0
        if abs(worked - self._worked) >= _WORKS_S:  # a process that has ended takes its time out of the sum
            self._worked, self.heard = worked, time.monotonic()
        for news in self.told.news():
            self.heard = time.monotonic()
            if "folder" in news:
                self._finished.append(Finished(news["step"], Path(news["folder"])))
            elif self._by_client and news["rank"] == self.place.node_rank * self.place.ranks_per_node:
                self._reached(news["step"], {name: news[name] for name in ("loss", "tokens") if name in news})
        if self.place.node_rank != 0:
            self.step = max(self.step, activity.step_of(self.place.rendezvous))

    def _seal_while_it_runs(self) -> None:
        while self.process is not None and self.process.poll() is None:
            self._seal_finished()
            time.sleep(_LOOK_S)

    def _seal_finished(self) -> None:
        """Seal what the job has finished. Node 0 does it for all: the folder is shared."""
        if self.place.node_rank != 0 or not self.folder.is_dir():
            return
        while self._finished and (self._finished[0].step <= self.committed or not self._finished[0].root.exists()):
            self._finished.popleft()
        told = list(self._finished)
        finished = list(told)
        with contextlib.suppress(OSError):  # the job has removed a folder while it was listed: the next look is soon
            finished += self._found()
        for found in sorted(finished):
            if found.step > self.committed:
                self._seal(found, told)

    def _found(self) -> Iterator[Finished]:
        ranks = self.place.world_size if self.config["launcher"] == "torchrun" else 0
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
            if self._not_sealed != (why := (found.step, str(error)[:500])):  # it is tried again at each look
                self._not_sealed = why
                self.emit("not_sealed", step=why[0], why=why[1])
            return
        finally:
            self._sealing, self.heard = False, time.monotonic()
        self.committed = found.step
        self.emit("committed", step=found.step, tier="shared", seconds=round(time.monotonic() - begun, 3))
        gone = seal.keep(self.tier, int(self.checkpoints.get("keep", 3)))
        if gone:
            self.emit("pruned", steps=gone)


def _hears_signals() -> None:
    """Undo in the child what the supervisor blocks for itself."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ended(job: Job, code: int, detail: str) -> dict[str, Any]:
    """`trainer.contract.Termination`."""
    reasons = {DONE: "done", USER: "user", DATA: "data", NUMERIC: "numeric", STORAGE: "storage"}
    reasons[INTERRUPTED] = "interrupted"
    process = job.process
    number = -process.returncode if process is not None and (process.returncode or 0) < 0 else None
    reason = "signal" if number and code == INTERNAL else reasons.get(code, "internal")
    return {
        "exit_code": code,
        "reason": reason,
        "attempt": job.place.attempt,
        "node": job.place.node_name,
        "step": job.step,
        "committed_step": job.committed,
        "signal": number,
        "rank": None,
        "detail": detail[:1500],
    }
