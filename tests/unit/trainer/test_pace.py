"""The cadence that follows what was measured: quiet steps, dear saves, failures seen."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from trainer.builtin.checkpoint.fence import lost_nothing, raise_fence
from trainer.builtin.checkpoint.pace import Pace, job_mtbf_s
from trainer.contract import CheckpointConfig, TrainConfig
from trainer.contract.cadence import MAX_OVERHEAD


def pace(**changes: object) -> Pace:
    return Pace(**{"every": 10, "steps": 100_000, "mtbf_s": 36_000.0, **changes})  # type: ignore[arg-type]


def one_save(pace: Pace, stall: float, dip: float, write: float = 1.0) -> int:
    for _ in range(9):
        pace.add_step(1.0, writing=False)
    pace.begin_save(stall)
    for _ in range(2):
        pace.add_step(1.0 + dip / 2, writing=True)
    return pace.finish_save(write)


def test_a_dip_counts_as_much_as_a_stall_of_the_same_length() -> None:
    assert one_save(pace(), stall=0.5, dip=0.0) == one_save(pace(), stall=0.0, dip=0.5) > 10


@pytest.mark.parametrize("mtbf", [600.0, 36_000.0, 3.6e6])
def test_the_overhead_stays_below_the_bound_however_often_the_job_fails(mtbf: float) -> None:
    chosen = pace(mtbf_s=mtbf)
    one_save(chosen, stall=0.3, dip=0.2)
    assert chosen.overhead() <= MAX_OVERHEAD


def test_a_change_is_logged_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    one_save(pace(), stall=0.5, dip=0.5)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (change,) = [event for event in events if event["event"] == "cadence"]
    assert change["before"] == 10 and change["every_steps"] > 10 and change["why"] in ("daly", "fewest", "most")
    assert change["dip_s"] == 0.5 and change["mtbf_s"] == 36_000


def test_an_interval_of_the_spec_stays(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = pace(fixed=True)
    assert [one_save(chosen, stall=5.0, dip=5.0) for _ in range(2)] == [10, 10]
    said = capsys.readouterr().out
    assert "cadence" not in said and said.count("saving_too_dear") == 1


def test_where_the_disk_never_rests_the_interval_still_grows_until_it_does() -> None:
    chosen = pace(every=1)
    for _ in range(3):
        chosen.begin_save(0.01)
        for _ in range(40):
            chosen.add_step(1.0, writing=True)
    assert chosen.every >= 40


def test_steps_far_shorter_than_the_stall_are_saved_seldom_enough() -> None:
    chosen = pace(every=1, steps=10**9)
    for _ in range(20):
        chosen.add_step(1e-3, writing=False)
    chosen.begin_save(2.0)
    chosen.finish_save(30.0)
    assert chosen.overhead() <= MAX_OVERHEAD and chosen.every >= 200_000


def test_what_was_said_of_the_grace_period_is_taken_back_when_the_shared_tier_slows_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = pace(grace_s=60.0)
    for shared in (1.0, 2.0, 100.0, 100.0):
        for _ in range(3):
            chosen.add_step(1.0, writing=False)
        chosen.begin_save(0.1)
        chosen.finish_save(5.0, shared)
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert [event for event in events if event.startswith("grace")] == ["grace_fits", "grace_too_short"]


@pytest.mark.parametrize(("write", "event"), [(5.0, "grace_fits"), (90.0, "grace_too_short")])
def test_the_first_measured_save_says_whether_an_emergency_one_fits(
    write: float, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one_save(pace(grace_s=60.0), stall=0.1, dip=0.0, write=write)
    assert f'"event": "{event}"' in capsys.readouterr().out


def test_each_loss_of_work_lowers_the_expected_time_between_failures(tmp_path: Path) -> None:
    config = TrainConfig(campaign="tiny", steps=1, global_batch=1, checkpoint=CheckpointConfig(node_mtbf_hours=1000))
    assert job_mtbf_s(config, 10, tmp_path) == 360_000

    def failures() -> float:
        """Solve for the failures: the estimate stands for one in 100 h, and the campaign began two hours ago."""
        for path in (tmp_path / "fence").iterdir():
            os.utime(path, (time.time() - 7200,) * 2)
        return round((360_000 + 7200) / job_mtbf_s(config, 10, tmp_path), 2) - 1

    raise_fence(tmp_path, 1)
    assert failures() == 0
    raise_fence(tmp_path, 1, generation=1)
    assert failures() == 1, "a restart in place follows a loss"
    raise_fence(tmp_path, 2)
    assert failures() == 2, "and so does another attempt"
    lost_nothing(tmp_path, 2)
    raise_fence(tmp_path, 3)
    assert failures() == 2, "but not one after an end that had committed its last step"
