"""Jobs under a real torchrun: the rank that failed is told, and a job's own torchrun has its ranks counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.unit.trainer.supervised import Supervisors, events
from trainer.contract import ExitCode

FAILS = """
import datetime, os, sys, time
rank = int(os.environ["RANK"])
if sys.argv[1] == "import" and rank == 1:
    import no_such_module
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
if sys.argv[1] == "cuda":
    torch.ones(1).cuda()
if sys.argv[1] == "key" and rank == 1:
    {}["batch_size"]
dist.all_reduce(torch.ones(1))
dist.barrier()
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "error", "rank"),
    [
        ("key", "KeyError: 'batch_size'", 1),
        pytest.param("import", "ModuleNotFoundError: No module named 'no_such_module'", 1, marks=pytest.mark.nightly),
        pytest.param("cuda", "CUDA", None, marks=pytest.mark.nightly),
    ],
)
def test_under_torchrun_the_rank_that_failed_is_told_with_its_error(
    how: str, error: str, rank: int | None, tmp_path: Path
) -> None:
    if how == "cuda" and os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    (tmp_path / "train.py").write_text(FAILS)
    camp = Supervisors(tmp_path, launcher="torchrun", folder=tmp_path, ranks=2)
    process = camp.start(1, "train.py", how)
    process.communicate()
    end = camp.ended()
    assert (process.returncode, end.reason) == (ExitCode.USER, "user")
    assert error in end.detail and "ChildFailed" not in end.detail
    assert rank is None or end.rank == rank


@pytest.mark.nightly
def test_no_checkpoint_is_sealed_before_the_last_ranks_random_state_lies_there(tmp_path: Path) -> None:
    folder = ROOT / "trainer/examples/huggingface"
    camp = Supervisors(tmp_path, format="huggingface", folder=folder, ranks=4, more={"progress": "client"})
    words = ("torchrun", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=$MASTER_PORT")
    client = {"PYTHONPATH": str(ROOT / "trainer/client")}
    job = camp.start(1, *words, "train.py", "20", "0.3", steps=20, env=client)
    said = job.communicate()[0]
    assert {event["step"] for event in events(said, "committed")} == {10, 20} and job.returncode == 0
    for step in sorted(camp.tier.glob("step-*")):
        names = {path.name for path in step.rglob("*") if "rng_state_" in path.name}
        assert len(names) == 2, f"{step.name} has {names}"
