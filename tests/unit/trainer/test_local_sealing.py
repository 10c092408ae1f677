"""Two nodes' sealing side by side, each with a disk of its own: what is committed, and when."""

from __future__ import annotations

import io
import shutil
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainer.supervisor import seal
from trainer.supervisor.formats import Finished
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.local import LocalSealing, make_sealing


@dataclass
class Told:
    """A job that runs, and what is told of it."""

    stopping: str = ""
    step: int = 0
    tokens: int = 7
    loss: float | None = 0.5
    events: list[dict[str, Any]] = field(default_factory=list)

    def emit(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def wait_for(self, path: Path, seconds: float) -> None:
        raise AssertionError("nodes with own disks ask the tier")


def told(node: LocalSealing, event: str) -> list[dict[str, Any]]:
    assert isinstance(node.job, Told)
    return [one for one in node.job.events if one["event"] == event]


def why(node: LocalSealing) -> list[str]:
    return [str(one["why"]) for one in told(node, "not_sealed")]


class Pair:
    def __init__(self, root: Path, form: str = "dcp", attempt: int = 1, keep: int = 9) -> None:
        self.tier, self.nodes = root / "shared/tiny", list[LocalSealing]()
        for rank in (0, 1):
            own = root / f"node-{rank}/tiny/own"
            kept = {"format": form, "folder": str(own), "tier": "local", "keep": keep, "keep_local": keep}
            place = Place("tiny", attempt, f"n{rank}", f"127.9.9.{rank}", rank, 2, 1, "127.9.9.0:1", "", "")
            config = {"checkpoints": kept, "launcher": "torchrun", "identity": "one", "config_digest": "config"}
            made = make_sealing(config, place, self.tier, root / f"node-{rank}", Told(), 1)
            assert isinstance(made, LocalSealing)
            self.nodes.append(made)

    def put(self, rank: int, name: str, content: bytes = b"x") -> Path:
        path = self.nodes[rank].folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def look(self, *ranks: int) -> list[int]:
        for rank in ranks:
            self.nodes[rank].look()
        return seal.committed(self.tier)

    def resume(self) -> list[str]:
        """Where both nodes resume; they wait for each other."""
        found = {0: "", 1: ""}

        def one(rank: int) -> None:
            found[rank] = self.nodes[rank].resume()

        both = [threading.Thread(target=one, args=(rank,)) for rank in found]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        return [str(Path(path).relative_to(self.nodes[rank].folder)) if path else "" for rank, path in found.items()]


def packed() -> bytes:
    """What `torch.save` writes, for those who look at its end."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data", "x")
    return buffer.getvalue()


def test_a_step_is_committed_once_every_node_has_given_its_part(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.put(0, "step-10/__0_0.distcp", b"zero"), pair.put(1, "step-10/__1_0.distcp", b"one")
    assert pair.look(1, 0) == [], "nothing has ended the checkpoint"
    pair.put(0, "step-10/.metadata")
    assert pair.look(0, 0) == [], "node 1 has given nothing"
    assert pair.look(1, 0) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""
    assert pair.nodes[1].committed == -1
    pair.look(1)
    assert pair.nodes[1].committed == 10 and seal.committed(pair.nodes[1].disk) == [10]


def test_a_node_that_wrote_nothing_holds_no_step_up(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "marker")
    pair.put(0, "step-10/state"), pair.put(0, "step-10/DONE")
    assert pair.look(0, 1, 0) == [10]


def test_equal_files_of_two_nodes_are_one_and_different_ones_are_refused_for_good(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for rank in (0, 1):
        pair.put(rank, "step-10/tokenizer", b"equal")
        pair.put(rank, "step-20/tokenizer", b"of %d" % rank)
    pair.put(0, "step-10/.metadata"), pair.put(0, "step-20/.metadata")
    assert pair.look(0, 1, 0, 1) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""
    assert "nodes 0 and 1 wrote different files named tokenizer" in why(pair.nodes[0])
    before = len(why(pair.nodes[0]))
    assert pair.look(0, 1, 0) == [10] and len(why(pair.nodes[0])) == before
    assert not (pair.tier / "step-00000020").exists()
    assert not (pair.nodes[1].disk / "step-00000020").exists(), "its links would hold the room"


def test_a_part_that_the_job_has_removed_is_not_left_out(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for step in (10, 20):
        pair.put(0, f"step-{step}/__0_0.distcp"), pair.put(1, f"step-{step}/__1_0.distcp", b"of %d" % step)
    pair.put(0, "step-10/.metadata")
    pair.look(0)
    (pair.nodes[1].folder / "step-10/__1_0.distcp").unlink()
    assert pair.look(1, 0) == [] and "the job removes it" in why(pair.nodes[1])[0]
    pair.put(0, "step-20/.metadata")
    assert pair.look(0, 1, 0) == [20], "the next one overtakes it"
    assert not (pair.tier / "step-00000010").exists()


def test_a_file_that_changes_while_it_is_copied_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path)
    pair.put(0, "step-10/.metadata")
    late, taken = pair.put(1, "step-10/__1_0.distcp", b"half"), seal.copy_checkpoint

    def while_it_is_written(*given: Any) -> Any:
        rows = taken(*given)
        if given[2] == 1:
            late.write_bytes(b"half and the rest")
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(seal, "copy_checkpoint", while_it_is_written)
        assert pair.look(0, 1, 0) == [] and "__1_0.distcp was written while" in why(pair.nodes[1])[0]
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
    pair = Pair(tmp_path, form)
    pair.put(0, each.format(0), packed())
    for name in ends:
        pair.put(0, name, b"{}" if form == "huggingface" else b"global_step10")
    assert pair.look(0, 1, 0) == [], "rank 1 has not begun"
    pair.put(1, each.format(1), packed()[:-1])
    assert pair.look(1, 0) == [], "nor has it ended"
    pair.put(1, each.format(1), packed())
    assert pair.look(1, 0) == [10]


def test_deepspeeds_tracker_that_comes_before_other_ranks_states_ends_no_checkpoint(tmp_path: Path) -> None:
    """Rank 0 writes `latest` before the barrier, on a shared folder too."""
    from trainer.supervisor.formats import FORMATS

    root = tmp_path / "global_step10"
    root.mkdir()
    (root / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(packed())
    (tmp_path / "latest").write_text("global_step10")
    assert list(FORMATS["deepspeed"](tmp_path, 2)) == []
    (root / "zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(packed())
    assert [one.step for one in FORMATS["deepspeed"](tmp_path, 2)] == [10]


@pytest.mark.parametrize("form", ["megatron", "deepspeed"])
def test_each_node_gets_the_tracker_file_that_names_what_it_was_given(form: str, tmp_path: Path) -> None:
    pair, root = Pair(tmp_path, form), "iter_0000010" if form == "megatron" else "global_step10"
    pair.put(0, f"{root}/a"), pair.put(1, f"{root}/b")
    tracker = "latest_checkpointed_iteration.txt" if form == "megatron" else "latest"
    pair.put(0, tracker, b"10" if form == "megatron" else root.encode())
    assert pair.look(0, 1, 0) == [10]
    again = Pair(tmp_path, form, attempt=2)
    again.put(1, root.replace("10", "20") + "/b")
    assert again.resume() == [root, root]
    for node in again.nodes:
        assert sorted(path.name for path in (node.folder / root).iterdir()) == ["a", "b"]
        assert (node.folder / tracker).read_text() == ("10" if form == "megatron" else root)
        assert not (node.folder / root.replace("10", "20")).exists(), "what was never sealed is not taken up"


def test_a_full_shared_tier_puts_a_step_off_and_ends_no_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)
    pair.put(0, "step-10/.metadata")
    with monkeypatch.context() as full:
        full.setattr(seal, "publish", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert pair.look(0) == [] and "No space left on device" in why(pair.nodes[0])[0]
    pair.nodes[0].put_off.clear()
    assert pair.look(0, 1, 0) == [10]


def test_a_node_that_died_before_it_heard_of_the_commit_reads_its_own_files(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.put(0, "step-10/.metadata"), pair.put(1, "step-10/__1_0.distcp", b"12345")
    assert pair.look(0, 1, 0) == [10] and seal.committed(pair.nodes[1].disk) == []
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-10", "step-10"]
    brought = [one["bytes_brought"] for node in again.nodes for one in told(node, "made_whole")]
    trees = [seal.digest_of(next(pair.tier.rglob(f"tree-000{node}.json")))[0] for node in (1, 0)]
    assert brought == [5 + trees[0], 1 + trees[1]], "each the other's file, and what it says of it"


def test_a_stop_ends_the_wait_for_nodes_that_do_not_come(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.put(0, "step-10/.metadata")
    pair.look(0, 1, 0)
    alone = Pair(tmp_path, attempt=2).nodes[0]
    assert isinstance(alone.job, Told)
    alone.job.stopping = "SIGTERM"
    assert alone.resume() == ""


def test_a_relaunch_may_change_the_tier_and_the_job_goes_on_in_the_other_folder(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.put(0, "step-10/__0_0.distcp", b"zero"), pair.put(1, "step-10/__1_0.distcp", b"one")
    pair.put(0, "step-10/.metadata")
    assert pair.look(0, 1, 0) == [10]
    disks = pair.nodes[0]
    own, place = tmp_path / "shared/tiny/own", disks.place._replace(attempt=2, node_count=1)
    config = {**disks.config, "checkpoints": {"format": "dcp", "folder": str(own), "keep": 9}}
    shared = make_sealing(config, place, pair.tier, tmp_path / "node-0", Shared(), 1)
    assert shared.resume() == str(own / "step-10")
    assert sorted(path.name for path in (own / "step-10").iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    (own / "step-20").mkdir()
    (own / "step-20/.metadata").write_bytes(b"x")
    shared.look()
    assert shared.committed == 20
    assert Pair(tmp_path, attempt=3).resume() == ["step-20", "step-20"]


class Shared(Told):
    def wait_for(self, path: Path, seconds: float) -> None:
        assert path.exists()


def trained(root: Path, *steps: int) -> Pair:
    """Two nodes that have sealed steps, of which each wrote a file."""
    pair = Pair(root)
    for step in steps:
        pair.put(0, f"step-{step}/__0_0.distcp", b"zero of %d" % step)
        pair.put(1, f"step-{step}/__1_0.distcp", b"one of %d" % step)
        pair.put(0, f"step-{step}/.metadata", b"of %d" % step)
        assert pair.look(0, 1, 0, 1)[0] == step
    return pair


def wholes(pair: Pair, step: int) -> set[str]:
    """What stands in both nodes' folders of a step."""
    contents = set()
    for node in pair.nodes:
        contents |= {path.read_text() for path in (node.folder / f"step-{step}").iterdir()}
        assert len(list((node.folder / f"step-{step}").iterdir())) == 3
    return contents


def test_a_shared_tier_that_has_lost_all_is_filled_again_from_the_nodes_disks(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shutil.rmtree(pair.tier)
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-20", "step-20"] and wholes(again, 20) == {"zero of 20", "one of 20", "of 20"}
    assert seal.fault(again.tier, 20, "tiny", "one") == "" and told(again.nodes[0], "recalled")[0]["step"] == 20


def test_a_step_whose_part_died_with_a_node_stays_on_the_other_disk_until_the_job_is_beyond(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shutil.rmtree(pair.tier / "step-00000020")
    shutil.rmtree(pair.nodes[1].disk)
    again = Pair(tmp_path, attempt=2, keep=1)
    assert again.resume() == ["step-10", "step-10"] and not told(again.nodes[0], "recalled")
    assert seal.committed(again.nodes[0].disk) == [20, 10], "it may be all that is left of step 20"
    again.put(0, "step-15/.metadata"), again.put(1, "step-15/__1_0.distcp")
    again.look(0, 1, 0, 1, 0)
    assert seal.committed(again.tier) == [15] and seal.committed(again.nodes[0].disk) == [20, 15]
    again.put(0, "step-30/.metadata"), again.put(1, "step-30/__1_0.distcp")
    again.look(0, 1, 0, 1, 0)
    assert [seal.committed(node.disk) for node in again.nodes] == [[30], [30]]


def test_a_file_that_is_damaged_on_the_shared_tier_comes_again_from_a_node_that_has_it(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10)
    shard = next(pair.tier.glob("step-00000010/*/*__0_0.distcp"))
    shard.write_bytes(b"?" * shard.stat().st_size)
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-10", "step-10"] and not told(again.nodes[0], "refused_step")
    assert seal.fault(again.tier, 10, "tiny", "one") == "" and wholes(again, 10) == {"zero of 10", "one of 10", "of 10"}


def test_an_older_manifest_on_a_disk_brings_nothing_back_that_the_tier_has_newer(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20, 30)
    shutil.rmtree(pair.tier / "step-00000020")
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-30", "step-30"] and not told(again.nodes[0], "recalled")
    assert seal.committed(again.tier) == [30, 10]


def test_where_the_newest_lost_step_is_whole_nowhere_the_one_before_it_comes_back(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20, 30)
    for step in (20, 30):
        shutil.rmtree(pair.tier / f"step-000000{step}")
    shutil.rmtree(pair.nodes[1].disk / "step-00000030")
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-20", "step-20"] and [one["step"] for one in told(again.nodes[0], "recalled")] == [
        20
    ]
    assert seal.committed(again.tier) == [20, 10]


def test_of_two_manifests_of_a_lost_step_the_newer_attempts_comes_back(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    pair = Pair(tmp_path, attempt=2)
    pair.resume()
    for rank in (0, 1):
        shutil.rmtree(pair.nodes[rank].folder / "step-10")
        pair.put(rank, f"step-10/__{rank}_0.distcp", b"again, of %d" % rank)
    pair.put(0, "step-10/.metadata", b"again")
    pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
    assert pair.look(0, 1, 0) == [10]
    pair.look(0)  # node 1 dies before it hears of the commit: its disk has both attempts' files, and the old manifest
    assert seal.attempt_of(seal.content(pair.tier / "step-00000010/manifest.json")) == 2
    shutil.rmtree(pair.tier)
    again = Pair(tmp_path, attempt=3)
    assert again.resume() == ["step-10", "step-10"]
    assert seal.attempt_of(seal.content(again.tier / "step-00000010/manifest.json")) == 2


def test_a_step_that_is_whole_nowhere_is_refused_with_what_each_node_says_of_it(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shard = next(pair.tier.glob("step-00000020/*/*__1_0.distcp"))
    shard.write_bytes(b"?" * shard.stat().st_size)
    shutil.rmtree(pair.nodes[1].disk / "step-00000020")
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-10", "step-10"]
    (refused,) = told(again.nodes[0], "refused_step")
    each = [why.partition(": ")[0] for why in refused["why"].split("; ")]
    assert refused["step"] == 20 and each == ["node 0", "node 1"] and "__1_0.distcp: 9 bytes" in refused["why"]


def test_a_step_that_is_told_again_is_sealed_again_by_all_nodes(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10)
    for text in (b"again", b"and again"):
        pair.put(0, "step-10/__0_0.distcp", text)
        pair.put(1, "step-10/__1_0.distcp", text + b", one")
        pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
        assert pair.look(0, 1, 0, 1, 0) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""
        pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
        pair.look(0, 1, 0, 1)
    assert [one["step"] for one in told(pair.nodes[0], "committed")] == [10, 10, 10]
    assert len(list(pair.tier.glob("step-00000010/*/*"))) == 5, "nothing of the earlier ones is left"
    assert [len(list(node.disk.glob("step-00000010/*/*"))) for node in pair.nodes] == [3, 2]
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-10", "step-10"]
    assert wholes(again, 10) == {"and again", "and again, one", "of 10"}


@pytest.mark.parametrize("both", [False, True])
def test_a_node_that_writes_into_what_was_laid_back_meets_no_older_file_of_another(both: bool, tmp_path: Path) -> None:
    trained(tmp_path, 10)
    pair = Pair(tmp_path, attempt=2)
    assert pair.resume() == ["step-10", "step-10"]
    for rank in (0, 1)[not both :]:
        pair.put(rank, f"step-10/__{rank}_0.distcp", b"again, of %d" % rank)
    pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
    assert pair.look(0, 1, 0, 1) == [10] and not why(pair.nodes[0]) and seal.fault(pair.tier, 10, "tiny", "one") == ""
    assert [one["step"] for one in told(pair.nodes[0], "committed")] == [10]
    again = Pair(tmp_path, attempt=3)
    assert again.resume() == ["step-10", "step-10"]
    assert wholes(again, 10) == {"again, of 0" if both else "zero of 10", "again, of 1", "of 10"}


def test_a_part_of_a_folder_is_sealed_on_each_node(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "client")
    for rank in (0, 1):
        pair.put(rank, f"run/rank-{rank}_10.pt", b"of %d" % rank), pair.put(rank, "run/log.txt", b"log of %d" % rank)
    pair.put(0, "run/common_10.pt", b"c"), pair.put(1, "run/common_10.pt", b"c")
    run = pair.nodes[0].folder / "run"
    pair.nodes[0].tell(Finished(10, run, (run / "common_10.pt", run / "rank-0_10.pt")))
    assert pair.look(0, 1, 0, 1) == [10]
    again = Pair(tmp_path, "client", attempt=2)
    assert again.resume() == ["run", "run"]
    names = [sorted(path.name for path in (node.folder / "run").iterdir()) for node in again.nodes]
    assert names[0] == ["common_10.pt", "log.txt", "rank-0_10.pt"]


def test_a_manifest_that_is_spoilt_on_the_disks_brings_nothing_back_and_stops_nobody(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shutil.rmtree(pair.tier / "step-00000020")
    for node in pair.nodes:
        (node.disk / "step-00000020/manifest.json").write_text('{"seal": 1}')
    again = Pair(tmp_path, attempt=2)
    assert again.resume() == ["step-10", "step-10"] and not told(again.nodes[0], "recalled")
