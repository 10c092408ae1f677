"""Jobs that mean no good, under a real supervisor: each ends in a documented state, with a sentence that says which."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.trainer.supervised import Supervisors, events, printed, supervisor
from tests.waiting import until
from trainer.contract import AGENT_PORT, ExitCode, Status

PIDS = """
import json, os, pathlib, signal, sys, time
pids = pathlib.Path(os.environ["PIDS"])
def here():
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\\n")
def hang():
    here()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(0.05)
"""
DEAF = f"""{PIDS}
if os.fork() == 0:
    os.setsid()
    hang()
hang()
"""
DAEMON = f"""{PIDS}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        hang()
    os._exit(0)
os.wait()
while not pids.exists() or len(pids.read_text().split()) < 2:
    time.sleep(0.01)
"""
FILES = ("a", "b", "c")
WRITER = """
import hashlib, json, os, pathlib, signal, sys, time
folder, supervisor = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"]), os.getppid()
last, moment, counted = int(sys.argv[1]), int(sys.argv[2]), 0
def operation():
    global counted
    counted += 1
    if counted == moment:
        time.sleep(1.5)  # the supervisor looks at what is not whole
        os.kill(supervisor, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
def content(name, step):
    return f"{name} of {step}, ".encode() * 3000
begun, resume = 0, os.environ["BIVOUAC_RESUME_FROM"]
if resume:
    begun = int(resume.rpartition("-")[2])
    whole = all((pathlib.Path(resume) / name).read_bytes() == content(name, begun) for name in "abc")
    print(json.dumps({"event": "offered", "number": begun, "whole": whole}), flush=True)
for step in range(begun + 1, last + 1):
    print(json.dumps({"step": step}), flush=True)
    here = folder / f"save-{step}"
    operation()
    here.mkdir(parents=True, exist_ok=True)
    for name in "abc":
        text = content(name, step)
        operation()
        with (here / name).open("wb", buffering=0) as file:
            for part in range(3):
                file.write(text[part * len(text) // 3 : (part + 1) * len(text) // 3])
                operation()
    (here / "DONE").touch()
    operation()
    while step < last and not (folder.parent / f"step-{step:08d}/manifest.json").exists():
        if os.getppid() != supervisor:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
"""
A_SAVE = 14
"""Operations of the job on one checkpoint."""
SEALING = 48
"""Operations of the supervisor from the second checkpoint's folder to the end of the first one."""


def python(text: str, *words: str) -> tuple[str, ...]:
    return sys.executable, "-c", text, *words


@pytest.fixture
def camp(tmp_path: Path) -> Supervisors:
    return Supervisors(tmp_path)


def alive(pids: Path) -> list[int]:
    """The processes of a file that have not ended."""
    return [int(one) for one in pids.read_text().split() if Path(f"/proc/{one}").exists()]


def shown(camp: Supervisors, path: str, rank: int = 0) -> str:
    return httpx2.get(f"http://{camp.addresses[rank]}:{AGENT_PORT}{path}", timeout=None).text


def test_a_job_that_never_prints_lives_without_a_step_and_its_end_says_so(camp: Supervisors) -> None:
    (camp.root / "pids").touch()
    silent = python(f"{PIDS}\nhere()\nwhile True: pass")
    process = camp.start(1, *silent, env={"PIDS": str(camp.root / "pids")})
    until(lambda: (camp.root / "pids").exists() and alive(camp.root / "pids") and _answer(camp))
    status = Status.model_validate_json(shown(camp, "/status"))
    assert status.ranks[0].alive and (status.phase, status.step) == ("starting", 0)
    process.terminate()
    process.communicate()
    end = camp.ended()
    assert (process.returncode, end.reason) == (ExitCode.INTERRUPTED, "interrupted")
    assert "stopped by SIGTERM" in end.detail and "no step is known: it printed no JSON line" in end.detail
    assert not alive(camp.root / "pids")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, 'it printed no JSON line with a "step"'),
        ({"pattern": r"step (?P<step>\d+)"}, "no line that it printed fits `progress.pattern`"),
        ({"progress": "client"}, "it has not called `beat`"),
    ],
)
def test_a_job_that_exits_0_without_training_has_failed(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, more=more)
    process = camp.start(1, *python("print('all is well')"), steps=40)
    process.communicate()
    end = camp.ended()
    assert process.returncode == end.exit_code == ExitCode.USER
    assert "exited 0 at step 0 of 40" in end.detail and why in end.detail and "all is well" in end.detail


