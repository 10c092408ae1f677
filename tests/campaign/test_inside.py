"""Inside a run: commands in a rank's container, copies out of it and into it, fresh logs, from a person's shell."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import signal
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tests.campaign.rehearsal import BIVOUAC, Rehearsal, rehearsing, until
from tests.waiting import HUNG_S

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/ddp"
SECRET = "swordfish-4711"


def inside(rehearsal: Rehearsal, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*BIVOUAC, *words], env=rehearsal.environment, cwd=rehearsal.root, input=given, capture_output=True,
        timeout=HUNG_S,
    )  # fmt: skip


def test_a_person_looks_into_a_rank_while_it_trains(tmp_path: Path) -> None:
    steps = {"args": ["5000", "0.2"], "estimates": {"steps": 5000}}
    changes = {"campaign": "entered", "workload": steps, "rehearsal": {"faults": []}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        driver = rehearsal.start()
        until(lambda: driver.poll() is not None or rehearsal.step() >= 3, "training has begun")
        assert driver.poll() is None, rehearsal.log()
        commands(rehearsal)
        an_interrupt(rehearsal)
        a_terminal(rehearsal)
        copies(rehearsal, tmp_path)
        the_record(rehearsal)
        logs(rehearsal)
        driver.send_signal(signal.SIGINT)
        driver.wait(timeout=HUNG_S)
        down = rehearsal.run("down", rehearsal.name, "--abandon", "--yes")
        assert down.returncode == 0, down.stdout + down.stderr
        gone = inside(rehearsal, "exec", rehearsal.name, "0", "--", "true")
        assert gone.returncode == 64 and b"has no cluster" in gone.stderr, gone.stderr


def commands(rehearsal: Rehearsal) -> None:
    name, script = rehearsal.name, "echo $BIVOUAC_NODE_RANK; cat; echo wrong >&2; exit 43"
    done = inside(rehearsal, "exec", name, "1", "-i", "--", "sh", "-c", script, given=b"\x00\xff")
    assert (done.returncode, done.stdout, done.stderr) == (43, b"1\n\x00\xff", b"wrong\n")
    done = inside(rehearsal, "exec", name, "0", "--", "python3", "-c", f"print(len('{SECRET}'))")
    assert (done.returncode, done.stdout) == (0, b"14\n"), done.stderr
    refused = inside(rehearsal, "exec", name, "2", "--", "true")
    assert refused.returncode == 64 and b"no such rank" in refused.stderr, refused.stderr
    assert inside(rehearsal, "exec", "never-was", "0", "--", "true").returncode == 64
    head = f"{shlex.join([*BIVOUAC, 'exec', name, '0', '--', 'yes'])} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", head], env=rehearsal.environment, cwd=rehearsal.root, capture_output=True, timeout=HUNG_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, b"y\n", b"")


def an_interrupt(rehearsal: Rehearsal) -> None:
    command = [*BIVOUAC, "exec", rehearsal.name, "0", "--", "sh", "-c", "echo on; exec sleep 1000"]
    stays = subprocess.Popen(
        command, env=rehearsal.environment, cwd=rehearsal.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert stays.stdout is not None and stays.stdout.readline() == "on\n"
    stays.send_signal(signal.SIGINT)
    _, said = stays.communicate(timeout=HUNG_S)
    assert stays.returncode == 130 and "SIGINT sent to 1 processes" in said, said


def a_terminal(rehearsal: Rehearsal) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    script = "read word; stty size; echo $word; exit 5"
    shell = subprocess.Popen(
        [*BIVOUAC, "exec", rehearsal.name, "0", "-t", "--", "sh", "-c", script],
        env=rehearsal.environment, cwd=rehearsal.root, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.write(ours, b"typed\n")  # lies in the terminal until it is read
    assert shell.wait(timeout=HUNG_S) == 5
    os.close(theirs)
    seen = b""
    with suppress(OSError):
        while data := os.read(ours, 4096):
            seen += data
    os.close(ours)
    assert b"33 101\r\n" in seen and seen.endswith(b"typed\r\n"), seen


def copies(rehearsal: Rehearsal, folder: Path) -> None:
    name, own = rehearsal.name, folder / "own"
    own.mkdir()
    (own / "data").write_bytes(os.urandom(2**22))
    (own / "run.sh").write_text("exit 9\n")
    (own / "run.sh").chmod(0o755)
    done = inside(rehearsal, "cp", name, str(own), "1:/tmp/own")
    assert done.returncode == 0 and b"SHA-256 compared" in done.stderr, done.stderr
    assert inside(rehearsal, "exec", name, "1", "--", "sh", "/tmp/own/run.sh").returncode == 9
    done = inside(rehearsal, "exec", name, "1", "--", "sha256sum", "/tmp/own/data")
    assert done.stdout.decode().split()[:1] == [hashlib.sha256((own / "data").read_bytes()).hexdigest()], done.stderr
    done = inside(rehearsal, "cp", name, "1:/tmp/own", str(folder / "back"))
    assert done.returncode == 0, done.stderr
    assert (folder / "back/data").read_bytes() == (own / "data").read_bytes()
    assert (folder / "back/run.sh").stat().st_mode & 0o777 == 0o755
    refused = inside(rehearsal, "cp", name, "1:/no/such", str(folder / "never"))
    assert refused.returncode == 64 and b"no such file" in refused.stderr and not (folder / "never").exists()


def the_record(rehearsal: Rehearsal) -> None:
    told = rehearsal.events()
    events = [one["data"] for one in told if one["kind"] == "operator.entered"]
    programs = {event["program"] for event in events}
    assert programs == {"sh", "python3", "yes", "sha256sum", "bivouac cp, into it", "bivouac cp, out of it"}
    assert all(event["who"].startswith("arn:aws:") and event["attempt"] == 1 for event in events)
    assert SECRET not in json.dumps(told)


def logs(rehearsal: Rehearsal) -> None:
    lines = inside(rehearsal, "logs", rehearsal.name, "--rank", "0", "--raw").stdout.decode().splitlines()
    steps = [json.loads(line)["step"] for line in lines if line.startswith('{"event": "step"')]
    assert steps[:3] == [1, 2, 3] and steps == list(range(1, len(steps) + 1))
    fresh = inside(rehearsal, "logs", rehearsal.name, "--rank", "0", "--raw", "--since", "1s").stdout.decode()
    assert '"step": 1,' not in fresh
