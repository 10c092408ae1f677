"""What a checkpoint is at one look, beside the others of its series."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.worlds.checkpoint_files import WatchedJob, saved
from tests.worlds.supervisor_tier import put
from trainer.supervisor.formats import recognise
from trainer.supervisor.formats.tree import Finished
from trainer.supervisor.formats.versions import has_larger_kin, has_later_kin


@pytest.mark.parametrize("kind", ["files", "folders"])
def test_the_last_of_a_series_is_known_among_any_number(kind: str, tmp_path: Path) -> None:
    own = [tmp_path / f"net_{number}" for number in range(9)]
    for number, path in enumerate(own):
        file = path / "x" if kind == "folders" else path
        put(file), os.utime(file, (1000 + number,) * 2)
    (tmp_path / "other_99").write_text("x")
    assert [has_larger_kin(Finished(-1, path)) for path in own] == [True] * 8 + [False]
    assert [has_later_kin(Finished(-1, path)) for path in own] == [True] * 8 + [False]


def test_notes_that_are_written_once_do_not_keep_new_weights_from_being_all_new(
    job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(recognise.time, "monotonic", lambda: now[0])
    put(job.folder / "config.json", "{}"), saved(job.folder / "model.pt")
    job.at(10)
    assert job.look() == [(10, ".")]
    job.recogniser.settles_at_once = False
    saved(job.folder / "model.pt", more=1)
    os.utime(job.folder / "model.pt", (time.time() + 5,) * 2)
    job.recogniser.told_steps.note(20, time.time() + 4), job.recogniser.told_steps.note(21, time.time() + 6)
    assert job.look() == [(20, ".")], "no pause is needed: all of its state is new and whole, and the job trains on"
