"""An MPI program on a whole rehearsed cluster: the operator's MPIJob, Debian's `mpirun`, a node that dies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.campaign.rehearsal import rehearsing
from tests.root import ROOT

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/mpi"
STEPS = 60


def test_an_mpi_program_is_carried_through_a_lost_node_and_archived_byte_for_byte(tmp_path: Path) -> None:
    with rehearsing(tmp_path, {"campaign": "mpi"}, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
        running = rehearsal.carried([*launcher, str(ROOT / EXAMPLE / "train.py")], STEPS)
        assert [len(set(nodes)) for nodes in running.values()] == [2, 2], "one pod a node"
        ends = [event["data"] for event in rehearsal.events() if event["kind"] == "attempt.ended"]
        (ended,) = (end for end in ends if end["attempt"] == 1)
        assert ended["failure"] == "node" and ended["dead_nodes"] == [running[1][1]], "not node 0, which told of it"
        rehearsal.sound_archive(STEPS)
