"""Jobs that write to their nodes' own disks: checkpoints are sealed by all nodes, and come back whole to each."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.trainer.supervised import Supervisors, events, kill_node, printed
from tests.waiting import until
from trainer.contract import AGENT_PORT, NOTHING_SOUND, ExitCode, parse_manifest
from trainer.contract.listing import Listing, StepVerdict, list_folder

JOB = """
import json, os, pathlib, sys, time
own, rank = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"]), int(os.environ["NODE_RANK"])
shared, last = pathlib.Path(os.environ["SHARED"]), int(sys.argv[1])
begun = 0
if resume := os.environ["BIVOUAC_RESUME_FROM"]:
    begun = int(resume.rpartition("-")[2])
    found = {path.name: path.read_text() for path in pathlib.Path(resume).iterdir()}
    beside = sorted(path.name for path in own.iterdir() if path.name != pathlib.Path(resume).name)
    print(json.dumps({"event": "offered", "number": begun, "files": found, "beside": beside}), flush=True)
def barrier(name):
    (shared / f"{name}.{rank}").touch()
    while len(list(shared.glob(f"{name}.*"))) < int(os.environ["NNODES"]):
        time.sleep(0.01)
for step in range(begun + 1, last + 1):
    here = own / f"step-{step}"
    here.mkdir(parents=True)
    (here / f"part-{rank}").write_text(f"{rank} of {step}, " * 1000)
    if rank == 0:
        (here / "common").write_text(f"of {step}")
    barrier(f"written-{os.environ['TRY']}-{step}")
    if rank == 0:
        print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
        (here / ".metadata").write_text(str(step))
    while not (shared / f"tiny/step-{step:08d}/manifest.json").exists():
        time.sleep(0.01)
if os.environ.get("STAYS"):
    time.sleep(100000)
"""
"""A job in the manner of DCP: each rank writes a file of its own, and rank 0 what ends a checkpoint, `.metadata`."""
LAST = 3
FILES = {".metadata", "common", "part-0", "part-1"}


class Camp(Supervisors):
    """Two nodes with disks of their own."""

    def run(self, attempt: int, last: int, stays: bool = False) -> list[subprocess.Popen[str]]:
        env = {"SHARED": str(self.root / "shared"), "TRY": str(attempt), **({"STAYS": "1"} if stays else {})}
        command = (sys.executable, "-c", JOB, str(last))
        return [self.node(attempt, rank, command, env, last) for rank in range(2)]

    def node(
        self, attempt: int, rank: int, command: Sequence[str], env: dict[str, str], last: int
    ) -> subprocess.Popen[str]:
        own = {"format": "dcp", "folder": str(self.disk(rank) / "own"), "tier": "local", "keep": 2, "keep_local": 2}
        self.more = {"checkpoints": own}
        return self.start(attempt, *command, steps=last, rank=rank, env=env)

    def disk(self, rank: int) -> Path:
        return self.root / f"node-{rank}/local/tiny"

    def sealed(self, tier: Path | None = None) -> list[int]:
        """Steps with a manifest on a tier, newest first; else on the shared one."""
        found = (tier or self.tier).glob("step-*/manifest.json")
        return sorted((int(path.parent.name.partition("-")[2]) for path in found), reverse=True)

    def file(self, step: int, name: str, tier: Path | None = None) -> Path:
        (found,) = ((tier or self.tier) / f"step-{step:08d}").glob(f"attempt-*/*{name}")
        return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Three steps on two nodes, and what the nodes said."""
    camp = Camp(tmp_path_factory.mktemp("trained"), nodes=2)
    return camp.root, ended(camp.run(1, LAST))


@pytest.fixture
def camp(trained: tuple[Path, list[str]], tmp_path: Path) -> Camp:
    """The same after these steps, to be spoiled."""
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    return Camp(tmp_path, nodes=2)


def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What the nodes said, once all have ended well."""
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return said


def spoil(path: Path) -> None:
    """Change a byte; a file that is linked elsewhere is another one then."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def offered(said: str) -> dict[str, Any]:
    (one,) = printed(said, "offered")
    return one


