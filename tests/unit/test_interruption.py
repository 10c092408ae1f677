"""A signal is an end by hand wherever it comes, also where Python drops what is raised."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.root import ROOT
from tests.waiting import HUNG_S

KILL = "lambda: os.kill(os.getpid(), signal.{name})"
PROGRAM = """
import os, signal, sys, threading, time
from infra.cli.main import Interrupted, listen
{before}
listen()
{after}
try:
    {work}
    time.sleep(20)
except Interrupted as ended:
    # Another thread can still log: no lock of the logging module was left held.
    import logging
    thread = threading.Thread(target=logging.getLogger, args=("another",), daemon=True)
    thread.start()
    thread.join(5)
    sys.exit(9 if thread.is_alive() else f"ended by {{ended}}")
"""
FORK = "child = os.fork() or os._exit(0); os.waitpid(child, 0)"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("before", "after", "work"),
    [
        ("", "", "({kill})()"),
        ("os.register_at_fork(after_in_parent={kill})", "", FORK),
        ("", "os.register_at_fork(before={kill})", FORK),
        ("", "os.register_at_fork(after_in_parent={kill})", FORK),
        ("Lost = type('Lost', (), dict(__del__=lambda self: ({kill})()))", "", "lost = Lost(); del lost"),
    ],
    ids=["in plain code", "inside a fork", "before a fork", "after a fork", "in a finalizer"],
)
def test_a_signal_ends_the_program_wherever_it_comes(name: str, before: str, after: str, work: str) -> None:
    kill = KILL.format(name=name)
    lines = {key: line.format(kill=kill) for key, line in (("before", before), ("after", after), ("work", work))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(**lines)], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (1, [f"ended by {name}"]), done.stderr


def test_what_else_python_drops_is_still_told() -> None:
    program = "from infra.cli.main import listen\nlisten()\nclass Bad:\n    def __del__(self): 1 / 0\nBad()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr


def test_what_other_modules_do_around_a_fork_is_not_cut_short() -> None:
    inside = "def inside():\n    os.kill(os.getpid(), signal.SIGTERM)\n    print('released', flush=True)\n"
    lines = {"before": inside + "os.register_at_fork(after_in_parent=inside)", "after": "", "work": FORK}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(**lines)], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S
    )
    assert done.stdout == "released\n" and "ended by SIGTERM" in done.stderr, done.stderr


def test_an_error_that_foreign_code_made_of_it_is_an_end_by_hand_too() -> None:
    program = (
        "import os, signal, sys\nfrom infra.cli import main as cli\n"
        "def foreign(**_):\n    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n    except BaseException:\n"
        "        raise RuntimeError('AWS_ERROR_UNKNOWN') from None\n"
        "cli.app = foreign\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 130 and done.stderr.startswith("interrupted:"), done.stderr
