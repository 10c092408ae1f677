"""A checkpoint's tree holds any name, leads nowhere else, and is read from the older form of shards as well."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.tree import (
    Tree,
    TreeFile,
    lay_out,
    merge,
    own_name,
    parse_tree,
    path_of,
    sealing_of,
    shard_name,
    text_of,
    tree_name,
    tree_of,
)

NAMES = st.binary(min_size=1, max_size=255).filter(lambda raw: not set(raw) & {0, 47} and raw not in (b".", b".."))


@given(NAMES, NAMES)
def test_names_of_any_bytes_come_back_as_they_were(folder: bytes, name: bytes) -> None:
    path = text_of(os.fsdecode(folder + b"/" + name))
    tree = Tree("step-1", "folder", {path: TreeFile(shard_name(path), 0o600)}, {}, [path.rpartition("/")[0]])
    content = tree.serialize()
    assert content.isascii() and parse_tree(content) == tree
    assert os.fsencode(path_of(path)) == folder + b"/" + name


@given(NAMES)
def test_a_shard_has_a_name_that_every_store_takes(name: bytes) -> None:
    shard = shard_name(text_of(os.fsdecode(name)))
    assert shard.isascii() and shard.isprintable() and len(shard) <= 97
    assert not set(shard) & set("/ \\'\"*?<>|%#") and not shard.startswith(".")


def test_equal_paths_have_equal_shards_and_others_have_others() -> None:
    names = {shard_name("step-1/a"), shard_name("step-2/a"), shard_name("step-1/b/a"), shard_name("step-1/a", 1)}
    assert len(names) == 4 and shard_name("step-1/a") == shard_name("step-1/a")


def test_a_trees_name_tells_which_sealing_it_is_of() -> None:
    assert [sealing_of(f"attempt-0001/{tree_name(3, sealing)}") for sealing in (0, 1, 2, 20)] == [0, 1, 2, 20]
    assert sealing_of("attempt-0001/tree-1.json") is None and sealing_of(shard_name("tree-0001.json")) is None


def body(**changes: Any) -> bytes:
    plain = {"format": 1, "root": "step-1", "kind": "folder", "files": {}, "links": {}, "folders": []}
    return json.dumps(plain | changes).encode()


FILE = {"shard": "0-a", "mode": 384}


@pytest.mark.parametrize(
    "content",
    [
        body(files={"../a": FILE}),
        body(files={"/etc/passwd": FILE}),
        body(files={"a/../../b": FILE}),
        body(files={"a//b": FILE}),
        body(files={"a\0": FILE}),
        body(files={"": FILE}),
        body(files={"a": {"shard": "../a", "mode": 384}}),
        body(files={"a": {"shard": ".a", "mode": 384}}),
        body(files={"a": {"shard": "b", "mode": -1}}),
        body(files={"a": {"shard": "b", "mode": 0o10000}}),
        body(root="../other"),
        body(root="/etc"),
        body(root=""),
        body(kind="socket"),
        body(kind="file"),
        body(kind="file", files={"": FILE}, folders=["b"]),
        body(links={"a": "../b"}),
        body(links={"a": "/etc/passwd"}),
        body(links={"a/b": "../../c"}),
        body(links={"a": "b/../../c"}),
        body(links={"d": "x", "l": "d/.."}),
        body(folders=[".."]),
        body(files={"a": FILE, "a/b": FILE}),
        body(files={"a/b": FILE}, links={"a": "c"}),
        body(files={"a": FILE}, links={"a": "c"}),
        body(files={"a": FILE, "b": {"shard": "../a", "mode": 384}}),
        body(files={"a": FILE, "../b": FILE}),
        body(links={"a": "b", "c": "../d"}),
        body(folders=["a", ".."]),
        body(through=["a"]),
        body(format=2),
        b"[]",
        b"{",
        b'{"format": 1}',
    ],
)  # fmt: skip
def test_a_tree_that_leads_out_or_fits_together_with_nothing_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_tree(content)


@pytest.mark.parametrize("target", ["b", "c/d", "../b", "..", ".", "../x/y"])
def test_a_link_that_stays_inside_is_taken(target: str) -> None:
    assert parse_tree(body(links={"deep/a": target})).links == {"deep/a": target}


@pytest.mark.parametrize("mode", [0, 0o600, 0o7777])
def test_any_permission_bits_are_taken(mode: int) -> None:
    assert parse_tree(body(files={"a": {"shard": "b", "mode": mode}})).files["a"].mode == mode


def test_a_name_for_people_is_told_where_any_tree_can_be_read_and_never_guessed() -> None:
    contents = {"attempt-0001/tree-0001.json": Tree("runs/a\x1b", "folder", {}).serialize()}

    def read(name: str) -> bytes:
        if name not in contents:
            raise FileNotFoundError(name)
        return contents[name]

    both = ["attempt-0001/tree-0000.json", "attempt-0001/tree-0001.json", "attempt-0001/0-a"]
    assert own_name(both, read) == "runs/a\\x1b"
    contents["attempt-0001/tree-0000.json"] = b"{"
    assert own_name(both, read) == "runs/a\\x1b"
    contents.clear()
    assert own_name(both[:1], read) == "" == own_name(["attempt-0001/..%2Fa"], read)
    assert own_name(["attempt-0001/step-1%2F%2Fa"], read) == "step-1"
    assert own_name(["attempt-0001/mp_rank_00.pt", "attempt-0001/zero_pp.pt"], read) == ""


def test_the_older_form_is_read_and_the_built_in_trainers_is_not_taken_for_a_jobs() -> None:
    def read(name: str) -> bytes:
        raise AssertionError(f"{name} is read")

    folder = tree_of(["attempt-0001/runs%2Fstep-20%2F%2F.metadata", "attempt-0001/runs%2Fstep-20%2F%2Fa%2Fb"], read)
    assert folder is not None and (folder.root, folder.kind, folder.name) == ("runs/step-20", "folder", "step-20")
    assert {path: file.shard for path, file in folder.files.items()} == {
        ".metadata": "runs%2Fstep-20%2F%2F.metadata", "a/b": "runs%2Fstep-20%2F%2Fa%2Fb",
    }  # fmt: skip
    single = tree_of(["attempt-0001/a%2Fckpt.pt"], read)
    assert single is not None and (single.root, single.kind, list(single.files)) == ("a/ckpt.pt", "file", [""])
    assert tree_of(["attempt-0001/mp_rank_00_model_states.pt", "attempt-0001/zero_pp_rank_0.pt"], read) is None
    for bad in ("..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "step-1%2F%2F..%2Fx"):
        with pytest.raises(ValueError):
            tree_of([f"attempt-0001/{bad}"], read)


def test_two_nodes_trees_are_one_and_different_ones_are_refused() -> None:
    one = Tree("s", "folder", {"a": TreeFile("1-a", 0o600)}, {"l": "a"}, ["x"])
    two = Tree("s", "folder", {"a": TreeFile("1-a", 0o600), "b": TreeFile("2-b", 0o644)}, {}, ["x", "y"])
    both = merge([one, two])
    assert set(both.files) == {"a", "b"} and both.links == {"l": "a"} and both.folders == ["x", "y"]
    for other in (
        one._replace(root="t"),
        one._replace(files={"a": TreeFile("9-a", 0o600)}),
        one._replace(links={"l": "x"}),
        one._replace(files={"l": TreeFile("1-l", 0o600)}, links={}),
    ):
        with pytest.raises(ValueError):
            merge([one, other])


def test_the_links_to_taken_content_are_kept_and_no_older_reader_needs_them() -> None:
    tree = Tree("s", "folder", {"a": TreeFile("1-a", 0o600)}, {}, [], False, {"a": "../\udcff"})
    assert parse_tree(tree.serialize()) == tree and b"through" not in tree._replace(through={}).serialize()
    other = Tree("s", "folder", {"b": TreeFile("2-b", 0o600)}, {}, [], True, {"b": "/x"})
    both = merge([tree, other])
    assert both.through == {"a": "../\udcff", "b": "/x"} and both.part
    assert parse_tree(both.serialize()) == both


def test_a_tree_whose_shard_is_gone_is_refused() -> None:
    tree = Tree("s", "folder", {"a": TreeFile("1-a", 0o600)})
    with pytest.raises(ValueError, match="1-a"):
        tree_of(["attempt-0001/tree-0000.json"], lambda name: tree.serialize())


def test_a_tree_is_laid_out_with_links_modes_and_empty_folders(tmp_path: Path) -> None:
    files = {"a/b": TreeFile("1", 0o600), "c": TreeFile("2", 0o755)}
    tree = Tree("s", "folder", files, {"l": "a/b", "up/m": "../a"}, ["empty/deep", "up"])

    def place(placed: Sequence[tuple[TreeFile, Path]]) -> None:
        for file, path in placed:
            path.write_text(file.shard)

    for _ in range(2):  # a second time, as after a kill
        lay_out(tree, tmp_path / "out", place)
    out = tmp_path / "out"
    assert (out / "l").read_text() == "1" and (out / "l").readlink() == Path("a/b")
    assert (out / "up/m/b").read_text() == "1" and (out / "empty/deep").is_dir()
    assert [(out / name).stat().st_mode & 0o777 for name in ("a/b", "c")] == [0o600, 0o755]
