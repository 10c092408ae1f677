"""A folder is listed again once it has changed, though its clock may not have moved since the last look."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import Finished, tree
from trainer.supervisor.formats.tree import listing

AT_NS, TWO_SECONDS_NS = 1_800_000_000 * 10**9, 2 * 10**9
At = Callable[[int], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Set the machine's clock."""
    return lambda now_ns: monkeypatch.setattr(tree.time, "time_ns", lambda: now_ns)


def put_at(path: Path, changed_ns: int) -> None:
    """Write a file into a folder that last changed then."""
    put(path)
    os.utime(path.parent, ns=(changed_ns, changed_ns))


@pytest.mark.parametrize(("age_ns", "is_kept"), [(TWO_SECONDS_NS + 1, True), (TWO_SECONDS_NS, False), (1, False)])
def test_a_listing_is_kept_only_of_a_folder_that_had_rested_for_two_seconds(
    age_ns: int, is_kept: bool, tmp_path: Path, at: At
) -> None:
    at(AT_NS + age_ns)
    put_at(tmp_path / "own/a", AT_NS)
    assert listing(tmp_path / "own").files == {"a"}
    put_at(tmp_path / "own/b", AT_NS)  # within the same tick of the folder's clock
    assert listing(tmp_path / "own").files == ({"a"} if is_kept else {"a", "b"})
    put_at(tmp_path / "own/c", AT_NS + 1)
    assert listing(tmp_path / "own").files == {"a", "b", "c"}


def test_what_was_kept_of_a_folder_that_is_gone_says_nothing_of_its_successor(tmp_path: Path, at: At) -> None:
    at(AT_NS + 2 * TWO_SECONDS_NS)
    put_at(tmp_path / "own/a", AT_NS)
    assert listing(tmp_path / "own").files == {"a"}
    shutil.rmtree(tmp_path / "own")
    assert listing(tmp_path / "own") == tree.Listing(frozenset(), frozenset(), frozenset(), frozenset())
    put_at(tmp_path / "own/b", AT_NS)
    assert listing(tmp_path / "own").files == {"b"}


def test_what_was_kept_before_a_change_is_forgotten_with_it(tmp_path: Path, at: At) -> None:
    at(AT_NS + 2 * TWO_SECONDS_NS)
    put_at(tmp_path / "own/a", AT_NS)
    assert listing(tmp_path / "own").files == {"a"}
    put_at(tmp_path / "own/b", AT_NS + 2 * TWO_SECONDS_NS)  # just now
    assert listing(tmp_path / "own").files == {"a", "b"}
    put_at(tmp_path / "own/c", AT_NS)  # a clock that was set back
    assert listing(tmp_path / "own").files == {"a", "b", "c"}


def test_a_listing_tells_files_folders_links_and_what_is_none_of_them(tmp_path: Path) -> None:
    put(tmp_path / "file"), (tmp_path / "folder").mkdir(), os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-file").symlink_to("file"), (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("nothing")
    assert listing(tmp_path) == tree.Listing(
        frozenset({"file"}), frozenset({"folder"}), frozenset({"to-file", "to-folder", "dangling"}), frozenset({"pipe"})
    )
    assert listing(tmp_path / "file") == listing(tmp_path / "nothing") == listing(tmp_path / "folder")


def test_a_checkpoint_of_several_files_has_the_name_of_the_first() -> None:
    root, first, second = Path("own"), Path("own/model_30.pt"), Path("own/optim_30.pt")
    assert Finished(30, root).face == root
    assert Finished(30, root, (first,)).face == Finished(30, root, (first, second)).face == first


@pytest.mark.parametrize("name", [".bivouac-laid-back-0a1b", ".ckpt.pt.0123456789abcdef", ".latest.0123456789abcdef"])
def test_what_lay_back_leaves_is_ours(name: str) -> None:
    assert tree.is_ours(name)


@pytest.mark.parametrize(
    "name", ["bivouac-laid-back-0a1b", ".ckpt.pt.0123456789abcde", ".0123456789abcdef", ".ckpt.pt"]
)
def test_other_hidden_names_are_the_jobs(name: str) -> None:
    assert not tree.is_ours(name)