def whole(one: dict[str, Any], step: int) -> bool:
    """Whether the job was offered all files of a step, with its bytes."""
    wanted = {".metadata": str(step), "common": f"of {step}"}
    wanted |= {f"part-{rank}": f"{rank} of {step}, " * 1000 for rank in (0, 1)}
    return one["files"] == wanted and one["number"] == step


def test_all_nodes_seal_and_each_tier_keeps_its_number_in_the_form_that_every_list_reads(
    camp: Camp, trained: tuple[Path, list[str]]
) -> None:
    said = trained[1]
    assert [event["step"] for event in events(said[0], "committed")] == [1, 2, 3] and not events(said[1], "committed")
    assert camp.sealed() == [3, 2] and [camp.sealed(camp.disk(rank)) for rank in (0, 1)] == [[3, 2], [3, 2]]
    content = (camp.tier / "step-00000003/manifest.json").read_bytes()
    manifest = parse_manifest(content, 3, "tiny", "one")
    assert {re.sub("^attempt-0001/([0-9a-f]{16}-)?", "", shard.file): shard.rank for shard in manifest.shards} == {
        ".metadata": 0, "common": 0, "part-0": 0, "part-1": 1, "tree-0000.json": 0, "tree-0001.json": 1,
    }  # fmt: skip
    assert [row.here for row in list_folder(camp.tier, "shared", "tiny")] == [6, 6]
    assert [list_folder(camp.disk(rank), "local", "tiny")[0].here for rank in (0, 1)] == [4, 2]
    assert [camp.ended(rank).committed_step for rank in (0, 1)] == [3, 3]
    names = {path.name for path in (camp.tier / "parts/attempt-0001").iterdir()}
    assert names == {"node-0000.json", "node-0001.json", "over.json"}, "notes of steps are gone"


def test_a_node_that_comes_without_its_disk_is_made_whole_and_the_other_reads_its_own(camp: Camp) -> None:
    shutil.rmtree(camp.disk(1))
    said = ended(camp.run(2, LAST))
    assert all(whole(offered(one), 3) for one in said)
    brought = [events(one, "made_whole")[0]["bytes_brought"] for one in said]
    sizes = {name: camp.file(3, name).stat().st_size for name in FILES}
    trees = {rank: next(camp.tier.glob(f"step-00000003/*/tree-000{rank}.json")).stat().st_size for rank in (0, 1)}
    assert brought == [sizes["part-1"] + trees[1], sum(sizes.values()) + sum(trees.values())]


def test_a_damaged_file_on_a_nodes_disk_is_brought_anew_and_the_step_stays(camp: Camp) -> None:
    spoil(camp.file(3, "part-1", camp.disk(1)))
    said = ended(camp.run(2, LAST))
    assert [event["file"].partition("-part")[2] for event in events(said[1], "refused_file")] == ["-1"]
    assert not events(said[0], "refused_step") and all(whole(offered(one), 3) for one in said)


def test_a_step_that_one_node_cannot_make_whole_is_refused_by_all_and_done_again(camp: Camp) -> None:
    spoil(camp.file(3, "part-1"))
    shutil.rmtree(camp.disk(1))
    said = ended(camp.run(2, LAST))
    (refused,) = events(said[0], "refused_step")
    assert refused["step"] == 3 and "node 1" in refused["why"] and "part-1" in refused["why"]
    assert all(whole(offered(one), 2) for one in said), "the step before, on all nodes"
    assert "step-3" not in [name for one in said for name in offered(one)["beside"]]
    assert camp.sealed() == [3, 2] and (camp.tier / "step-00000003/attempt-0002").is_dir()


def test_where_no_step_can_be_made_whole_the_job_does_not_begin_anew(camp: Camp) -> None:
    for step in camp.sealed():
        camp.file(step, "common").unlink()
    shutil.rmtree(camp.disk(0))
    first, second = camp.run(2, LAST + 1)
    said = first.communicate()[0]
    second.terminate()
    second.communicate()
    assert [event["step"] for event in events(said, "refused_step")] == [3, 2] and not events(said, "step")
    assert (camp.ended().exit_code, camp.ended().reason) == (ExitCode.STORAGE, NOTHING_SOUND)
    assert second.returncode == ExitCode.INTERRUPTED


