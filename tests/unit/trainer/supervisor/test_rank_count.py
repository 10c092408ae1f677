"""Ranks that a job starts by itself: how many there are decides when a Hugging Face checkpoint is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.trainer.supervised import Supervisors, events
from tests.waiting import until
from tests.worlds.supervisor_tier import put
from trainer.contract import parse_manifest
from trainer.supervisor import seal
from trainer.supervisor.job import SETTLED_S, RankCount
from trainer.supervisor.place import Place

SAVES = """
import json, os, pathlib, sys, time, zipfile
folder = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"])
def save(step, ranks):
    root = folder / f"checkpoint-{step}"
    root.mkdir(parents=True)
    (root / "model.safetensors").write_text("weights")
    for rank in ranks:
        with zipfile.ZipFile(root / f"rng_state_{rank}.pth", "w") as file:
            file.writestr("state", "1")
    (root / "trainer_state.json").write_text("{}")
    print(json.dumps({"step": step}), flush=True)
save(10, [0])
save(20, [int(one) for one in sys.argv[1]])
while sys.argv[2] == "waits":
    time.sleep(0.02)
"""


def start(camp: Supervisors, ranks: str, waits: str = "") -> subprocess.Popen[str]:
    return camp.start(1, sys.executable, "-c", SAVES, ranks, waits, steps=20)


def test_a_checkpoint_that_lacks_a_ranks_random_state_is_not_sealed(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, format="huggingface", ranks=2)
    job = start(camp, "01", "waits")
    until(lambda: seal.committed(camp.tier), "a step is sealed")
    job.terminate()
    assert [event["step"] for event in events(job.communicate()[0], "committed")] == [20], (
        "10 came first, and was not whole"
    )
    manifest = parse_manifest((camp.tier / "step-00000020/manifest.json").read_bytes())
    assert len(manifest.shards) >= 4


def test_a_job_with_fewer_ranks_than_gpus_has_its_checkpoints_sealed_at_a_good_end(tmp_path: Path) -> None:
    camp = Supervisors(tmp_path, format="huggingface", ranks=8)
    job = start(camp, "01")
    assert events(job.communicate()[0], "committed")[-1]["step"] == 20 and job.returncode == 0


def of(ranks: int = 8, nodes: int = 1, tier: str = "shared") -> RankCount:
    place = Place("c", 1, "n", "10.0.0.1", 0, nodes, ranks, "x:1", "", "")
    return RankCount({"checkpoints": {"tier": tier}}, place)


@pytest.mark.parametrize(
    ("variables", "nodes", "number"),
    [
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}, 2, 2), ({"WORLD_SIZE": "6"}, 2, 3),
        ({"WORLD_SIZE": "many"}, 1, 8), ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 1, 3),
        ({"PMI_SIZE": "4"}, 1, 4), ({}, 1, 8),
    ],
)  # fmt: skip
def test_the_environment_that_a_launcher_gives_to_its_ranks_tells_their_number(
    variables: dict[str, str], nodes: int, number: int, tmp_path: Path
) -> None:
    env = {"PATH": os.environ["PATH"], **variables}
    rank = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env)
    try:
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdin.write(b".")
        assert rank.stdout.read(1) == b"."  # until then the process may still have this one's environment
        assert of(nodes=nodes).look([os.getpid() + 10**7, rank.pid], tmp_path) == number
    finally:
        rank.communicate()


def test_files_tell_the_number_once_they_have_stopped_rising(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    count = of(ranks=4, nodes=2)
    (tmp_path / "checkpoint-5").mkdir()

    def look(states: int, seconds: float) -> int:
        for rank in range(states):
            (tmp_path / f"checkpoint-5/rng_state_{rank}.pth").touch()
        now[0] += seconds
        return count.look([], tmp_path)

    assert look(0, SETTLED_S) == 4 and look(2, 1) == 4 and look(2, SETTLED_S - 1) == 4, "more may come"
    assert look(4, 1) == 4 and look(4, SETTLED_S - 1) == 4 and look(4, 1) == 2
    for many in (of(ranks=1), of(ranks=1, nodes=2, tier="local")):
        assert many.look([], tmp_path) == 4, "more ranks than GPUs"


def test_a_checkpoint_that_is_laid_back_on_a_nodes_own_disk_has_the_ranks_of_all_nodes(tmp_path: Path) -> None:
    for name in ("global_step10/zero_pp_rank_0_optim_states.pt", "global_step10/zero_pp_rank_1_optim_states.pt"):
        put(tmp_path / name)
    count = of(ranks=1, nodes=2, tier="local")
    count.note_restored(tmp_path)
    assert count.look([], tmp_path) == 1
    for rank in range(2):
        put(tmp_path / f"global_step20/zero_pp_rank_{rank}_optim_states.pt")
    assert count.look([], tmp_path) == 2, "what this node's ranks have written themselves counts as it is"
