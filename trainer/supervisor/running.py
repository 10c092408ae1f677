"""A command on a node from its start to its end: its lines, its stop, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Mapping, Sequence

from trainer.contract.exits import limit_of
from trainer.supervisor import ends, family, seal, serving, stacks
from trainer.supervisor.failures import LastWords
from trainer.supervisor.launcher import PACKAGES
from trainer.supervisor.place import Place
from trainer.supervisor.progress.messages import Messages
from trainer.supervisor.readings import Readings, notice
from trainer.supervisor.redact import Redactor

_SOURCE_S = 600.0
"""For new code to appear on the shared tier."""
MARK, _SHOWN = "\x1e", "\u241e"
"""Begins each line of the supervisor's own (RFC 7464), and what stands in its place in a line of the job."""
_SAYS = threading.Lock()
_LOG_BYTES, _LOG_BYTES_PER_S = 8 << 20, (4 << 20) / 60
"""Of the job's lines: so many at once, and so many after that, are passed on."""


class Allowance:
    """What may be used: `capacity` at once, and `per_second` of it comes back. Used up, it is back with a quarter."""

    def __init__(self, per_second: float, capacity: float) -> None:
        self._per_second, self._most, self._left, self._at = per_second, capacity, capacity, time.monotonic()
        self._empty = False

    def take(self, amount: float) -> bool:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._empty = self._left < (self._most / 4 if self._empty else amount)
        self._left -= 0 if self._empty else amount
        return not self._empty


