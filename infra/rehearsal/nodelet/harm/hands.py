"""Harms processes of a machine from outside: no memory, threads that stop or are slow, folders without room or that
answer late, devices that stand still."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent
_SCARCE_BYTES = 2**20
_THROTTLED_EVERY_S = 0.1


def fill(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Leave `folder` with `room` bytes in every container that may write there, 64 KiB without it. One that starts
    later has room again."""
    room = fields.get("room", "65536")
    return _harm_each("folders.py", _containers(processes, fields["folder"]), fields["folder"], "fill", room)


def delay_opens(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Let each file and folder of `folder` be opened `each` seconds late, for `seconds`, in the same containers."""
    containers = _containers(processes, fields["folder"])
    return _harm_each("folders.py", containers, fields["folder"], "delay", fields["each"], fields["seconds"])


def show_efa(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Show in every container an EFA device whose counters stand still, `name` with `sent` and `received` bytes. One
    that starts later has none."""
    counters = f"infiniband/{fields['name']}/ports/1/hw_counters"
    rows = {"tx_bytes": fields["sent"], "rx_bytes": fields["received"], "rx_drops": "0"}
    files = [f"{counters}/{name}={value}" for name, value in rows.items()]
    return _harm_each("folders.py", _containers(processes, "/sys", ""), "/sys/class", "show", *files)


def slow(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Hold the processes for a `share` of the time, as a throttled processor does, for `seconds`; return at once."""
    for pid in processes:
        arguments = (pid, float(fields["seconds"]), float(fields["share"]))
        threading.Thread(target=_throttle, args=arguments, name="throttle", daemon=True).start()
    return len(processes)


def starve(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Give the processes no more memory than they have: what they ask for is refused, as in a full cgroup or GPU."""
    for pid in processes:
        _, hard_bytes = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (_SCARCE_BYTES, hard_bytes))
    return len(processes)


def stop_threads(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Stop all threads of the processes but their first, for `seconds`."""
    return _harm_each("threads.py", processes, fields["seconds"])


def slow_thread(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Hold the thread `name` of the processes for `held` seconds whenever it has nothing to do, for `seconds`."""
    return _harm_each("threads.py", processes, fields["seconds"], fields["name"], fields["held"])


def change_weights(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Change bits of the weights in the memory of the processes, as `weights.py` has it."""
    names = ("width", "keep", "set", "toggle", "values", "seconds")
    return _harm_each("weights.py", processes, *(fields[name] for name in names), flags=("-I",))


def change_tokens(processes: Collection[int], fields: Mapping[str, str]) -> int:
    """Replace the tokens that the processes read, for `seconds`."""
    return _harm_each("tokens.py", processes, fields["seconds"])


HARMS: dict[str, Callable[[Collection[int], Mapping[str, str]], int]] = {
    "fill": fill, "delay-opens": delay_opens, "slow": slow, "starve": starve, "stop-threads": stop_threads,
    "change-weights": change_weights, "change-tokens": change_tokens, "slow-thread": slow_thread, "show-efa": show_efa,
}  # fmt: skip


def _throttle(pid: int, seconds: float, share: float) -> None:
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_THROTTLED_EVERY_S * share)
            os.kill(pid, signal.SIGCONT)
            time.sleep(_THROTTLED_EVERY_S * (1 - share))


def _containers(processes: Collection[int], folder: str, option: str = "rw") -> list[int]:
    """Return one process of each container in which a folder is mounted, with an option; empty: with any."""
    containers = dict[str, int]()
    for pid in sorted(processes):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            mounts = map(str.split, Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
            if any(fields[4] == folder and option in ("", *fields[5].split(",")) for fields in mounts):
                containers.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    return list(containers.values())


def _harm_each(program: str, processes: Collection[int], *arguments: str, flags: tuple[str, ...] = ("-I", "-S")) -> int:
    """Start a program that harms each process, wait until it does, and return how many. Raises `OSError` where it
    cannot."""
    for pid in processes:
        command = [sys.executable, *flags, str(_FOLDER / program), str(pid), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            raise OSError(process.stderr.read().decode(errors="replace").strip()[-500:])
        threading.Thread(target=process.wait, name=program, daemon=True).start()
    return len(processes)
