"""The example jobs under two supervisors each: one node is killed, and the loss does not show it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import until
from trainer.contract import ExitCode
from trainer.supervisor import seal

pytestmark = pytest.mark.nightly
"""A run imports torch a dozen times; the supervisor's own tests, which need no torch, are quick."""
STEPS, EVERY = 30, 10


def losses(said: str) -> dict[int, float]:
    lines = (json.loads(line) for line in said.splitlines() if line.startswith('{"step"'))
    return {line["step"]: line["loss"] for line in lines}


def run(camp: Supervisors, attempt: int, seconds: float) -> list[subprocess.Popen[str]]:
    words = ("train.py", str(STEPS), str(seconds))
    return [camp.start(attempt, *words, steps=STEPS, rank=rank) for rank in range(camp.nodes)]


def kill_node(process: subprocess.Popen[str]) -> None:
    """Kill a supervisor and all that it started, at once, as a lost node does."""
    children = {int(one): stat_parent(int(one)) for one in os.listdir("/proc") if one.isdigit()}
    doomed = {process.pid}
    while more := {pid for pid, parent in children.items() if parent in doomed} - doomed:
        doomed |= more
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)


def stat_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.parametrize(
    ("example", "form"),
    [
        ("ddp", "marker"),
        pytest.param("fsdp", "dcp", marks=pytest.mark.nightly),
        pytest.param("deepspeed", "deepspeed", marks=pytest.mark.nightly),
    ],
)
def test_a_lost_node_does_not_show_in_the_loss(example: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()
    (tmp_path / "struck").mkdir()
    twin, struck = (
        Supervisors(
            tmp_path / name, nodes=2, launcher="torchrun", folder=ROOT / "trainer/examples" / example, format=form
        )
        for name in ("twin", "struck")
    )
    undisturbed = run(twin, 1, 0.0)
    whole = losses(undisturbed[0].communicate()[0])
    assert [process.wait() for process in undisturbed] == [0, 0] and list(whole) == list(range(1, STEPS + 1))

    first = run(struck, 1, 0.1)
    until(lambda: seal.committed(struck.tier), "a checkpoint is sealed")
    kill_node(first[1])
    for process in first:
        process.terminate()
    before = losses(first[0].communicate()[0])
    assert first[0].returncode == ExitCode.INTERRUPTED and max(before) < STEPS
    newest = seal.committed(struck.tier)[0]

    second = run(struck, 2, 0.0)
    said = second[0].communicate()[0]
    after = losses(said)
    assert [process.wait() for process in second] == [0, 0] and events(said, "restored")[0]["step"] == newest
    assert min(after) == newest + 1 and seal.committed(struck.tier)[0] == STEPS
    assert before | after == whole, "bit for bit"