def test_a_step_of_which_a_lost_node_gave_no_part_is_not_committed(camp: Camp) -> None:
    first, second = camp.run(2, LAST, stays=True)
    until(lambda: (camp.disk(1) / "own/step-3").is_dir() and first.poll() is None, "node 1 has been made whole")
    until(lambda: (camp.tier / "resume/attempt-0002.json").exists(), "the job begins")
    kill_node(second)
    second.communicate()
    late = camp.disk(0) / "own/step-4"
    late.mkdir()
    (late / "part-0").write_text("0 of 4")
    (late / ".metadata").write_text("4")
    asked = camp.tier / "parts/attempt-0002/step-00000004"
    until(lambda: (asked / "node-0000.json").exists(), "node 0 has given its part")
    first.terminate()
    said = first.communicate()[0]
    assert first.returncode == ExitCode.INTERRUPTED and camp.ended().committed_step == 3
    assert not events(said, "committed") and camp.sealed() == [3, 2]
    shutil.rmtree(camp.disk(1))
    again = ended(camp.run(3, LAST))
    assert all(whole(offered(one), 3) for one in again)
    assert not (camp.tier / "step-00000004").exists(), "what was half there is gone"


def test_a_nodes_disk_is_listed_and_read_for_the_steward(camp: Camp) -> None:
    processes = camp.run(2, LAST, stays=True)
    until(lambda: processes[1].poll() is None and (camp.tier / "resume/attempt-0002.json").exists(), "the job begins")
    spoil(camp.file(2, "part-1", camp.disk(1)))

    def asked(path: str) -> httpx2.Response:
        return httpx2.get(f"http://{camp.addresses[1]}:{AGENT_PORT}{path}", timeout=None)

    rows = Listing.model_validate_json(asked("/checkpoints").content).rows
    assert list(rows) == list_folder(camp.disk(1), "local", "tiny", "n1") and [row.step for row in rows] == [3, 2]
    found = StepVerdict.model_validate_json(asked("/verdicts/2").content)
    assert [name.partition(" ")[2] for name, _ in found.faults] == ["(step-2/part-1)"] and not found.sound
    assert StepVerdict.model_validate_json(asked("/verdicts/3").content).sound
    assert asked("/verdicts/7").status_code == 404
    for process in processes:
        process.terminate()
        process.communicate()
    assert camp.ended(1).committed_step == 3


RANKS = """
import json, os, pathlib, pickle, time, zipfile
own, rank = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"]), int(os.environ["NODE_RANK"])
own.mkdir(parents=True, exist_ok=True)
shared = pathlib.Path(os.environ["SHARED"])
for step in (10, 20):
    with zipfile.ZipFile(own / f"ckpt_step{step}_rank{rank}.pt", "w") as file:
        file.writestr("a/data.pkl", pickle.dumps({"rank": rank, "of": step}, protocol=2))
    (shared / f"written-{step}.{rank}").touch()
    while len(list(shared.glob(f"written-{step}.*"))) < 2:
        time.sleep(0.01)
    for told in (step, step + 1):
        print(json.dumps({"step": told, "loss": 1.0}), flush=True)
    while not (shared / f"tiny/step-{step:08d}/manifest.json").exists():
        time.sleep(0.01)
        if rank == 0:
            print(json.dumps({"step": step + 2, "loss": 1.0}), flush=True)
"""
"""Each rank writes one file, on its own node's disk."""


def test_files_of_ranks_on_disks_of_their_own_are_one_checkpoint(tmp_path: Path) -> None:
    camp = Camp(tmp_path, nodes=2)
    processes = []
    for rank in range(2):
        own = {"format": "auto", "folder": str(camp.disk(rank) / "own"), "tier": "local", "keep": 2, "keep_local": 2}
        camp.more = {"checkpoints": own}
        env = {"SHARED": str(tmp_path / "shared")}
        processes.append(camp.start(1, sys.executable, "-c", RANKS, steps=22, rank=rank, env=env))
    ended(processes)
    for step in camp.sealed():
        names = {path.name.partition("-")[2] for path in camp.tier.glob(f"step-{step:08d}/attempt-*/*.pt")}
        assert names == {f"ckpt_step{step}_rank{rank}.pt" for rank in range(2)}
    assert camp.sealed() == [20, 10]
