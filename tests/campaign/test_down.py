"""Ended by hand in the middle of training: what is sound is archived, everything falls, nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rehearsal import Rehearsal, until

LONG = {
    "campaign": "stopped",
    "data": {"max_files": 60},
    "training": {
        "model": {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 1024},
        "steps": 5000,
        "evaluate_every": 5000,
        "step_seconds_estimate": 0.1,
    },
    "checkpoint": {"every_steps": 20},
    "rehearsal": {"faults": []},
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rehearsal, int, Any]]:
    """(rehearsal, exit code of the interrupted driver, `bivouac down NAME` from another shell)."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("down"), LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or rehearsal.step() >= 30, "training is under way", 300)
            assert driver.poll() is None, rehearsal.log()
            driver.send_signal(signal.SIGINT)
            code = driver.wait(timeout=30)
            yield rehearsal, code, rehearsal.run("down", rehearsal.name)
        finally:
            rehearsal.strike()


def test_ctrl_c_ends_the_driver_and_says_how_to_go_on(ended: tuple[Rehearsal, int, Any]) -> None:
    rehearsal, code, _ = ended
    assert code == 130
    assert "run the same command again to continue" in rehearsal.log()
    assert "Traceback" not in rehearsal.log()


def test_down_archives_what_is_sound_then_tears_down_and_certifies(ended: tuple[Rehearsal, int, Any]) -> None:
    rehearsal, _, down = ended
    assert down.returncode == 0, down.stdout + down.stderr
    events = rehearsal.events()
    kinds = [event["kind"] for event in events]
    assert kinds.index("archive.verified") < kinds.index("certified")
    archived = next(event["data"] for event in events if event["kind"] == "archive.verified")
    finished = next(event["data"] for event in events if event["kind"] == "training.finished")
    assert finished["outcome"] == "stopped"
    ended_at = next(event["data"] for event in events if event["kind"] == "attempt.ended")
    assert archived["step"] == finished["committed_step"] >= ended_at["step"], "what the stop committed is archived"
    assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]


def test_afterwards_nothing_bills(ended: tuple[Rehearsal, int, Any]) -> None:
    assert ended[0].status()["bills_usd_per_hour"] == 0.0


def test_the_page_of_a_stopped_campaign_is_written(ended: tuple[Rehearsal, int, Any]) -> None:
    assert Path(ended[0].results / "report.html").exists()
