"""The local ranks of an agent. Their output goes to `rank-N.log` and to our stdout. A start of all ranks is a
generation, see `trainer.supervisor.in_place`."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.builtin.failures import first_end
from trainer.builtin.heartbeat import read_beats
from trainer.errors import TrainerError
from trainer.events import emit
from trainer.place import Paths
from trainer.supervisor.family import end_with_parent
from trainer.supervisor.place import Place

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_LOOK_S = 0.2
_COPY_S = 0.1
_OTHERS_S = 15.0
"""Wait for the other nodes' ranks: the store by which they leave lives in the agent of pod 0."""
_END_S = 15.0
"""For a signal to end a rank."""


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
    """Waiting processes of one agent, which have imported what a rank needs. They touch no GPU, and end when the agent
    does. CUDA needs ranks that are spawned, and so import all of it anew: a restart in place took 14.0 of a cold
    start's 17.3 s on an H100 (`make bench-gpu`)."""

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
        parent_end, child_end = self._context.Pipe()
        try:
            process = self._context.Process(target=_wait, args=(child_end, self._import_ahead), daemon=True)
            process.start()
        except OSError:
            parent_end.close()
            raise
        finally:
            child_end.close()  # the process has its own, and reads the end of file when this one's is closed
        self._waiting.append((process, parent_end))

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


class Ranks:
    """The local ranks of an agent, which it can start more than once."""

    def __init__(
        self,
        place: Place,
        store: TCPStore,
        logs: Path,
        entrypoint: Callable[[Paths], None],
        paths: Paths,
        start_method: str,
        restarts: int,
        import_ahead: Callable[[], None],
    ) -> None:
        """`fork` inherits this process's imports, which saves seconds per rank. CUDA needs `spawn`: there processes
        that have called `import_ahead` wait for each of the `restarts` in place."""
        self._place, self._logs, self._entrypoint, self._paths = place, logs, entrypoint, paths
        self._context = multiprocessing.get_context(start_method)
        self._restarts = restarts if start_method == "spawn" else 0
        self._spares = Spares(self._context, import_ahead)
        self.store = store
        """By which the agents and the ranks find each other. It lives in the agent of pod 0."""

    def run(self, generation: int, stop_event: threading.Event) -> dict[int, int]:
        """Start the local ranks and wait for their end. Return exit codes by global rank, negative for a signal.

        `stop_event` ends them at once. No rank lives when this returns: it raises `TrainerError` for one that stays.
        """
        run, first_rank = self._paths.run, self._place.node_rank * self._place.ranks_per_node
        first_end.forget(run)
        suffix = f"-generation-{generation}" if generation else ""
        logs = [self._logs / f"rank-{first_rank + local}{suffix}.log" for local in range(self._place.ranks_per_node)]
        for log in logs:
            log.write_bytes(b"")
        processes: list[BaseProcess] = []
        ranks_ended = threading.Event()
        copying = threading.Thread(target=_copy, args=(logs, ranks_ended), name="rank-logs", daemon=True)
        copying.start()
        try:
            for local, log in enumerate(logs):
                processes.append(self._start(local, log))
            has_spares = generation >= self._restarts
            while not stop_event.wait(_LOOK_S):
                if not has_spares and self._steps():
                    self._spares.fill(len(logs))
                    has_spares = True  # or some of them
                codes = [process.exitcode for process in processes]
                if any(codes) or None not in codes:
                    break
            first_end.note(run, first_rank, processes)
        finally:
            try:
                _end(processes)
            finally:
                ranks_ended.set()
                copying.join()
        if not any(process.exitcode for process in processes):
            self._wait_for_others(generation)
        return {first_rank + local: process.exitcode or 0 for local, process in enumerate(processes)}

    def _start(self, local: int, log: Path) -> BaseProcess:
        place, (host, _, port) = self._place, self._place.rendezvous.rpartition(":")
        variables = {
            **place.rank_variables(local),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 serves no store of its own
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        work = RankWork({**os.environ, **variables}, log, self._entrypoint, self._paths)
        if (spare := self._spares.take(work)) is not None:
            return spare
        process = self._context.Process(target=work.run)  # type: ignore[attr-defined]
        process.start()
        return process  # type: ignore[no-any-return]

    def _steps(self) -> bool:
        """Return whether all local ranks have made a step: until then their own imports want the processors."""
        beats = read_beats(self._paths.run)
        return len(beats) == self._place.ranks_per_node and all(beat.step_seconds is not None for beat in beats)

    def _wait_for_others(self, generation: int) -> None:
        from torch.distributed import PrefixStore

        store = PrefixStore(f"ended-{generation}", self.store)
        with contextlib.suppress(RuntimeError):  # they are late, or pod 0 has gone
            if store.add("nodes", 1) == self._place.node_count:
                store.set("all", "")
            store.wait(["all"], timedelta(seconds=_OTHERS_S))


def _copy(logs: Sequence[Path], ranks_ended: threading.Event) -> None:
    """Copy to stdout what the ranks write, until they have ended."""
    with ExitStack() as files:
        log_files = [files.enter_context(log.open(errors="replace")) for log in logs]
        is_last = False
        while not is_last:
            is_last = ranks_ended.wait(_COPY_S)
            for file in log_files:
                sys.stdout.writelines(file)


def _end(processes: Sequence[BaseProcess]) -> None:
    """End the ranks that still run, first by SIGTERM, then by SIGKILL."""
    for send_signal in (BaseProcess.terminate, BaseProcess.kill):
        for process in processes:
            send_signal(process)
        deadline_s = time.monotonic() + _END_S
        for process in processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
    if alive := [process.pid for process in processes if process.is_alive()]:
        cure = "replace the node: its kernel holds the process"
        raise TrainerError("ranks do not end though they were killed", f"processes {alive}", cure)