def test_a_node_that_ends_after_node_0_has_not_ended_early_for_what_it_heard_last(tmp_path: Path) -> None:
    camp, go, gone = Supervisors(tmp_path, nodes=2), tmp_path / "go", tmp_path / "gone"
    wait = "import os, time\nwhile not os.path.exists(os.environ['FOR']):\n time.sleep(0.01)\n"
    says = "print('{\"step\": 5}', flush=True)\n" + wait + "print('{\"step\": 40}')"
    first = camp.start(1, *python(says), env={"FOR": str(go)})
    second = camp.start(1, *python(wait), rank=1, env={"FOR": str(gone)})
    until(lambda: '"step": 5' in _answer(camp, 1), "node 1 has heard of a step")
    go.touch()
    first.communicate()
    gone.touch()
    second.communicate()
    assert (first.returncode, second.returncode, camp.ended(1).reason) == (0, 0, "done")


def test_a_job_that_ignores_sigterm_is_killed_after_its_grace_with_all_that_is_its(tmp_path: Path) -> None:
    camp, pids = Supervisors(tmp_path, more={"grace_s": 0.2}), tmp_path / "pids"
    process = camp.start(1, *python(DEAF), env={"PIDS": str(pids)})
    until(lambda: pids.exists() and len(alive(pids)) == 2)
    process.terminate()
    process.communicate()
    end = camp.ended()
    assert not alive(pids)
    assert (process.returncode, end.signal) == (ExitCode.INTERRUPTED, 9)
    assert "stopped by SIGTERM, killed when its grace was over" in end.detail


@pytest.mark.parametrize(("code", "ends"), [(0, ExitCode.USER), (3, ExitCode.INTERNAL)])
def test_no_daemon_outlives_the_supervisor(code: int, ends: int, tmp_path: Path) -> None:
    camp, pids = Supervisors(tmp_path), tmp_path / "pids"
    process = camp.start(1, *python(f"{DAEMON}\nsys.exit({code})"), env={"PIDS": str(pids)})
    said = process.communicate()[0]
    assert not alive(pids) and len(pids.read_text().split()) == 2
    assert process.returncode == ends and f"exited {'0' if not code else 'with 3'}" in camp.ended().detail
    assert not events(said, "left_behind")


def test_what_daemons_leave_in_the_table_of_processes_is_taken(camp: Supervisors) -> None:
    text = "import os, time\nfor _ in range(20):\n if os.fork() == 0:\n  os.fork()\n  os._exit(0)\n os.wait()\n"
    process = camp.start(1, *python(f"{text}print('forked', flush=True)\ntime.sleep(1000)"))
    assert process.stdout is not None
    while "forked" not in process.stdout.readline():
        pass
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: len(children.read_text().split()) == 1, "only the launcher is left")
    process.terminate()
    process.communicate()


def test_a_job_that_spoils_the_clients_file_is_heard_on(camp: Supervisors) -> None:
    spoil = """
import os, sys
with open(os.path.join(os.environ["BIVOUAC_RUN"], "told-0.jsonl"), "wb") as file:
    file.write(b'\\xff\\x00\\n[1]\\n"x"\\n{"folder": 1}\\n{"step": "x"}\\n{"step": 5}\\n')
open(os.path.join(os.environ["BIVOUAC_RUN"], "told-x.jsonl"), "w").write("{}")
"""
    camp.more = {"progress": "client"}
    process = camp.start(1, *python(spoil), steps=5)
    process.communicate()
    assert process.returncode == 0 and camp.ended().step == 5


