"""The stacks of all processes of a job, for a gang that hangs: by Python's faulthandler where a process has registered,
else by py-spy where the image has it and the kernel lets it read, and always what the kernel says of each thread.

A process that a signal has stopped, or that waits within the kernel, answers no handler: its threads' states and the
kernel's function in which each waits (`wchan`, proc(5)) tell that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from trainer.supervisor import family

PATH = "/stacks"
_SIGNAL = int(signal.SIGRTMIN) + 7
"""No library of a training uses it as far as we know; SIGUSR1 and SIGUSR2 are taken by schedulers and jobs."""
_WRITES_WITHIN_S, _READS_WITHIN_S, _PAUSE_S, _ALL_S = 2.0, 5.0, 0.02, 20.0
_LONGEST, _MOST_BYTES, _MOST_THREADS, _MOST_PROCESSES = 48 << 10, 700 << 10, 64, 64
"""Bytes of one process and of all, threads and processes."""
_STOPPED = ("T", "t")
_files: dict[Path, Any] = {}
"""Open as long as the process lives: the handler writes by their descriptor."""


def register(folder: Path) -> None:
    """Have this process write the stacks of all its threads into `folder` at the signal. No trouble of it ends one."""
    path = _file_of(folder, os.getpid())
    with contextlib.suppress(OSError, ValueError, AttributeError):
        _files[path] = path.open("w")
        faulthandler.register(_SIGNAL, file=_files[path], all_threads=True)


def dump(folder: Path) -> str:
    """Return the stacks of all processes below this one, within 20 seconds and 700 KiB. `folder`: where they have
    registered."""
    deadline = time.monotonic() + _ALL_S
    by_pid = family.processes()
    texts, size = [], 0
    for pid in sorted(family.descendants_of(os.getpid(), by_pid))[:_MOST_PROCESSES]:
        if time.monotonic() > deadline or size > _MOST_BYTES:
            texts.append("further processes were left out\n")
            break
        text = f"process {pid}, state {by_pid[pid].state}: {_command(pid)}\n{_threads(pid)}"
        text += _python_stacks(folder, pid, by_pid[pid].state, deadline - time.monotonic())
        texts.append(text[:_LONGEST])
        size += len(texts[-1])
    return "\n".join(texts) or "the job has no process\n"


def _python_stacks(folder: Path, pid: int, state: str, left_s: float) -> str:
    path = _file_of(folder, pid)
    # Without a handler the signal would end the process; its number may be of another than wrote the file.
    if path.exists() and state not in (*_STOPPED, "Z", "X") and _handles(pid):
        return _by_handler(path, pid)
    return _by_reader(pid, min(left_s, _READS_WITHIN_S))


def _by_reader(pid: int, within_s: float) -> str:
    """Return what py-spy reads of a process that it neither stops nor signals, or why there is nothing.
    https://github.com/benfred/py-spy#how-can-i-avoid-pausing-the-python-program"""
    program = shutil.which("py-spy")
    if program is None:
        return "  no Python stack: it has no handler, or is stopped, and py-spy is not in the image\n"
    try:
        command = (program, "dump", "--nonblocking", "--pid", str(pid))
        answer = subprocess.run(command, capture_output=True, timeout=max(0.1, within_s), check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"  no Python stack: {error}\n"
    if answer.returncode:
        return f"  no Python stack: py-spy: {answer.stderr.decode(errors='replace').strip()[:300]}\n"
    return answer.stdout.decode(errors="replace")[:_LONGEST]


def _handles(pid: int) -> bool:
    """Return whether a process catches the signal, by the mask `SigCgt` of proc(5)."""
    for line in _text(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (_SIGNAL - 1) & 1)
    return False


def _by_handler(path: Path, pid: int) -> str:
    """Return what the handler wrote, once it writes no more."""
    try:
        begin = size = path.stat().st_size
        os.kill(pid, _SIGNAL)
        deadline = time.monotonic() + _WRITES_WITHIN_S
        while time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            newest = path.stat().st_size
            if newest == size > begin:
                break
            size = newest
        with path.open(errors="replace") as file:
            file.seek(begin)
            return file.read(_LONGEST) or "  its handler has not answered: it waits within the kernel\n"
    except OSError as error:
        return f"  no Python stack: {error}\n"


def _threads(pid: int) -> str:
    """Return state, name and the kernel's function of each thread, as far as they can be read."""
    lines = []
    with contextlib.suppress(OSError):
        for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:_MOST_THREADS]:
            folder = Path(f"/proc/{pid}/task/{task}")
            stat = _text(folder / "stat").rpartition(")")[2].split()
            place = _text(folder / "wchan") or "?"
            lines.append(f"  thread {task} {_text(folder / 'comm')}: {stat[0] if stat else '?'} in {place}\n")
    return "".join(lines)


def _command(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()[:300]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _file_of(folder: Path, pid: int) -> Path:
    return folder / f"stacks-{pid}.txt"
