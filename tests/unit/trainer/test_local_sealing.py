"""Two nodes' sealing side by side, each with a disk of its own: what is committed, and when."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.supervisor_tier import RunningJob, TwoNodes, torch_file
from trainer.supervisor import seal
from trainer.supervisor.sealing.local import make_sealing


def test_a_step_is_committed_once_every_node_has_given_its_part(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    pair.put(0, "step-10/__0_0.distcp", b"zero"), pair.put(1, "step-10/__1_0.distcp", b"one")
    assert pair.look(1, 0) == [], "nothing has ended the checkpoint"
    pair.put(0, "step-10/.metadata")
    assert pair.look(0, 0) == [], "node 1 has given nothing"
    assert pair.look(1, 0) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""
    assert pair.nodes[1].committed == -1
    pair.look(1)
    assert pair.nodes[1].committed == 10 and seal.committed(pair.nodes[1].disk) == [10]


def test_a_node_that_wrote_nothing_holds_no_step_up(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path, "marker")
    pair.put(0, "step-10/state"), pair.put(0, "step-10/DONE")
    assert pair.look(0, 1, 0) == [10]


def test_equal_files_of_two_nodes_are_one_and_different_ones_are_refused_for_good(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    for rank in (0, 1):
        pair.put(rank, "step-10/tokenizer", b"equal")
        pair.put(rank, "step-20/tokenizer", b"of %d" % rank)
    pair.put(0, "step-10/.metadata"), pair.put(0, "step-20/.metadata")
    assert pair.look(0, 1, 0, 1) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""
    assert "nodes 0 and 1 wrote different files named tokenizer" in pair.refusals(0)
    before = len(pair.refusals(0))
    assert pair.look(0, 1, 0) == [10] and len(pair.refusals(0)) == before
    assert not (pair.tier / "step-00000020").exists()
    assert not (pair.nodes[1].disk / "step-00000020").exists(), "its links would hold the room"


def test_a_part_that_the_job_has_removed_is_not_left_out(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    for step in (10, 20):
        pair.put(0, f"step-{step}/__0_0.distcp"), pair.put(1, f"step-{step}/__1_0.distcp", b"of %d" % step)
    pair.put(0, "step-10/.metadata")
    pair.look(0)
    (pair.nodes[1].folder / "step-10/__1_0.distcp").unlink()
    assert pair.look(1, 0) == [] and "the job removes it" in pair.refusals(1)[0]
    pair.put(0, "step-20/.metadata")
    assert pair.look(0, 1, 0) == [20], "the next one overtakes it"
    assert not (pair.tier / "step-00000010").exists()


def test_a_file_that_changes_while_it_is_copied_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = TwoNodes(tmp_path)
    pair.put(0, "step-10/.metadata")
    late, taken = pair.put(1, "step-10/__1_0.distcp", b"half"), seal.copy_checkpoint

    def while_it_is_written(*given: Any) -> Any:
        rows = taken(*given)
        if given[2] == 1:
            late.write_bytes(b"half and the rest")
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(seal, "copy_checkpoint", while_it_is_written)
        assert pair.look(0, 1, 0) == [] and "__1_0.distcp was written while" in pair.refusals(1)[0]
    assert not (pair.nodes[1].disk / "step-00000010").exists(), "it would take room"
    pair.nodes[1].put_off.clear()  # half a minute later
    assert pair.look(1, 0) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""


@pytest.mark.parametrize(
    ("form", "ends", "each"),
    [
        ("huggingface", ("checkpoint-10/trainer_state.json",), "checkpoint-10/rng_state_{}.pth"),
        ("deepspeed", ("latest",), "global_step10/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"),
    ],
)
def test_a_node_whose_ranks_still_write_is_waited_for(
    form: str, ends: tuple[str, ...], each: str, tmp_path: Path
) -> None:
    pair = TwoNodes(tmp_path, form)
    pair.put(0, each.format(0), torch_file())
    for name in ends:
        pair.put(0, name, b"{}" if form == "huggingface" else b"global_step10")
    assert pair.look(0, 1, 0) == [], "rank 1 has not begun"
    pair.put(1, each.format(1), torch_file()[:-1])
    assert pair.look(1, 0) == [], "nor has it ended"
    pair.put(1, each.format(1), torch_file())
    assert pair.look(1, 0) == [10]


def test_deepspeeds_tracker_that_comes_before_other_ranks_states_ends_no_checkpoint(tmp_path: Path) -> None:
    """Rank 0 writes `latest` before the barrier, on a shared folder too."""
    from trainer.supervisor.formats import FORMATS

    root = tmp_path / "global_step10"
    root.mkdir()
    (root / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(torch_file())
    (tmp_path / "latest").write_text("global_step10")
    assert list(FORMATS["deepspeed"](tmp_path, 2)) == []
    (root / "zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(torch_file())
    assert [one.step for one in FORMATS["deepspeed"](tmp_path, 2)] == [10]


@pytest.mark.parametrize("form", ["megatron", "deepspeed"])
def test_each_node_gets_the_tracker_file_that_names_what_it_was_given(form: str, tmp_path: Path) -> None:
    pair, root = TwoNodes(tmp_path, form), "iter_0000010" if form == "megatron" else "global_step10"
    pair.put(0, f"{root}/a"), pair.put(1, f"{root}/b")
    tracker = "latest_checkpointed_iteration.txt" if form == "megatron" else "latest"
    pair.put(0, tracker, b"10" if form == "megatron" else root.encode())
    assert pair.look(0, 1, 0) == [10]
    relaunch = TwoNodes(tmp_path, form, attempt=2)
    relaunch.put(1, root.replace("10", "20") + "/b")
    assert relaunch.resume() == [root, root]
    for node in relaunch.nodes:
        assert sorted(path.name for path in (node.folder / root).iterdir()) == ["a", "b"]
        assert (node.folder / tracker).read_text() == ("10" if form == "megatron" else root)
        assert not (node.folder / root.replace("10", "20")).exists(), "what was never sealed is not taken up"


def test_a_full_shared_tier_puts_a_step_off_and_ends_no_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = TwoNodes(tmp_path)
    pair.put(0, "step-10/.metadata")
    with monkeypatch.context() as full:
        full.setattr(seal, "publish", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert pair.look(0) == [] and "No space left on device" in pair.refusals(0)[0]
    pair.nodes[0].put_off.clear()
    assert pair.look(0, 1, 0) == [10]


def test_a_node_that_died_before_it_heard_of_the_commit_reads_its_own_files(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    pair.put(0, "step-10/.metadata"), pair.put(1, "step-10/__1_0.distcp", b"12345")
    assert pair.look(0, 1, 0) == [10] and seal.committed(pair.nodes[1].disk) == []
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-10", "step-10"]
    brought = [one["bytes_brought"] for job in relaunch.jobs for one in job.of("made_whole")]
    trees = [seal.digest_of(next(pair.tier.rglob(f"tree-000{node}.json")))[0] for node in (1, 0)]
    assert brought == [5 + trees[0], 1 + trees[1]], "each the other's file, and what it says of it"


def test_a_stop_ends_the_wait_for_nodes_that_do_not_come(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    pair.put(0, "step-10/.metadata")
    pair.look(0, 1, 0)
    alone = TwoNodes(tmp_path, attempt=2)
    alone.jobs[0].stopping = "SIGTERM"
    assert alone.nodes[0].resume() == ""


def test_a_relaunch_may_change_the_tier_and_the_job_goes_on_in_the_other_folder(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    pair.put(0, "step-10/__0_0.distcp", b"zero"), pair.put(1, "step-10/__1_0.distcp", b"one")
    pair.put(0, "step-10/.metadata")
    assert pair.look(0, 1, 0) == [10]
    disks = pair.nodes[0]
    own, place = tmp_path / "shared/tiny/own", disks.place._replace(attempt=2, node_count=1)
    config = {**disks.config, "checkpoints": {"format": "dcp", "folder": str(own), "keep": 9}}
    shared = make_sealing(config, place, pair.tier, tmp_path / "node-0", RunningJob(), 1)
    assert shared.resume() == str(own / "step-10")
    assert sorted(path.name for path in (own / "step-10").iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    (own / "step-20").mkdir()
    (own / "step-20/.metadata").write_bytes(b"x")
    shared.look()
    assert shared.committed == 20
    assert TwoNodes(tmp_path, attempt=3).resume() == ["step-20", "step-20"]


def test_a_node_that_could_not_give_its_part_tries_again_only_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, start = TwoNodes(tmp_path), time.monotonic()
    pair.put(0, "step-10/__0_0.distcp"), pair.put(1, "step-10/__1_0.distcp"), pair.put(0, "step-10/.metadata")
    with monkeypatch.context() as full:
        full.setattr(pair.nodes[1].far, "send", _no_room)
        assert pair.look(0, 1, 1, 1, 0) == []
    assert len(pair.refusals(1)) == 1
    pair.nodes[1].put_off.clear()  # the while is over
    assert pair.look(1, 0) == [10]
    (committed,) = pair.jobs[0].of("committed")
    assert 0 <= committed["seconds"] <= round(time.monotonic() - start, 3)


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_unrecognised_on_a_nodes_disk_is_on_the_shared_tier_at_the_end(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path)
    for rank, node in enumerate(pair.nodes):
        pair.put(rank, "notes.bin", b"of %d" % rank)
        node.finish(0)
    places = sorted((pair.tier / "own").glob("*/notes.bin"))
    assert [path.read_bytes() for path in places] == [b"of 0", b"of 1"]
