"""Files of each rank, whose names end in the rank: the number of the checkpoint stands before it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, half, saved
from tests.worlds.supervisor_tier import JobNode, put
from trainer.supervisor.formats import FORMATS, Finished, find, forget_later
from trainer.supervisor.formats.names import family, number_in_family, number_of

ENDS = ["_{}.pt", "-00{}.pth", "_{}.pth.tar", "_000{}.pt", "_{}"]


def path(folder: Path, step: int, rank: int, end: str = ENDS[0]) -> Path:
    return folder / f"ckpt_{step}{end.format(rank)}"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_own_disk", [True, False])
def test_a_rank_finds_no_later_file_of_its_own(end: str, is_own_disk: bool, tmp_path: Path) -> None:
    """On a node's own disk the other ranks' files of a step that is not restored are missing."""
    ranks = (1,) if is_own_disk else (0, 1)
    left = [saved(path(tmp_path, step, rank, end)) for rank in ranks for step in (20, 30)]
    for rank in ranks:
        saved(path(tmp_path, 40, rank, end)), half(saved(path(tmp_path, 50, rank, end)))
        put(path(tmp_path, 60, rank, f"{end}.tmp"))
    restored = tuple(saved(path(tmp_path, 30, rank, end)) for rank in (0, 1))
    forget_later("auto", tmp_path, Finished(30, tmp_path, restored))
    assert sorted(tmp_path.iterdir()) == sorted({*left, *restored})


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [40, 50])
def test_links_and_pointers_of_each_rank_name_its_own_restored_file(
    end: str, rank: int, step: int, tmp_path: Path
) -> None:
    """Step 40 is removed; step 50 never came, or is on another disk."""
    for each in (0, 1):
        saved(path(tmp_path, 40, each, end))
    restored = tuple(saved(path(tmp_path, 30, each, end)) for each in (0, 1))
    link, pointer = tmp_path / "newest", tmp_path / "latest.txt"
    link.symlink_to(path(tmp_path, step, rank, end).name)
    put(pointer, f"runs/{link.readlink()}")
    forget_later("auto", tmp_path, Finished(30, tmp_path, restored))
    assert link.readlink() == Path(restored[rank].name)
    assert pointer.read_text() == f"runs/{restored[rank].name}"


@pytest.mark.parametrize("form", ["ep{}-ba{}-rank{}.pt", "epoch{}_step{}_{}.pt", "step{1}-epoch{0}-gpu{2}.pt"])
def test_each_ranks_link_and_pointer_name_its_own_file_of_an_earlier_epoch(form: str, tmp_path: Path) -> None:
    """Composer's `latest-rank1.pt`: epochs differ as steps do."""
    restored = tuple(saved(tmp_path / form.format(1, 30, rank)) for rank in (0, 1))
    others = tuple(saved(tmp_path / f"optim-{file.name}") for file in restored)
    for rank in (0, 1):
        gone = saved(tmp_path / form.format(2, 40, rank)).name
        (tmp_path / f"newest-{rank}").symlink_to(gone)
        put(tmp_path / f"latest-{rank}.txt", gone)
    forget_later("auto", tmp_path, Finished(30, tmp_path, (*others, *restored)))
    for rank in (0, 1):
        assert (tmp_path / f"newest-{rank}").readlink() == Path(restored[rank].name)
        assert (tmp_path / f"latest-{rank}.txt").read_text() == restored[rank].name


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
@pytest.mark.parametrize(("text", "result"), [("40", "30"), ("50", "30"), ("0040", "0030"), ("1", "1")])
def test_a_pointer_with_a_number_is_of_the_step_and_of_no_rank(
    ranks: tuple[int, ...], text: str, result: str, tmp_path: Path
) -> None:
    for rank in ranks:
        saved(path(tmp_path, 40, rank)), saved(path(tmp_path, 50, rank))
    put(tmp_path / "latest.txt", text)
    restored = tuple(saved(path(tmp_path, 30, rank)) for rank in (0, 1))
    forget_later("auto", tmp_path, Finished(30, tmp_path, restored))
    assert (tmp_path / "latest.txt").read_text() == result


def test_a_pointer_to_a_rank_stays_when_a_job_starts_from_nothing(tmp_path: Path) -> None:
    for step in (40, 50):
        saved(path(tmp_path, step, 0)), saved(path(tmp_path, step, 1))
    put(tmp_path / "latest_rank.txt", "1"), put(tmp_path / "latest_step.txt", "40"), put(tmp_path / "newest", "50")
    forget_later("auto", tmp_path, None)
    assert [left.name for left in tmp_path.iterdir()] == ["latest_rank.txt"]