SECRETS = ["hunter22", 'quoted " and \\ and ü', "-----BEGIN KEY-----\nMIIEow/IBAAKCAQEA+7\n-----END KEY-----", "22"]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_that_a_job_prints_is_passed_on_nowhere(secret: str, tmp_path: Path) -> None:
    text = """
import json, os, sys, time
token = os.environ["TOKEN"]
print(token, json.dumps({"token": token}), json.dumps(token, ensure_ascii=False), repr(token), flush=True)
for line in token.splitlines():
    print("a line:", line)
print(json.dumps({"step": 7}), flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
raise ValueError(f"not accepted: {token}")
"""
    camp, go = Supervisors(tmp_path, secret=secret), tmp_path / "go"
    process = camp.start(1, *python(text), env={"GO": str(go)})
    until(lambda: '"step": 7' in _answer(camp), "it has printed")
    told = [shown(camp, path) for path in ("/status", "/metrics")]
    go.touch()
    told += [process.communicate()[0], (tmp_path / "node-0/termination.json").read_text()]
    assert process.returncode == ExitCode.INTERNAL and "ValueError: not accepted: [secret]" in camp.ended().detail
    forms = {json.dumps(secret)[1:-1], repr(secret)[1:-1], *secret.splitlines()}
    if secret.isdigit():  # a time may hold it; and where numbers stand they must stay
        told = [line for line in told[2].splitlines() if "event" not in line] + [camp.ended().detail]
    assert not [form for form in forms for text in told if form in text]


def test_a_secret_in_an_error_of_the_supervisor_is_hidden_too(camp: Supervisors) -> None:
    process = camp.start(1, f"/no/such/{camp.secret}")
    said = process.communicate()[0]
    assert process.returncode == ExitCode.USER and "the command does not start" in camp.ended().detail
    assert camp.secret not in said + (camp.root / "node-0/termination.json").read_text()


def _answer(camp: Supervisors, rank: int = 0) -> str:
    try:
        return shown(camp, "/status", rank)
    except httpx2.TransportError:
        return ""


def sound(tier: Path) -> list[int]:
    """Steps whose manifest and files agree, newest first."""
    found = []
    for path in tier.glob("step-*/manifest.json"):
        shards = json.loads(path.read_text())["shards"]
        whole = (
            hashlib.sha256((path.parent / shard["file"]).read_bytes()).hexdigest() == shard["sha256"]
            for shard in shards
        )
        if len(shards) == len(FILES) + 2 and all(whole):
            found.append(int(path.parent.name.partition("-")[2]))
    return sorted(found, reverse=True)


_chance = random.Random(20)
MOMENTS = [("job", one) for one in sorted(_chance.sample(range(A_SAVE + 1, 2 * A_SAVE + 1), 10))]
MOMENTS += [("supervisor", one) for one in sorted(_chance.sample(range(1, SEALING + 1), 10))]
FEW = [MOMENTS[4], MOMENTS[12], MOMENTS[18]]


@pytest.mark.parametrize(
    "moments", [pytest.param(FEW, id="3"), pytest.param(MOMENTS, id="20", marks=pytest.mark.nightly)]
)
def test_a_node_that_dies_while_a_checkpoint_is_written_leaves_the_newest_whole_one(
    moments: list[tuple[str, int]], tmp_path: Path
) -> None:
    camps, first = [], []
    for who, moment in moments:
        root = tmp_path / f"{who}-{moment}"
        root.mkdir()
        kept = {"format": "marker", "folder": str(root / "shared/tiny/own"), "keep": 1}
        camps.append(Supervisors(root, more={"checkpoints": kept}))
        if who == "supervisor":
            camps[-1].program = ("-m", "tests.trainer.supervisor.dying", str(moment))
        first.append(camps[-1].start(1, *python(WRITER, "3", str(moment if who == "job" else -1)), steps=3))
    expected = []
    for camp, process, when in zip(camps, first, moments, strict=True):
        said = process.communicate()[0]
        assert process.returncode == -9, f"{when}: the node has not died"
        whole = sound(camp.tier)
        assert whole and whole[0] >= max((event["step"] for event in events(said, "committed")), default=0), when
        expected.append(whole[0])
    assert set(expected) >= {1}, "some died before the second one was sealed"
    again = []
    for camp in camps:
        camp.program = (supervisor(),)
        again.append(camp.start(2, *python(WRITER, "3", "-1"), steps=3))
    for camp, process, when, newest in zip(camps, again, moments, expected, strict=True):
        said = process.communicate()[0]
        assert [(one["number"], one["whole"]) for one in printed(said, "offered")] == [(newest, True)], when
        assert process.returncode == 0 and sound(camp.tier) == [3], when
        assert [path.name for path in camp.tier.glob("step-*")] == ["step-00000003"], f"{when}: nothing half is left"
