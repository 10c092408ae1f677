"""Runs the Pulumi CLI on a leash: it ends with the driver's leases, and Ctrl-C lets it finish."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from pulumi import automation as auto
from pulumi.automation.errors import create_command_error

from infra.engine import leash
from infra.engine.state_copy import engine_command
from infra.errors import LeaseLost
from infra.record.lease import Lease
from infra.session.session import ENGINE_TTL

_LEASHED = frozenset({"up", "destroy", "refresh", "preview", "import"})
"""Long operations of the engine; all others end within a moment."""
_WRITES = frozenset({("stack", "import"), ("stack", "init"), ("stack", "rm"), ("cancel",)})
"""Short operations that change the stored state, by their first words."""
_BEAT_S = 0.5


class LeashedCommand(auto.PulumiCommand):
    """The CLI as a child process that never outlives the driver's leases. Raises `LeaseLost` out of a running operation
    as soon as a lease is lost."""

    def __init__(self, leases: Sequence[Lease], campaign: str, say: Callable[[str], None]) -> None:
        cli = engine_command()
        self.command, self.version = cli.command, cli.version
        self.leases, self.campaign, self.say = leases, campaign, say

    def run(
        self,
        args: list[str],
        cwd: str,
        additional_env: Mapping[str, str],
        on_output: Callable[[str], Any] | None = None,
        on_error: Callable[[str], Any] | None = None,
    ) -> auto.CommandResult:
        mark = f"{self.campaign}/{uuid.uuid4().hex}"
        is_long = bool(args) and args[0] in _LEASHED
        needs_leash = is_long or any(tuple(args[: len(words)]) == words for words in _WRITES)
        environment = {**os.environ, **additional_env, "PULUMI_AUTOMATION_API": "true"}
        watcher = _Leash(mark, self.leases) if needs_leash else None
        process: subprocess.Popen[str] | None = None
        try:
            # A driver that was stopped before this line and wakes without its lease raises; one stopped later is ended
            # by the leash.
            for lease in self.leases:
                lease.check()
            # Its own process session: the terminal's Ctrl-C reaches only the driver, which passes it on.
            process = subprocess.Popen(
                [self.command, "--non-interactive", *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=environment | ({leash.MARK: mark} if needs_leash else {}),
                encoding="utf-8",
                start_new_session=True,
            )
            readers = [_Reader(process.stdout, on_output), _Reader(process.stderr, on_error)]
            if not is_long or watcher is None:
                # It ends within a moment and is useless half done, so an interrupt waits for it.
                try:
                    _finish(process, readers, watcher)
                    self._check(watcher)
                except BaseException:
                    _finish(process, readers, watcher)
                    raise
            else:
                self._attend(process, readers, watcher, mark)
        finally:
            if watcher is not None:
                # A third Ctrl-C may have interrupted our own end of it: then the leash ends the engine.
                has_ended = process is None or process.poll() is not None
                self._mark_unclean(not has_ended)
                watcher.let_go(has_ended)
        result = auto.CommandResult(stdout=readers[0].text(), stderr=readers[1].text(), code=process.returncode)
        if process.returncode != 0:
            raise create_command_error(result)
        return result

    def _attend(self, process: subprocess.Popen[str], readers: list[_Reader], watcher: _Leash, mark: str) -> None:
        """Wait for the engine's end; an exception ends the engine too."""
        try:
            self._wait(process, readers, watcher)
        except LeaseLost:
            leash.end(mark)
            raise
        except BaseException:
            self.say("letting pulumi finish what is under way; another Ctrl-C ends it at once")
            try:
                with suppress(ProcessLookupError):
                    process.send_signal(2)
                self._wait(process, readers, watcher)
            except BaseException:
                self._mark_unclean(True)
                leash.end(mark, 0.0)
                raise
            raise
        finally:
            if process.poll() is not None:
                _finish(process, readers)

    def _mark_unclean(self, unclean: bool) -> None:
        """Record that an engine was ended by force: its lock stays, and another machine cannot see its process."""
        for lease in self.leases:
            lease.unclean |= unclean

    def _wait(self, process: subprocess.Popen[str], readers: list[_Reader], watcher: _Leash) -> None:
        while process.poll() is None:
            self._check(watcher)
            _pause(process, readers, watcher)
        self._check(watcher)

    def _check(self, watcher: _Leash | None) -> None:
        """Raise `LeaseLost` if a lease is lost: then the leash has ended the engine."""
        for lease in self.leases if watcher is not None else ():
            lease.check()


@contextmanager
def on_leash(leases: Sequence[Lease], campaign: str) -> Iterator[dict[str, str]]:
    """Processes started with this environment end with the leases or with the block, as an engine does."""
    mark, stop = f"{campaign}/{uuid.uuid4().hex}", threading.Event()
    watcher = _Leash(mark, leases)

    def beat() -> None:
        while not stop.wait(_BEAT_S):
            watcher.beat()

    beating = threading.Thread(target=beat, name="leash", daemon=True)
    beating.start()
    try:
        with ExitStack() as longer:
            for lease in leases:
                longer.enter_context(lease.lasting(ENGINE_TTL))
            yield {leash.MARK: mark}
    finally:
        stop.set()
        beating.join()
        # Nothing that the block started may run beside what follows.
        leash.end(mark, 0.0)
        watcher.let_go()


def _pause(process: subprocess.Popen[str], readers: Sequence[_Reader], watcher: _Leash) -> None:
    """Wait one beat or until the process has ended."""
    watcher.beat()
    readers[0].join(_BEAT_S)
    if not readers[0].is_alive():
        with suppress(subprocess.TimeoutExpired):
            process.wait(_BEAT_S)


def _finish(process: subprocess.Popen[str], readers: Sequence[_Reader], watcher: _Leash | None = None) -> None:
    """Wait for the end of the process without a bound, and renew its leash meanwhile."""
    while watcher is not None and process.poll() is None:
        _pause(process, readers, watcher)
    process.wait()
    for reader in readers:
        reader.join(5.0)


class _Leash:
    """The driver's end of the leash."""

    def __init__(self, mark: str, leases: Sequence[Lease]) -> None:
        self.leases = leases
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(leash.__file__), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.beat()

    def beat(self) -> None:
        """Send the time until which the leases cover the engine."""
        self._tell(f"{min(lease.covers_until for lease in self.leases):.3f}")

    def let_go(self, has_ended: bool = True) -> None:
        """Let go of the leash; it ends an engine unless `has_ended`."""
        if has_ended:
            self._tell("done")
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        if has_ended:
            self._process.wait()

    def _tell(self, line: str) -> None:
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


class _Reader(threading.Thread):
    """Collects the lines of one of the engine's outputs."""

    def __init__(self, stream: IO[str] | None, hear: Callable[[str], Any] | None) -> None:
        super().__init__(daemon=True)
        self._stream, self._hear = stream, hear
        self._lines: list[str] = []
        self.start()

    def run(self) -> None:
        for line in self._stream or ():
            self._lines.append(line.rstrip())
            if self._hear is not None:
                self._hear(line.rstrip())

    def text(self) -> str:
        return "\n".join(self._lines)
