"""An MPI program on a whole rehearsed cluster: the operator's MPIJob, Debian's `mpirun`, a node that dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.rehearsal import rehearsing
from tests.root import ROOT
from trainer.supervisor import seal

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/mpi"
STEPS = 60


def twin(folder: Path) -> dict[int, float]:
    """The losses of the same two ranks, undisturbed and on one node."""
    script = str(ROOT / EXAMPLE / "train.py")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, script]
    done = subprocess.run([*command, str(STEPS), "0"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {one["step"]: one["loss"] for one in map(json.loads, done.stdout.splitlines())}


def test_an_mpi_program_is_carried_through_a_lost_node_and_archived_byte_for_byte(tmp_path: Path) -> None:
    with rehearsing(tmp_path, {"campaign": "mpi"}, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["outcome"] == "done"
        events = rehearsal.events()
        running = {one["data"]["attempt"]: one["data"]["nodes"] for one in events if one["kind"] == "attempt.running"}
        assert set(running) == {1, 2} and [len(set(nodes)) for nodes in running.values()] == [2, 2], "one pod a node"
        (ended,) = (one["data"] for one in events if one["kind"] == "attempt.ended" and one["data"]["attempt"] == 1)
        assert ended["failure"] == "node" and ended["dead_nodes"] == [running[1][1]], "not node 0, which told of it"
        told = [row for series in rehearsal.report()["training"]["losses"] for row in series["points"]]
        whole = twin(tmp_path)
        assert {row["step"] for row in told} == set(whole) == set(range(1, STEPS + 1))
        assert [row for row in told if row["loss"] != whole[row["step"]]] == [], "bit for bit"
        assert [one["data"]["clean"] for one in events if one["kind"] == "certified"] == [True]
        struck = rehearsal.run("down", "--all")
        assert struck.returncode == 0, struck.stdout + struck.stderr
        tier = tmp_path / "mpi"
        rehearsal.archived("golden").rename(tier)
        assert seal.fault(tier, STEPS, "mpi", "") == "", "every byte is that of its manifest"
