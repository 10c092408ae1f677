"""A whole rehearsed cluster is struck: a node dies with its disk, and a rank while its node is well."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.campaign.rehearsal import quick, rehearsing
from tests.root import ROOT
from trainer.contract import Manifest

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/fsdp"
STEPS, LAST = 60, 120


def test_distributed_checkpoints_on_two_disks_outlive_a_node_and_are_archived_whole(tmp_path: Path) -> None:
    changes = {"campaign": "disks", "workload": {"checkpoints": {"tier": "local", "keep": 3, "keep_local": 2}}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        rehearsal.carried([*launcher, str(ROOT / EXAMPLE / "train.py")], STEPS)
        said = [
            json.loads(line[line.index("{") :])
            for line in rehearsal.run("logs", "disks", "--attempt", "2", "--raw").stdout.splitlines()
            if '"event": "made_whole"' in line
        ]
        brought = {one["node"]: one["bytes_brought"] for one in said}
        assert len(brought) == 2 and 0 < min(brought.values()) < max(brought.values()), brought
        tier = rehearsal.sound_archive(STEPS)
        manifest = Manifest.model_validate_json((tier / f"step-{STEPS:08d}/manifest.json").read_bytes())
        assert {shard.rank for shard in manifest.shards} == {0, 1}, "files of both nodes"


def test_a_killed_rank_restarts_in_place_within_one_attempt(tmp_path: Path) -> None:
    faults = [{"kill_rank": 1, "after_step": LAST // 2}]
    with rehearsing(tmp_path, quick(LAST, campaign="rank", rehearsal={"faults": faults})) as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = [
            interruption
            for interruption in rehearsal.report()["interruptions"]
            if interruption["action"] == "restarted in place"
        ]
        assert "SIGKILL" in told["what"], told
        events = rehearsal.events()
        assert [event["data"]["attempt"] for event in events if event["kind"] == "attempt.launched"] == [1]
        assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]
        struck = rehearsal.run("down", "--all", "--yes")
        assert struck.returncode == 0, struck.stdout + struck.stderr
        (found,) = rehearsal.archived("golden").rglob("manifest.json")
        made = Manifest.model_validate_json(found.read_bytes())
        assert (made.step, made.attempt, made.generation) == (LAST, 1, 1)
