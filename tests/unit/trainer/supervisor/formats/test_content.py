"""What lies in a checkpoint's files is read, never executed, and whatever it is ends no look."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.checkpoint_files import WatchedJob, saved
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import FORMATS
from trainer.supervisor.formats import content as contents


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch exploded",)


def test_a_pickle_is_read_and_not_executed(job: WatchedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.folder.mkdir()
    monkeypatch.chdir(job.folder)
    saved(job.folder / "ckpt.pt", bomb=Bomb(), step=4)
    assert job.look() == [(4, "ckpt.pt")] and not (job.folder / "exploded").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200),
    name=st.sampled_from(["ckpt.pt", "m.safetensors", "last.ckpt", "checkpoint-3/trainer_state.json"]),
)
def test_no_content_of_a_file_ends_a_look(content: bytes, name: str, tmp_path: Path) -> None:
    for start in (b"", b"PK\x03\x04", b"\x80\x02", struct.pack("<Q", len(content)), b'{"global_step":'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(start + content)
        WatchedJob(tmp_path).look()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(
        st.sampled_from(["step", "epoch", "iter_num", "model", "config"]),
        st.recursive(
            st.one_of(st.integers(0, 10**6), st.booleans(), st.text(max_size=5), st.floats(), st.none()),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["step", "a"]), inner), st.tuples(inner)
            ),
            max_leaves=8,
        ),
    ),
    protocol=st.integers(2, 5),
)  # fmt: skip
def test_the_step_of_a_pickle_is_that_of_its_top_level(
    values: dict[str, object], protocol: int, tmp_path: Path
) -> None:
    path = tmp_path / f"{random.random()}.pkl"
    path.write_bytes(pickle.dumps(values, protocol=protocol))
    values_read = pickle.loads(path.read_bytes())
    steps = [values_read[key] for key in ("step", "iter_num") if type(values_read.get(key)) is int]
    assert contents.step_in(path) == (steps[0] if steps else None)


class Keywords(dict[str, int]):
    """What it is made of has an opcode of its own, which is not followed."""

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"step": 1}


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_objects_that_are_not_followed_hide_no_step(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pkl"
    values = {"one": Keywords(step=3), "two": [Bomb(), {"step": 4}], "global_step": 7, "step": 9}
    path.write_bytes(pickle.dumps(values, protocol=protocol))
    assert contents.step_in(path) == (7 if protocol >= 2 else None), "before 2 a pickle looks like any text"


@pytest.mark.parametrize("value", ["global_step", ["step", 7], 30, None, ("iteration", 3)])
def test_a_pickle_of_no_dictionary_names_no_step(value: object, tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pkl"
    path.write_bytes(pickle.dumps(value))
    assert contents.step_in(path) is None and not contents.counts_epochs(path, 30)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ({"step": 0}, 0),
        ({"step": -1}, None),
        ({"step": 10**12 - 1}, 10**12 - 1),
        ({"step": 10**12}, None),
        ({"step": 10**12, "iter": 5}, 5),
        ({"step": True, "iter": 5}, 5),
        ({"step": 5.0}, None),
        ({"num_steps": 1, "iter_num": 2, "global_step": 3}, 3),
        ({"epoch": 4}, None),
    ],
)
def test_a_step_is_a_count_of_a_training(values: dict[str, object], step: int | None, tmp_path: Path) -> None:
    path = saved(tmp_path / "ckpt.pt", **values)
    assert contents.step_in(path) == step
    assert contents.counts_epochs(path, 30) == (step is None and "epoch" in values)


def test_a_number_in_a_name_that_the_content_calls_steps_is_none_of_epochs(tmp_path: Path) -> None:
    path = saved(tmp_path / "do_00000030", steps=30, epoch=4)
    assert not contents.counts_epochs(path, 30) and contents.counts_epochs(path, 4)


def test_a_file_that_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[Path]()
    read = contents._values
    monkeypatch.setattr(contents, "_values", lambda path: (reads.append(path), read(path))[1])
    path = saved(tmp_path / "ckpt.pt", step=30)
    assert [contents.step_in(path) for _ in range(3)] == [30] * 3 and len(reads) == 1
    saved(path, step=40)
    os.utime(path, (5.0, 5.0))
    assert [contents.step_in(path) for _ in range(3)] == [40] * 3 and len(reads) == 2


@pytest.mark.parametrize(
    ("name", "content", "state"),
    [
        ("ckpt.bin", b"", contents.PARTIAL),
        ("ckpt.bin", b"x", contents.UNCLEAR),
        ("ckpt.pt", b"PK\x03\x04 cut", contents.PARTIAL),
        ("m.safetensors", struct.pack("<Q", 2) + b"{}", contents.WHOLE),
        ("m.safetensors", struct.pack("<Q", 2) + b"{}x", contents.PARTIAL),
        ("m.safetensors", struct.pack("<Q", 2) + b"{", contents.PARTIAL),
        ("m.safetensors", b"\x02", contents.PARTIAL),
    ],
)
def test_a_file_shows_whether_it_is_whole(name: str, content: bytes, state: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert contents.state(tmp_path / name) == state
    assert contents.state(tmp_path / "gone" / name) == contents.PARTIAL
    assert contents.state(saved(tmp_path / "whole.pt")) == contents.WHOLE


def test_of_a_json_file_whole_numbers_and_an_index_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"step": 3, "loss": 0.5, "flag": true, "weight_map": {"w": "a.bin"}, "words": "x"}')
    assert contents.json_of(path) == {"step": 3, "weight_map": {"w": "a.bin"}}
    for text in ("{", "[1]", "3"):
        (tmp_path / "b.json").write_text(text + " " * len(text))
        assert contents.json_of(tmp_path / "b.json") is None


def test_metadata_of_dcp_that_an_old_torch_still_writes_are_no_end(tmp_path: Path) -> None:
    whole = pickle.dumps({"state_dict_metadata": {}}, protocol=2)
    put(tmp_path / "step-10/__0_0.distcp")
    for content, count in ((whole[:-1], 0), (whole, 1)):
        (tmp_path / "step-10/.metadata").write_bytes(content)
        assert len(list(FORMATS["dcp"](tmp_path, 1))) == count


def test_the_step_of_an_ordered_dictionary_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.pkl"
    path.write_bytes(pickle.dumps(OrderedDict(model=None, step=30), protocol=2))
    assert contents.step_in(path) == 30


def test_the_step_of_a_folder_may_be_in_its_notes(job: WatchedJob) -> None:
    job.at(7)
    saved(job.folder / "saved/model.pt"), saved(job.folder / "saved/optimizer.pt")
    (job.folder / "saved/progress.json").write_text('{"global_step": 30}')
    assert job.look() == [(30, "saved")]
