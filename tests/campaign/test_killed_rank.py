"""A rank dies on a whole rehearsed cluster while its node is well: the pods stay, and one attempt ends the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.rehearsal import quick, rehearsing
from trainer.contract import Manifest

pytestmark = pytest.mark.nightly
STEPS = 120


def test_a_killed_rank_restarts_in_place_within_one_attempt(tmp_path: Path) -> None:
    faults = [{"kill_rank": 1, "after_step": STEPS // 2}]
    with rehearsing(tmp_path, quick(STEPS, campaign="rank", rehearsal={"faults": faults})) as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        (told,) = [one for one in rehearsal.report()["interruptions"] if one["action"] == "restarted in place"]
        assert "SIGKILL" in told["what"], told
        events = rehearsal.events()
        assert [one["data"]["attempt"] for one in events if one["kind"] == "attempt.launched"] == [1]
        assert [one["data"]["clean"] for one in events if one["kind"] == "certified"] == [True]
        struck = rehearsal.run("down", "--all")
        assert struck.returncode == 0, struck.stdout + struck.stderr
        (found,) = rehearsal.archived("golden").rglob("manifest.json")
        made = Manifest.model_validate_json(found.read_bytes())
        assert (made.step, made.attempt, made.generation) == (STEPS, 1, 1)
