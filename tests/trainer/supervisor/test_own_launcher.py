"""A job that starts its ranks by itself: Hugging Face's Trainer under the job's own torchrun, on some of the GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.root import ROOT
from tests.unit.trainer.supervised import Supervisors, events

pytestmark = pytest.mark.nightly
STEPS = 20


def test_no_checkpoint_is_sealed_before_the_last_ranks_random_state_lies_there(tmp_path: Path) -> None:
    folder = ROOT / "trainer/examples/huggingface"
    camp = Supervisors(tmp_path, format="huggingface", folder=folder, ranks=4, more={"progress": "client"})
    words = ("torchrun", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=$MASTER_PORT")
    client = {"PYTHONPATH": str(ROOT / "trainer/client")}
    job = camp.start(1, *words, "train.py", str(STEPS), "0.3", steps=STEPS, env=client)
    said = job.communicate()[0]
    assert {event["step"] for event in events(said, "committed")} == {10, 20} and job.returncode == 0
    for step in sorted(camp.tier.glob("step-*")):
        names = {path.name for path in step.rglob("*") if "rng_state_" in path.name}
        assert len(names) == 2, f"{step.name} has {names}"
