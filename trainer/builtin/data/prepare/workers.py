"""Distribution of units of work over the machine's cores; each unit writes its own files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainer.errors import DataError
from trainer.events import emit
from trainer.supervisor.family import end_with_parent

Progress = Callable[[str, float], None]

WORKER_BYTES = 512 * 2**20
"""Most memory of a worker, while it encodes the largest batch, with interpreter and tokenizer."""
_AHEAD = 3


@dataclass(frozen=True)
class Stage:
    """The same work on every item; each item writes its own files, which depend on nothing but the input."""

    name: str
    span: tuple[float, float]
    """Shares of the whole at its beginning and its end, for progress."""
    function: Callable[[Any, Any], None]
    """Called with the item and `task`."""
    task: object
    items: Sequence[Any]
    sizes: Sequence[int]
    """Of the items, for progress."""
    files: Callable[[Any], Sequence[Path]]
    """Small files of an item, the last of which is written last: if it exists, the item is done."""
    documents: Callable[[Any], int]
    """Number of documents of an item that is done."""
    large: Callable[[Any], Sequence[Path]] = lambda item: ()
    """Large files of an item, which only some item of a later stage needs, or none."""
    needs: Callable[[Any], Sequence[Path]] = lambda item: ()
    """Large files of earlier stages that an item needs."""

    def is_done(self, item: Any) -> bool:
        return self.files(item)[-1].exists()


class Workers:
    """A pool that starts when there is enough work; with one core the work runs in this process."""

    def __init__(self, cores: int | None, progress: Progress) -> None:
        self.progress = progress
        self._count = cores or _fitting()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def agree(self, path: Path) -> None:
        """Give all workers of a preparation the same file. Here there is one preparation, and it has its file."""

    def run_stage(self, stage: Stage) -> None:
        """Run the stage for every item that is not done; report progress by `sizes`."""
        total, finished_size = max(1, sum(stage.sizes)), 0

        def say(size: int) -> None:
            nonlocal finished_size
            finished_size += size
            self.progress(stage.name, stage.span[0] + (stage.span[1] - stage.span[0]) * finished_size / total)

        rows = [(item, size, stage.is_done(item)) for item, size in zip(stage.items, stage.sizes, strict=True)]
        say(sum(size for _, size, is_done in rows if is_done))
        self.run(stage, [(item, size) for item, size, is_done in rows if not is_done], say)

    def run(self, stage: Stage, todo: list[tuple[Any, int]], say: Callable[[int], None]) -> None:
        """Run the stage for these items and their sizes."""
        if self._count == 1 or len(todo) < 2:
            for item, size in todo:
                stage.function(item, stage.task)
                say(size)
            return
        self._over_pool(stage.function, todo, stage.task, say)

    def _over_pool(
        self,
        function: Callable[[Any, Any], None],
        todo: list[tuple[Any, int]],
        task: object,
        say: Callable[[int], None],
    ) -> None:
        self._pool = self._pool or _pool(self._count)
        pending: dict[Future[None], tuple[Any, int]] = {}
        waiting = iter(todo)
        try:
            while True:
                for item, size in waiting:
                    pending[self._pool.submit(function, item, task)] = item, size
                    if len(pending) >= _AHEAD * self._count:
                        break
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    future.result()
                    say(pending.pop(future)[1])
        except BrokenProcessPool as error:
            cure = "run the same command again with fewer --cores, or on a machine with more memory: it continues"
            running_items = [str(item) for item, _ in pending.values()][: self._count]
            raise DataError(
                "a worker was killed", f"at {' or '.join(running_items)}, perhaps for lack of memory", cure
            ) from error


def _pool(count: int) -> ProcessPoolExecutor:
    # One thread per worker: the workers share the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))


def _end_with_parent(parent: int) -> None:
    """End with the parent, however it ends: two preparations must not write into one folder."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)


def _fitting() -> int:
    return max(1, min(len(os.sched_getaffinity(0)), memory_bytes() // WORKER_BYTES))


def memory_bytes() -> int:
    """Return the memory available now, within the limit of an enclosing control group."""
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(rows["MemAvailable"].split()[0]) * 1024
    limit, used_path = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used_path.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, int(text) - int(used_path.read_text()))
    return available


class Teller:
    """Prints progress and the time left, at the rate of this run without the work of earlier ones."""

    def __init__(self) -> None:
        self.more: Callable[[], dict[str, Any]] = dict
        """Further fields of each line."""
        self._first: tuple[float, float] | None = None

    def __call__(self, stage: str, part: float) -> None:
        now = time.monotonic()
        if self._first is None and part > 0:
            self._first = now, part
        left = None
        if self._first is not None and part > self._first[1]:
            left = round((now - self._first[0]) * (1 - part) / (part - self._first[1]))
        emit("progress", stage=stage, part=round(part, 4), left_s=left, **self.more())
