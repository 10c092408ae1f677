"""What two nodes' disks give back to a shared tier that has lost it, and what they write there again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.worlds.supervisor_tier import TwoNodes
from trainer.supervisor import seal
from trainer.supervisor.formats import Finished


def trained(root: Path, *steps: int) -> TwoNodes:
    """Two nodes that have sealed steps, of which each wrote a file."""
    pair = TwoNodes(root)
    for step in steps:
        pair.put(0, f"step-{step}/__0_0.distcp", b"zero of %d" % step)
        pair.put(1, f"step-{step}/__1_0.distcp", b"one of %d" % step)
        pair.put(0, f"step-{step}/.metadata", b"of %d" % step)
        assert pair.look(0, 1, 0, 1)[0] == step
    return pair


def wholes(pair: TwoNodes, step: int) -> set[str]:
    """What stands in both nodes' folders of a step."""
    contents = set()
    for node in pair.nodes:
        contents |= {path.read_text() for path in (node.folder / f"step-{step}").iterdir()}
        assert len(list((node.folder / f"step-{step}").iterdir())) == 3
    return contents


def test_a_shared_tier_that_has_lost_all_is_filled_again_from_the_nodes_disks(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shutil.rmtree(pair.tier)
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-20", "step-20"] and wholes(relaunch, 20) == {"zero of 20", "one of 20", "of 20"}
    assert seal.fault(relaunch.tier, 20, "tiny", "one") == "" and relaunch.jobs[0].of("recalled")[0]["step"] == 20


def test_a_step_whose_part_died_with_a_node_stays_on_the_other_disk_until_a_later_one(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shutil.rmtree(pair.tier / "step-00000020")
    shutil.rmtree(pair.nodes[1].disk)
    relaunch = TwoNodes(tmp_path, attempt=2, keep=1)
    assert relaunch.resume() == ["step-10", "step-10"] and not relaunch.jobs[0].of("recalled")
    assert seal.committed(relaunch.nodes[0].disk) == [20, 10], "it may be all that is left of step 20"
    relaunch.put(0, "step-15/.metadata"), relaunch.put(1, "step-15/__1_0.distcp")
    relaunch.look(0, 1, 0, 1, 0)
    assert seal.committed(relaunch.tier) == [15] and seal.committed(relaunch.nodes[0].disk) == [20, 15]
    relaunch.put(0, "step-30/.metadata"), relaunch.put(1, "step-30/__1_0.distcp")
    relaunch.look(0, 1, 0, 1, 0)
    assert [seal.committed(node.disk) for node in relaunch.nodes] == [[30], [30]]


def test_a_file_that_is_damaged_on_the_shared_tier_comes_again_from_a_node_that_has_it(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10)
    shard = next(pair.tier.glob("step-00000010/*/*__0_0.distcp"))
    shard.write_bytes(b"?" * shard.stat().st_size)
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-10", "step-10"] and not relaunch.jobs[0].of("refused_step")
    assert seal.fault(relaunch.tier, 10, "tiny", "one") == "" and wholes(relaunch, 10) == {
        "zero of 10",
        "one of 10",
        "of 10",
    }


def test_an_older_manifest_on_a_disk_brings_nothing_back_that_the_tier_has_newer(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20, 30)
    shutil.rmtree(pair.tier / "step-00000020")
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-30", "step-30"] and not relaunch.jobs[0].of("recalled")
    assert seal.committed(relaunch.tier) == [30, 10]


def test_where_the_newest_lost_step_is_whole_nowhere_the_one_before_it_comes_back(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20, 30)
    for step in (20, 30):
        shutil.rmtree(pair.tier / f"step-000000{step}")
    shutil.rmtree(pair.nodes[1].disk / "step-00000030")
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-20", "step-20"] and relaunch.jobs[0].steps("recalled") == [20]
    assert seal.committed(relaunch.tier) == [20, 10]


def test_of_two_manifests_of_a_lost_step_the_newer_attempts_comes_back(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    pair = TwoNodes(tmp_path, attempt=2)
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
    relaunch = TwoNodes(tmp_path, attempt=3)
    assert relaunch.resume() == ["step-10", "step-10"]
    assert seal.attempt_of(seal.content(relaunch.tier / "step-00000010/manifest.json")) == 2


def test_a_step_that_is_whole_nowhere_is_refused_with_what_each_node_says_of_it(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shard = next(pair.tier.glob("step-00000020/*/*__1_0.distcp"))
    shard.write_bytes(b"?" * shard.stat().st_size)
    shutil.rmtree(pair.nodes[1].disk / "step-00000020")
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-10", "step-10"]
    (refused,) = relaunch.jobs[0].of("refused_step")
    each = [why.partition(": ")[0] for why in refused["why"].split("; ")]
    assert refused["step"] == 20 and each == ["node 0", "node 1"] and "__1_0.distcp: 9 bytes" in refused["why"]


def test_a_file_that_is_nowhere_any_more_refuses_its_step(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    next(pair.tier.glob("step-00000020/*/*__1_0.distcp")).unlink()
    shutil.rmtree(pair.nodes[1].disk / "step-00000020")
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-10", "step-10"]
    (refused,) = relaunch.jobs[0].of("refused_step")
    assert refused["step"] == 20 and refused["why"].count("__1_0.distcp is missing") == 2


def test_a_step_that_is_told_again_is_sealed_again_by_all_nodes(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10)
    for text in (b"again", b"and again"):
        pair.put(0, "step-10/__0_0.distcp", text)
        pair.put(1, "step-10/__1_0.distcp", text + b", one")
        pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
        assert pair.look(0, 1, 0, 1, 0) == [10] and seal.fault(pair.tier, 10, "tiny", "one") == ""
        pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
        pair.look(0, 1, 0, 1)
    assert pair.jobs[0].steps("committed") == [10, 10, 10]
    assert len(list(pair.tier.glob("step-00000010/*/*"))) == 5, "nothing of the earlier ones is left"
    assert [len(list(node.disk.glob("step-00000010/*/*"))) for node in pair.nodes] == [3, 2]
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-10", "step-10"]
    assert wholes(relaunch, 10) == {"and again", "and again, one", "of 10"}


@pytest.mark.parametrize("both", [False, True])
def test_a_node_that_writes_into_what_was_laid_back_meets_no_older_file_of_another(both: bool, tmp_path: Path) -> None:
    trained(tmp_path, 10)
    pair = TwoNodes(tmp_path, attempt=2)
    assert pair.resume() == ["step-10", "step-10"]
    for rank in (0, 1)[not both :]:
        pair.put(rank, f"step-10/__{rank}_0.distcp", b"again, of %d" % rank)
    pair.nodes[0].tell(Finished(10, pair.nodes[0].folder / "step-10"))
    assert pair.look(0, 1, 0, 1) == [10] and not pair.refusals(0) and seal.fault(pair.tier, 10, "tiny", "one") == ""
    assert pair.jobs[0].steps("committed") == [10]
    relaunch = TwoNodes(tmp_path, attempt=3)
    assert relaunch.resume() == ["step-10", "step-10"]
    assert wholes(relaunch, 10) == {"again, of 0" if both else "zero of 10", "again, of 1", "of 10"}


def test_a_part_of_a_folder_is_sealed_on_each_node(tmp_path: Path) -> None:
    pair = TwoNodes(tmp_path, "client")
    for rank in (0, 1):
        pair.put(rank, f"run/rank-{rank}_10.pt", b"of %d" % rank), pair.put(rank, "run/log.txt", b"log of %d" % rank)
    pair.put(0, "run/common_10.pt", b"c"), pair.put(1, "run/common_10.pt", b"c")
    run = pair.nodes[0].folder / "run"
    pair.nodes[0].tell(Finished(10, run, (run / "common_10.pt", run / "rank-0_10.pt")))
    assert pair.look(0, 1, 0, 1) == [10]
    relaunch = TwoNodes(tmp_path, "client", attempt=2)
    assert relaunch.resume() == ["run", "run"]
    names = [sorted(path.name for path in (node.folder / "run").iterdir()) for node in relaunch.nodes]
    assert names[0] == ["common_10.pt", "log.txt", "rank-0_10.pt"]


def test_a_manifest_that_is_spoilt_on_the_disks_brings_nothing_back_and_stops_nobody(tmp_path: Path) -> None:
    pair = trained(tmp_path, 10, 20)
    shutil.rmtree(pair.tier / "step-00000020")
    for node in pair.nodes:
        (node.disk / "step-00000020/manifest.json").write_text('{"seal": 1}')
    relaunch = TwoNodes(tmp_path, attempt=2)
    assert relaunch.resume() == ["step-10", "step-10"] and not relaunch.jobs[0].of("recalled")
