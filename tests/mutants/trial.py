"""Tries mutants of one module: a process that has imported what is dear, and a child of it for each mutant.

The child loads the changed source in place of the module, as each Python that its tests start does, and runs those
tests that run the changed lines. Its limits are CPU time and time asleep, which a loaded machine does not stretch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.mutants.inherited.sitecustomize import VARIABLE, Replaced, hand_on
from tests.mutants.operators import Mutant

KILLED, SURVIVED, ENDLESS, BROKEN = "killed", "survived", "endless", "broken"
_CPU_S, _ASLEEP_S, _TIMES = 15.0, 15.0, 5.0
"""What a mutant may use beyond so many times what its tests take on the sound module."""


@dataclass
class Seen:
    """What the listed tests do with the sound module."""

    tests: dict[str, tuple[float, list[int]]] = field(default_factory=dict)
    """Test -> seconds, lines of the module that it runs."""
    at_import: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    start_s: float = 0.0
    modules: list[str] = field(default_factory=list)

    def of(self, mutant: Mutant) -> list[str]:
        """Tests that run the mutant's lines, in the order of the files' time."""
        sound = {name: said for name, said in self.tests.items() if name not in self.failed}
        if not set(mutant.lines).isdisjoint(self.at_import):
            return list(sound)
        return [name for name, (_, lines) in sound.items() if not set(mutant.lines).isdisjoint(lines)]


class Chosen:
    """A pytest plugin that runs some tests, the quickest files first, and keeps what each did."""

    def __init__(self, names: Sequence[str] | None, lines: mmap.mmap | None = None) -> None:
        self.names, self.lines, self.seen = names, lines, Seen()
        self._began = time.monotonic()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.names is not None:
            names = set(self.names)
            items[:] = [item for item in items if item.nodeid in names]
            order: dict[str, int] = {}
            for name in self.names:
                order.setdefault(name.partition("::")[0], len(order))
            items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])

    def pytest_collection_finish(self) -> None:
        if hypothesis := sys.modules.get("hypothesis"):
            few = [phase for phase in hypothesis.Phase if phase.name in ("explicit", "generate")]
            hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=few, database=None)
            hypothesis.settings.load_profile("mutants")
        self.seen.at_import = self._ran()
        self.seen.start_s = time.monotonic() - self._began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        answer = yield
        self.seen.tests[item.nodeid] = (time.monotonic() - began, self._ran())
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.seen.failed.append(report.nodeid)

    def _ran(self) -> list[int]:
        if self.lines is None:
            return []
        ran = [number for number, byte in enumerate(self.lines[:]) if byte]
        self.lines[:] = bytes(len(self.lines))
        return ran


def warm(name: str, path: Path, tests: Sequence[str]) -> Seen:
    """Import what the tests need and what does not need the module; return what they do with the sound one."""
    reader, writer = os.pipe()

    def look() -> int:
        folder = Path(os.environ["TMPDIR"])
        marks = folder / "marks"
        marks.write_bytes(bytes(len(path.read_text().splitlines()) + 2))
        with marks.open("r+b") as file:
            lines = mmap.mmap(file.fileno(), 0)
        sys.meta_path.insert(0, hand_on(name, path, folder / "order", marks=marks))  # type: ignore[arg-type]
        plugin = Chosen(None, lines)
        code = _pytest(tests, plugin, stop=False)
        plugin.seen.modules = [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None)]
        with os.fdopen(writer, "w") as out:
            json.dump(vars(plugin.seen), out)
        return code

    log = Path(tempfile.mkstemp(prefix="mutants-")[1])
    child = _fork(look, log)
    os.close(writer)
    with os.fdopen(reader) as said:
        content = said.read()
    _end(child)
    if not content:
        raise SystemExit(f"the tests of {name} do not run:\n{log.read_text()[-3000:]}")
    log.unlink()
    seen = Seen(**json.loads(content))
    _import(name, path, seen.modules)
    files: dict[str, float] = {}
    for test, (seconds, _) in seen.tests.items():
        files[test.partition("::")[0]] = files.get(test.partition("::")[0], 0.0) + seconds
    seen.tests = dict(sorted(seen.tests.items(), key=lambda item: files[item[0].partition("::")[0]]))
    return seen


def attempt(name: str, path: Path, mutant: Mutant, seen: Seen) -> tuple[str, str]:
    """Return what became of a mutant, and the test that noticed it."""
    chosen = seen.of(mutant)
    if not chosen:
        return SURVIVED, "no test runs it"
    try:
        compile(mutant.source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return BROKEN, ""
    usual_s = seen.start_s + sum(seen.tests[test][0] for test in chosen)
    cpu_s, asleep_s = (int(more_s + _TIMES * usual_s) for more_s in (_CPU_S, _ASLEEP_S))

    def run() -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        finder = hand_on(name, path, Path(os.environ["TMPDIR"], "order"), mutant.source)
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
        return _pytest(sorted({test.partition("::")[0] for test in chosen}), Chosen(chosen), stop=True)

    log = Path(tempfile.mkstemp(prefix="mutants-")[1])
    child = _fork(run, log)
    ended = _wait(child, asleep_s)
    _end(child)
    text = log.read_text(errors="replace")
    log.unlink()
    if ended == 0:
        return SURVIVED, f"{len(chosen)} tests pass"
    if ended is None or ended in (-signal.SIGXCPU, -signal.SIGKILL):
        return ENDLESS, ""
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return KILLED, failed[0][:160] if failed else f"exit code {ended}"


def _pytest(tests: Sequence[str], plugin: Chosen, stop: bool) -> int:
    scratch = os.environ["TMPDIR"]
    options = ["-p", "no:cacheprovider", f"--basetemp={scratch}/t", *(["-x"] if stop else [])]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def _import(name: str, path: Path, modules: Sequence[str]) -> None:
    """Import what the tests import. Of ours only what does not need the module that is to be changed."""
    later = Replaced(name, path, None)
    sys.meta_path.insert(0, later)  # type: ignore[arg-type]
    for module in modules:
        if module.partition(".")[0] != "tests" and module not in ("__main__", "conftest") and "test_" not in module:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    sys.meta_path.remove(later)  # type: ignore[arg-type]


def _fork(work: Callable[[], int], log: Path) -> int:
    """Start a child of a session and a scratch folder of its own, whose output goes to the log."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        # No power fails within a trial, and on a busy disk this is most of the time.
        os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]
        scratch = _scratch(os.getpid())
        scratch.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        out = os.open(log, os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        code = work()
        sys.stdout.flush()
    except BaseException as error:
        print(repr(error), flush=True)
    finally:
        os._exit(code)


def _scratch(child: int) -> Path:
    return Path(f"/tmp/mutant-{child}")


def _end(child: int) -> None:
    """End what a child left running, and its scratch."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    sign = f"{VARIABLE}={_scratch(child)}/".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if sign in Path("/proc", name, "environ").read_bytes():  # in a session of its own
                os.kill(int(name), signal.SIGKILL)
    shutil.rmtree(_scratch(child), ignore_errors=True)


def _wait(child: int, asleep_s: float) -> int | None:
    """Return the exit code, or None when the child slept too long: time in which it waits for a CPU does not count."""
    began = time.monotonic()
    pause_s = 0.01
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - began - _busy_s(child) > asleep_s:
            return None
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.2)


def _busy_s(process: int) -> float:
    """Seconds that a process's threads ran or waited for a CPU."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            ran, waited, _ = Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()
            total += int(ran) + int(waited)
    return total / 1e9
