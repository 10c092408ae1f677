"""A job that writes to its nodes' own disks, on a whole rehearsed cluster: a node dies with its disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.rehearsal import rehearsing
from tests.root import ROOT
from trainer.contract import Manifest
from trainer.supervisor import seal

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/fsdp"
STEPS = 60


def twin(folder: Path) -> dict[int, float]:
    """The losses of the same two ranks, undisturbed and on one node."""
    script = str(ROOT / EXAMPLE / "train.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", script, str(STEPS), "0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {one["step"]: one["loss"] for one in map(json.loads, done.stdout.splitlines())}


def test_distributed_checkpoints_on_two_disks_outlive_a_node_and_are_archived_whole(tmp_path: Path) -> None:
    changes = {"campaign": "disks", "workload": {"checkpoints": {"tier": "local", "keep": 3, "keep_local": 2}}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["outcome"] == "done"
        events = rehearsal.events()
        running = {one["data"]["attempt"]: one["data"]["nodes"] for one in events if one["kind"] == "attempt.running"}
        assert set(running) == {1, 2}, "a node has died, and the second attempt has trained"
        told = [row for series in rehearsal.report()["training"]["losses"] for row in series["points"]]
        whole = twin(tmp_path)
        assert {row["step"] for row in told} == set(whole) == set(range(1, STEPS + 1))
        assert [row for row in told if row["loss"] != whole[row["step"]]] == [], "bit for bit"
        said = [
            json.loads(line[line.index("{") :])
            for line in rehearsal.run("logs", "disks", "--attempt", "2").stdout.splitlines()
            if '"event": "made_whole"' in line
        ]
        brought = {one["node"]: one["bytes_brought"] for one in said}
        assert len(brought) == 2 and 0 < min(brought.values()) < max(brought.values()), brought
        assert [one["data"]["clean"] for one in events if one["kind"] == "certified"] == [True]
        struck = rehearsal.run("down", "--all")
        assert struck.returncode == 0, struck.stdout + struck.stderr
        tier = tmp_path / "disks"
        rehearsal.archived("golden").rename(tier)
        assert seal.fault(tier, STEPS, "disks", "") == "", "every byte is that of its manifest"
        manifest = Manifest.model_validate_json((tier / f"step-{STEPS:08d}/manifest.json").read_bytes())
        assert {shard.rank for shard in manifest.shards} == {0, 1}, "files of both nodes"
