"""What lies in a checkpoint's files is read, never executed, and whatever it is ends no look."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.checkpoint_files import WatchedJob, saved
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
