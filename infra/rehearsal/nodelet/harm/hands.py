"""Harms processes of a machine from outside: no memory, threads that stop, folders without room or that answer late."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent
_WITHIN_S = 60.0
_SCARCE_BYTES = 2**20


def fill(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Leave `folder` without room in every container that may write there. One that starts later has room again."""
    containers = _containers(processes, fields["folder"])
    for pid in containers:
        _finish("fill.py", pid, fields["folder"])
    return len(containers)


def delay_opens(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Let each file of `folder` be opened `each` seconds late, for `seconds`, in every container that may write
    there."""
    containers = _containers(processes, fields["folder"])
    for pid in containers:
        _begin("opens.py", pid, fields["folder"], fields["each"], fields["seconds"])
    return len(containers)


def starve(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Give the processes no more memory than they have: what they ask for is refused, as in a full cgroup or GPU."""
    for pid in processes:
        _, hard_bytes = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (_SCARCE_BYTES, hard_bytes))
    return len(processes)


def stop_threads(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Stop all threads of the processes but their first, for `seconds`."""
    for pid in processes:
        _begin("threads.py", pid, fields["seconds"])
    return len(processes)


def change_weights(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Change bits of the weights in the memory of the processes, as `weights.py` has it."""
    names = ("width", "keep", "set", "toggle", "values", "seconds")
    for pid in processes:
        _begin("weights.py", pid, *(fields[name] for name in names), flags=("-I",))
    return len(processes)


def change_tokens(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Replace the tokens that the processes read, for `seconds`."""
    for pid in processes:
        _begin("tokens.py", pid, fields["seconds"])
    return len(processes)


HARMS: dict[str, Callable[[Collection[int], Mapping[str, str]], int]] = {
    "fill": fill, "delay-opens": delay_opens, "starve": starve, "stop-threads": stop_threads,
    "change-weights": change_weights, "change-tokens": change_tokens,
}  # fmt: skip


def _containers(processes: Collection[int], folder: str) -> list[int]:
    """Return one process of each container that may write to a folder that is mounted there."""
    containers = dict[str, int]()
    for pid in sorted(processes):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            mounts = map(str.split, Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
            if any(fields[4] == folder and "rw" in fields[5].split(",") for fields in mounts):
                containers.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    return list(containers.values())


def _command(program: str, *arguments: object, flags: tuple[str, ...] = ("-I", "-S")) -> list[str]:
    return [sys.executable, *flags, str(_FOLDER / program), *map(str, arguments)]


def _finish(program: str, *arguments: object) -> None:
    subprocess.run(_command(program, *arguments), check=True, capture_output=True, timeout=_WITHIN_S)


def _begin(program: str, *arguments: object, flags: tuple[str, ...] = ("-I", "-S")) -> None:
    """Start a program that harms while it runs, and wait until it does. Raises `OSError` where it cannot."""
    command = _command(program, *arguments, flags=flags)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    if not process.stdout.readline():
        raise OSError(process.stderr.read().decode(errors="replace").strip()[-500:])
    threading.Thread(target=process.wait, name=program, daemon=True).start()
