"""A job that writes to its nodes' own disks, on a whole rehearsed cluster: a node dies with its disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.campaign.rehearsal import rehearsing
from tests.root import ROOT
from trainer.contract import Manifest

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/fsdp"
STEPS = 60


def test_distributed_checkpoints_on_two_disks_outlive_a_node_and_are_archived_whole(tmp_path: Path) -> None:
    changes = {"campaign": "disks", "workload": {"checkpoints": {"tier": "local", "keep": 3, "keep_local": 2}}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        rehearsal.carried([*launcher, str(ROOT / EXAMPLE / "train.py")], STEPS)
        said = [
            json.loads(line[line.index("{") :])
            for line in rehearsal.run("logs", "disks", "--attempt", "2").stdout.splitlines()
            if '"event": "made_whole"' in line
        ]
        brought = {one["node"]: one["bytes_brought"] for one in said}
        assert len(brought) == 2 and 0 < min(brought.values()) < max(brought.values()), brought
        tier = rehearsal.sound_archive(STEPS)
        manifest = Manifest.model_validate_json((tier / f"step-{STEPS:08d}/manifest.json").read_bytes())
        assert {shard.rank for shard in manifest.shards} == {0, 1}, "files of both nodes"
