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
