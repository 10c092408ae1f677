"""A whole campaign whose emulated AWS takes AWS's own times, sixty times as fast, and whose teardown is a bad one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.rehearsal import Rehearsal, quick, rehearsing, until
from tests.waiting import HUNG_S

pytestmark = pytest.mark.nightly

TIMED = quick(200, campaign="timed", image={"nodes": "eks"}, rehearsal={"faults": [], "time_scale": 60})
TEARDOWN_S = 50.0
HANGS_S = 35.0
"""At the scale of a minute a second: longer than Pulumi waits for a file system, shorter than a teardown's patience."""
REFUSED = {"service": "ec2", "action": "DeleteSecurityGroup", "code": "DependencyViolation", "status": 400, "times": 2}
HANGS = {"kind": "file-system", "phase": "delete", "outcome": "hang", "seconds": HANGS_S}


def ask(rehearsal: Rehearsal, route: str, rule: dict[str, Any]) -> None:
    body = shlex.quote(json.dumps({"add": [rule]}))
    done = rehearsal.inside("sh", "-c", f"curl -sSf -d {body} $AWS_ENDPOINT_URL/_site/{route}")
    assert done.returncode == 0, done.stderr


def test_a_life_at_awss_own_pace_ends_certified_though_its_teardown_takes_fifty_minutes(tmp_path: Path) -> None:
    with rehearsing(tmp_path, TIMED) as rehearsal:
        driver = rehearsal.start()
        until(lambda: driver.poll() is not None or "\nsupervise " in rehearsal.log(), "training is under way")
        assert driver.poll() is None, rehearsal.log()
        ask(rehearsal, "faults", REFUSED)
        ask(rehearsal, "troubles", HANGS)
        assert driver.wait(timeout=HUNG_S) == 0, rehearsal.log()
        events = rehearsal.events()
        took = {
            event["data"]["stage"]: event["data"]["seconds"] for event in events if event["kind"] == "stage.finished"
        }
        print(json.dumps(took))
        assert took["teardown"] > TEARDOWN_S
        assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]
        assert rehearsal.status()["bills_usd_per_hour"] == 0.0
        assert "give" not in rehearsal.log().split("\nteardown ")[1].split("certify")[0], "no instance had to be ended"