def test_what_a_rank_has_begun_to_write_goes_when_a_job_starts_from_nothing(tmp_path: Path) -> None:
    saved(path(tmp_path, 40, 0)), saved(path(tmp_path, 40, 1)), put(path(tmp_path, 50, 1, "_{}.pt.tmp"))
    forget_later("auto", tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_file_of_another_rank_goes_though_its_number_is_smaller(tmp_path: Path) -> None:
    restored = tuple(saved(path(tmp_path, 30, rank)) for rank in (0, 1))
    older = saved(path(tmp_path, 10, 1))
    torn, sealed_at = half(saved(path(tmp_path, 20, 1))), time.time() - 1.0
    os.utime(older, (sealed_at - 60,) * 2)
    forget_later("auto", tmp_path, Finished(30, tmp_path, restored), sealed_at)
    assert sorted(tmp_path.iterdir()) == sorted((*restored, older)) and not torn.exists()


def test_a_number_at_the_end_is_a_rank_only_beside_the_first_ranks_file(tmp_path: Path) -> None:
    """`model_1_20.pt` is of epoch 1 and step 20."""
    pattern = family("model_1_20.pt", {"model_1_20.pt"})
    assert pattern is not None and number_in_family(pattern, "model_1_30.pt") == 30
    pattern = family("model_1_20.pt", {"model_1_00.pt", "model_1_20.pt"})
    assert pattern is not None and number_in_family(pattern, "model_2_20.pt") == 2
    for name in ("model_0_20.pt", "model_1_10.pt", "model_1_30.pt.tmp"):
        put(tmp_path / name)
    restored = saved(tmp_path / "model_1_20.pt")
    forget_later("auto", tmp_path, Finished(20, restored))
    assert sorted(left.name for left in tmp_path.iterdir()) == ["model_0_20.pt", "model_1_10.pt", "model_1_20.pt"]


@pytest.mark.parametrize(("ranks", "sealed"), [(1, [(1, "ckpt_30_1.pt"), (30, "ckpt_30_0.pt")]), (2, [(30, ".")])])
def test_the_last_of_two_numbers_is_a_rank_only_if_there_are_so_many(
    ranks: int, sealed: list[tuple[int, str]], job: WatchedJob
) -> None:
    for rank in (0, 1):
        saved(path(job.folder, 30, rank))
    assert job.look(ranks) == sealed


@pytest.mark.parametrize(
    "name",
    [
        "ckpt_30_gpu{}.pt",
        "ckpt_30-tp_{}.pt",
        "ckpt_30_mp{}.pt",
        "ckpt_30_node{}.pt",
        "ckpt_30.worker{}.pt",
        "ckpt_30_p{}.pt",
        "ckpt_s30_r{}.pt",
        "ckpt_30_{}_of_2.pt",
        "ckpt-30-rank{}of2.pt",
        "step=30-rank={}.ckpt",
        "ckpt_30_rank{}.ckpt",
    ],
)
def test_files_with_other_words_for_a_rank_are_one_checkpoint(name: str, job: WatchedJob) -> None:
    for rank in (1, 2):
        saved(job.folder / name.format(rank))
    assert job.look(ranks=2) == [(30, ".")]


@pytest.mark.parametrize(("name", "number"), [("net_dp0.5_30.pt", 30), ("a100_gpus8_30.pt", 30), ("ckpt_stp7.pt", 7)])
def test_a_figure_and_another_word_are_no_rank(name: str, number: int) -> None:
    read_number = number_of(name)
    assert read_number is not None and read_number.value == number


def test_an_older_file_of_a_rank_beside_the_restored_one_is_accounted_for(tmp_path: Path) -> None:
    """Node 1's disk has its own rank's files of older steps."""
    node = JobNode(tmp_path)
    tops = [saved(path(node.own, 30, rank)) for rank in (0, 1)]
    tops += [put(node.own / f"meta_30_{rank}.json", "{}") for rank in (0, 1)]
    (checkpoint,) = FORMATS["auto"](node.own, 2, 20)
    assert sorted(checkpoint.tops) == sorted(tops)
    for name in ("ckpt_20_1.pt", "meta_20_1.json"):
        os.utime(saved(node.own / name), (time.time() - 60,) * 2)
    node.job.sealing.recogniser.note_restored(checkpoint)
    node.job.sealing.committed = 30
    assert node.end().entries == ()


@pytest.mark.parametrize("name", ["ckpt_{}_{}.pt", "epoch1_step{}_{}.pt", "ckpt_{}_rank{}.pt"])
def test_another_nodes_files_of_a_step_are_none_of_an_older_step_whose_rank_is_the_same(
    name: str, tmp_path: Path
) -> None:
    parts = [tmp_path / name.format(40, rank) for rank in (0, 1)]
    others = [tmp_path / name.format(step, rank) for step in (30, 40) for rank in (1, 2, 3)]
    assert find.of_step(others, parts, 40) == others[3:]