class Running:
    """What a pod does from its start to its end; `trainer.supervisor.life` calls it."""

    tier = Path("/")
    """Where it writes what outlives the pod."""

    def __init__(self, config: Mapping[str, Any], place: Place, run: Path) -> None:
        self.config, self.place, self.run_folder = config, place, run
        self.grace_s = float(config.get("grace_s", 50.0))
        self.secrets = Redactor(os.environ.get(name, "") for name in config.get("secrets", ()))
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = ""
        self.killed = False
        """It was to stop, and had not when its grace was over."""
        self.words = LastWords()
        self.messages = Messages(run)
        self._allowance = Allowance(_LOG_BYTES_PER_S, _LOG_BYTES)
        self._dropped = [0, 0]
        """Lines and bytes that were not passed on."""
        self.unfit = ends.End(ends.DATA)
        self.readings = Readings()
        self._asking = threading.Lock()
        self._over = threading.Event()
        """The command has ended."""

    def run(self) -> ends.End:
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """Return `trainer.contract.Status`."""
        raise NotImplementedError

    def full_status(self) -> dict[str, Any]:
        """Return the status with what is known of the node."""
        further_fields = {"readings": self.readings.full(), "notice": notice()}
        return {**self.status(), **{name: value for name, value in further_fields.items() if value}}

    def answer(self, path: str) -> serving.Answer | None:
        """Return the answer to a path that not every job has; None for an unknown one."""
        raise NotImplementedError

    def answer_any(self, path: str) -> serving.Answer | None:
        """Return the answer to a path that is not of all servers; stacks are told of every job."""
        if path != stacks.PATH:
            return self.answer(path)
        with self._asking:  # one at a time: whoever asks disturbs the job
            text = self.secrets.text(stacks.dump(self.run_folder))
        return 200, json.dumps({"stacks": text}).encode()

    def newest_steps(self) -> tuple[int, int]:
        """Return the newest step, and the newest that is committed, -1 for none."""
        raise NotImplementedError

    def stream(self, request: BaseHTTPRequestHandler) -> bool:
        """Answer a request by itself; return whether it was for this."""
        return False

    def take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer what another node's supervisor tells. Raises `ValueError` where nothing is awaited."""
        raise ValueError("this job awaits no other node")

    def keep_logs(self) -> None:
        """Keep what must outlive the scratch folder."""

    def end_of(self, error: Exception) -> ends.End:
        """Return the end that an error of the supervisor's own means."""
        if isinstance(error, OSError):
            return ends.error_end(error, self.tier)
        self.print_error(error)
        return ends.End(ends.INTERNAL, repr(error), limit_of(error))

    def print_error(self, error: BaseException) -> None:
        """Print an error with its stack, whose words may hold secrets."""
        print(self.secrets.text("".join(traceback.format_exception(None, error, error.__traceback__))), file=sys.stderr)

    def termination(self, end: ends.End) -> dict[str, Any]:
        """Return `trainer.contract.Termination`."""
        number = -self.process.returncode if self.process and (self.process.returncode or 0) < 0 else None
        safe_end = end._replace(detail=self.secrets.text(end.detail), signal=end.signal or number)
        return ends.termination(safe_end, self.place.attempt, self.place.node_name, *self.newest_steps())

    def message(self, end: ends.End) -> str:
        return ends.fitting_text(self.termination(end))

    def _read(self) -> None:
        """Pass on the lines of the process until its output ends."""
        raise NotImplementedError

    def emit(self, event: str, **fields: object) -> None:
        """Say a line of our own. `time` among the fields: when it was."""
        line = {"event": event, "time": round(time.time(), 3), **self.secrets.redact(fields)}
        line.update(node=self.place.node_name, attempt=self.place.attempt)
        say(MARK + json.dumps(line))

    def pass_on(self, line: str) -> None:
        """Pass on a line of the job, which cannot be taken for ours. What is beyond the allowance is counted."""
        size = len(line) + 1
        if not self._allowance.take(size):
            self._dropped = [self._dropped[0] + 1, self._dropped[1] + size]
            return
        self.tell_dropped()
        say(line.replace(MARK, _SHOWN))

    def tell_dropped(self) -> None:
        (lines, size), self._dropped = self._dropped, [0, 0]
        if lines:
            self.emit("lines_dropped", lines=lines, bytes=size, why="the job printed more than 4 MiB a minute")

    def wait_for(self, path: Path, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not path.exists() and not self.stopping:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} has not appeared within {seconds:.0f} s")
            time.sleep(0.2)

    def _start(self, words: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> str:
        """Start a command and follow its lines; return why it does not start, or an empty text. Raises the `OSError`
        of a limit, which says nothing of the command."""
        try:
            self.process = subprocess.Popen(
                words, env=environment, cwd=self.config.get("folder") or None, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_hears_signals,
                pass_fds=tuple(pass_fds),
            )  # fmt: skip
        except OSError as error:
            self.emit("not_started", why=str(error), command=words)
            if limit_of(error):
                raise
            return f"the command does not start: {error}"
        self._reading = threading.Thread(target=self._read, name="lines", daemon=True)
        for thread in (self._reading, threading.Thread(target=self._await_end, name="end", daemon=True)):
            thread.start()
        if self.stopping:  # it came while the launcher was started
            self._end_group(signal.SIGTERM)
        return ""

    def _await_exit(self) -> int:
        """Return the code of the command that is over, once all that it started has ended and its lines are read."""
        assert self.process is not None
        code = self.process.wait()
        self.leave_nothing()
        self._reading.join(timeout=10.0)
        return code

    def _await_end(self) -> None:
        """Hear of the launcher's end at once, and leave it to be asked for."""
        assert self.process is not None
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        self._over.set()

    def leave_nothing(self) -> None:
        """Kill what the job has started, also what has left its group and session."""
        try:
            left = family.end_all(None if self.process is None else self.process.pid)
        except OSError as error:  # the pod's end kills them all the same
            self.emit("left_behind", processes=[], why=f"processes cannot be seen: {error}")
        else:
            if left:
                self.emit("left_behind", processes=left)

    def _unpack_all(self) -> bool:
        """Put the job's code where it starts, and the packages that it brings beside. Return False, with the end in
        `unfit`, for what has another digest than the campaign's or is for another Python."""
        python = ".".join(map(str, sys.version_info[:2]))
        wanted_python = self.config.get("requirements_python") or python
        if wanted_python != python:
            detail = (
                f"the job's packages are for Python {wanted_python}, and the image has {python}: mend workload.python"
            )
            self.unfit = ends.End(ends.USER, detail)
            return False
        code = self._unpack("source", str(self.config.get("folder")))
        return code and self._unpack("requirements", str(self.run_folder / PACKAGES))

    def _unpack(self, config_key: str, folder: str) -> bool:
        archive = self.config.get(config_key)
        if not archive:
            return True
        # The file system imports new code from S3 some time after its upload.
        self.wait_for(Path(archive), _SOURCE_S)
        if self.stopping:
            return False
        size, digest = seal.digest_of(Path(archive))
        if digest != self.config[f"{config_key}_digest"]:
            self.emit(
                f"refused_{config_key}", size_bytes=size, sha256=digest, wanted=self.config[f"{config_key}_digest"]
            )
            self.unfit = ends.End(
                ends.DATA, f"the job's {config_key} are not the campaign's: {archive} has SHA-256 {digest}"
            )
            return False
        with tarfile.open(archive) as tar:
            # Our own, by its digest. Python 3.14 would else refuse links to the pod's folders, 3.12 warn of it.
            tar.extraction_filter = lambda member, path: member  # type: ignore[assignment, misc]
            tar.extractall(folder)
        return True

    def stop(self, number: int) -> None:
        """Ask the job to stop: a job that asks for it by the client has half of the grace for that, others get SIGTERM
        at once. What has not ended after the grace is killed."""
        if self.stopping:
            return
        self.stopping = signal.Signals(number).name
        self.emit("stopping", signal=self.stopping)
        with contextlib.suppress(OSError):  # a full disk: SIGTERM tells it too
            self.messages.stop()
        polite_s = self.grace_s / 2 if self.messages.job_asks() else 0.0
        term = threading.Timer(polite_s, self._end_group, (signal.SIGTERM,))
        for timer in (term, threading.Timer(self.grace_s, self._kill)):
            timer.daemon = True
            timer.start()

    def _end_group(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _kill(self) -> None:
        if not self._over.is_set():
            self.killed = True
            self.leave_nothing()


def _hears_signals() -> None:
    """Undo in the child what the supervisor blocks for itself."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def say(line: str) -> None:
    with _SAYS:  # text streams lose lines that two threads write at once
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
