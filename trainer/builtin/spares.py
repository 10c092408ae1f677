"""Processes that have imported what a rank needs and wait to be one: CUDA needs ranks that are spawned, and so import
all of it anew: a restart in place took 14.0 of a cold start's 17.3 s on an H100 (`make bench-gpu`)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from trainer.events import emit
from trainer.place import Paths
from trainer.supervisor.family import end_with_parent


class RankWork(NamedTuple):
    """What makes a process a rank."""

    environment: Mapping[str, str]
    log: Path
    """Takes the rank's standard output."""
    entrypoint: Callable[[Paths], None]
    paths: Paths

    def run(self) -> None:
        os.environ.update(self.environment)
        os.dup2(os.open(self.log, os.O_WRONLY | os.O_APPEND), 1)
        self.entrypoint(self.paths)


class Spares:
    """Waiting processes of one agent. They touch no GPU, and end when the agent does."""

    def __init__(self, context: BaseContext, import_ahead: Callable[[], None]) -> None:
        """`import_ahead`: what each imports; the spawned process has to be able to import it by name."""
        self._context: Any = context
        self._import_ahead = import_ahead
        self._waiting: list[tuple[BaseProcess, Connection]] = []

    def fill(self, count: int) -> None:
        """Start processes until `count` wait, or none can be started: ranks that train are worth more than spares."""
        try:
            while len(self._waiting) < count:
                self._start()
        except OSError as error:
            emit("no_spares", why=str(error))

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        try:
            process = self._context.Process(target=_wait, args=(theirs, self._import_ahead), daemon=True)
            process.start()
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()  # the process has its own, and reads the end of file when this one's is closed
        self._waiting.append((process, ours))

    def take(self, work: RankWork) -> BaseProcess | None:
        """Make a waiting process a rank. Return None if none is alive."""
        while self._waiting:
            process, connection = self._waiting.pop(0)
            with contextlib.suppress(OSError), connection:
                connection.send(work)
                return process
        return None


def _wait(connection: Connection, import_ahead: Callable[[], None]) -> None:
    end_with_parent()
    import_ahead()
    try:
        work: RankWork = connection.recv()
    except EOFError:  # the agent has ended
        return
    connection.close()
    # A rank may have processes of its own, whatever it was before. It ends with the agent by `end_with_parent`.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    work.run()
