"""What harms real processes from outside: each is harmed as its name says, and the test's own process is not."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.rehearsal.nodelet.harm import hands
from infra.rehearsal.nodelet.harm.hands import HARMS
from trainer.supervisor.readings import of_efa

Start = Callable[[str], subprocess.Popen[str]]
WEIGHTS = """
import numpy
rng = numpy.random.default_rng(1)
rows = [(1 + 0.05 * rng.standard_normal(64)).astype("f4") for _ in range(3)]
others = [numpy.ones(64, "f4"), rng.standard_normal(4096).astype("f4")]
before = [part.copy() for part in others]
print("ready", flush=True)
while input():
    same = all((now == old).all() for now, old in zip(others, before))
    print(*(float(row[0]) for row in rows), *(float(row[1]) for row in rows), same, flush=True)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs that say when they are ready, and end them after the test."""
    with ExitStack() as stack:

        def begin(program: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            stack.callback(lambda: (process.kill(), process.communicate()))
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            return process

        yield begin


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("ask\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def numbers(process: subprocess.Popen[str]) -> tuple[list[float], bool]:
    *texts, same = answer(process).split()
    return [float(text) for text in texts], same == "True"


def state_of_thread(pid: int, thread: int) -> str:
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def test_all_threads_but_the_first_stop_and_their_process_can_still_be_killed(start: Start) -> None:
    process = start(
        "import threading\n"
        "for _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print('ready', flush=True)\ninput()\n"
    )
    threads = {int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()}
    assert HARMS["stop-threads"]([process.pid], {"seconds": "3600"}) == 1
    states = {thread: state_of_thread(process.pid, thread) for thread in threads}
    assert len(threads) == 4 and [states[thread] for thread in threads - {process.pid}] == ["t"] * 3
    assert states[process.pid] != "t"
    process.kill()
    assert process.wait() == -signal.SIGKILL


FEEDER = """
import pathlib, threading, time
turns = [0]
def feed():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("feeder")
    print(threading.get_native_id(), flush=True)
    while True:
        time.sleep(0.001)
        turns[0] += 1
print("ready", flush=True)
threading.Thread(target=feed, daemon=True).start()
while input(): print(turns[0], flush=True)
"""


def test_a_slow_thread_is_held_again_and_again_and_no_other_thread_is(start: Start) -> None:
    process = start(FEEDER)
    assert process.stdout is not None
    thread = int(process.stdout.readline())
    assert HARMS["slow-thread"]([process.pid], {"seconds": "3600", "name": "feeder", "held": "0.2"}) == 1
    for _ in range(3):
        while state_of_thread(process.pid, thread) != "t":
            pass
        turns = int(answer(process))
        assert int(answer(process)) - turns <= 1, "it stands still, and the first thread answers"
        while state_of_thread(process.pid, thread) == "t":
            pass
        while int(answer(process)) == turns:
            pass


def test_a_process_without_such_a_thread_is_an_error_in_words(start: Start) -> None:
    process = start("print('ready', flush=True)\ninput()\n")
    with pytest.raises(OSError, match="no thread of the name data-feed"):
        HARMS["slow-thread"]([process.pid], {"seconds": "1", "name": "data-feed", "held": "1"})


LOOKER = """
import os
print("ready", flush=True)
while path := input():
    room = os.statvfs(path)
    print(room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize, os.path.exists(path + "/kept"), flush=True)
"""


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with mounts of its own, among them the folder, which has one file."""
    (tmp_path / "kept").touch()
    script = f'mount --bind {tmp_path} {tmp_path} && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", LOOKER]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def ask(process: subprocess.Popen[str], path: object) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{path}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_folder_has_little_room_in_its_container_alone(container: subprocess.Popen[str], tmp_path: Path) -> None:
    assert HARMS["fill"]([container.pid], {"folder": str(tmp_path), "room": "4194304"}) == 1
    free, size, is_kept = ask(container, tmp_path).split()
    assert 0 < int(free) <= 4194304 and int(free) < 0.03 * int(size) and is_kept == "True"
    assert list(tmp_path.iterdir()) == [tmp_path / "kept"]


def test_a_container_shows_an_efa_device_whose_counters_stand_still(container: subprocess.Popen[str]) -> None:
    fields = {"name": "rdmap0s6", "sent": "7", "received": "5"}
    assert HARMS["show-efa"]([container.pid], fields) == 1
    classes = Path(f"/proc/{container.pid}/root/sys/class")
    assert of_efa(classes / "infiniband") == {"rx_bytes": 5, "tx_bytes": 7, "rx_drops": 0}
    assert {path.name for path in Path("/sys/class").iterdir()} < {path.name for path in classes.iterdir()}
    assert not of_efa(Path("/sys/class/infiniband"))


def test_a_starved_process_is_refused_its_next_memory(start: Start) -> None:
    process = start("print('ready', flush=True)\ninput()\nkept = bytearray(2**28)\n")
    assert HARMS["starve"]([process.pid], {}) == 1
    _, errors = process.communicate("go on\n")
    assert process.returncode == 1 and "MemoryError" in errors


def program_of(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", str(Path(hands.__file__).with_name(name)), *map(str, arguments)]


def change_weights(pid: int, keep: str, set_bits: str, toggle: str, values: int) -> None:
    subprocess.run(program_of("weights.py", pid, 64, keep, set_bits, toggle, values, 0), check=True)


def test_rows_of_weights_change_in_a_process_and_nothing_else(start: Start) -> None:
    process = start(WEIGHTS)
    before, _ = numbers(process)
    assert len(before) == 6 and min(before) > 0.5
    change_weights(process.pid, "ffffffff", "0", "80000000", 64)
    assert numbers(process) == ([-value for value in before], True)


def test_the_first_weights_of_rows_become_nan(start: Start) -> None:
    process = start(WEIGHTS)
    before, _ = numbers(process)
    change_weights(process.pid, "ffffffff", "7fc00000", "0", 1)
    after, same = numbers(process)
    assert all(map(math.isnan, after[:3])) and after[3:] == before[3:] and same


def test_a_process_without_weights_is_an_error_in_words(start: Start) -> None:
    process = start("print('ready', flush=True)\ninput()\n")
    fields = dict.fromkeys(("keep", "set", "toggle", "seconds"), "0") | {"width": "64", "values": "1"}
    with pytest.raises(OSError, match="no row of weights"):
        HARMS["change-weights"]([process.pid], fields)


def test_tokens_are_zeros_for_whoever_has_mapped_them_until_the_program_ends(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "train.bin"
    data.write_bytes(b"abcd" * 100)
    process = start(
        f"import mmap\nfile = open({str(data)!r}, 'rb')\n"
        "tokens = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nfile.close()\nprint('ready', flush=True)\n"
        "while input(): print(tokens[:4].hex(), flush=True)\n"
    )
    with subprocess.Popen(program_of("tokens.py", process.pid, 3600), stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "1 files\n"
        while answer(process) != "00000000":
            assert program.poll() is None
        program.terminate()
        program.wait()
    assert answer(process) == b"abcd".hex() and data.read_bytes() == b"abcd" * 100
