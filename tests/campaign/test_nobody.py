"""Nobody at the laptop: the driver dies for good after the launch, or leaves; the account ends the campaign alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.campaign.rehearsal import Rehearsal, quick, rehearsing, until

pytestmark = pytest.mark.nightly


@dataclass
class Ended:
    rehearsal: Rehearsal
    events: list[dict[str, Any]]
    detached: dict[str, Any]
    """Status right after the driver had left."""
    code: int
    silence: str
    """State and time of the schedule that the steward postpones, after the driver has left, and that hour."""

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    def builds(self) -> str:
        """What the closer's builds printed, for a failure's words."""
        folder = Path(self.rehearsal.found().folder, "aws", "builds")
        return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*/log")))


@pytest.fixture(scope="module", params=["killed", "detached"])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    how = request.param
    with rehearsing(tmp_path_factory.mktemp(how), quick(400, campaign=f"nobody-{how}")) as rehearsal:
        if how == "killed":
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or rehearsal.step() >= 20, "training is under way")
            assert driver.poll() is None, rehearsal.log()
            rehearsal.kill(driver)
        else:
            driver = rehearsal.start("run", str(rehearsal.path), "--detach")
            driver.wait()
        code, left = driver.returncode, rehearsal.status()
        silence = rehearsal.python(
            f"import boto3; s = boto3.client('scheduler').get_schedule(Name='bivouac-{rehearsal.name}-silence');"
            " from datetime import UTC, datetime; print(s['State'], s['ScheduleExpression'], datetime.now(UTC))"
        )
        until(lambda: rehearsal.status().get("stage") == "ended", "the closer has ended the campaign")
        yield Ended(rehearsal, rehearsal.events(), left, code, silence)


def test_it_is_archived_torn_down_and_certified_by_nobodys_hand(ended: Ended) -> None:
    kinds = ended.kinds()
    assert kinds.index("archive.verified") < kinds.index("closing") < kinds.index("certified"), ended.builds()
    (closing,) = [event for event in ended.events if event["kind"] == "closing"]
    assert closing["data"]["why"] == "the steward is done"
    (certified,) = [event["data"] for event in ended.events if event["kind"] == "certified"]
    assert certified["clean"] and not certified["could_not_look"], ended.builds()
    (finished,) = [event["data"] for event in ended.events if event["kind"] == "training.finished"]
    assert finished["outcome"] == "done"


def test_meanwhile_aws_would_end_the_nodes_if_the_steward_fell_silent_too(ended: Ended) -> None:
    """The pod itself has postponed it, with the role and the boundary that the stack gives it."""
    state, expression, now = ended.silence.split(" ", 2)
    left = datetime.fromisoformat(f"{expression[3:-1]}+00:00") - datetime.fromisoformat(now)
    assert state == "ENABLED" and timedelta(minutes=30) < left < timedelta(minutes=51), ended.silence


def test_afterwards_nothing_bills_and_no_schedule_is_left(ended: Ended) -> None:
    assert ended.rehearsal.status()["bills_usd_per_hour"] == 0.0
    left = ended.rehearsal.python(
        "import boto3; print([s['Name'] for s in boto3.client('scheduler').list_schedules()['Schedules']],"
        " boto3.client('eks').list_clusters()['clusters'])"
    )
    assert left == "[] []"


def test_a_driver_that_left_has_said_who_goes_on_and_the_status_tells_it(ended: Ended) -> None:
    if "killed" in ended.rehearsal.name:
        assert ended.code < 0 and ended.detached["detached"] is None
        return
    assert ended.code == 0, ended.rehearsal.log()
    assert ended.detached["detached"] is not None and ended.detached["driver"] == "none"
    said = ended.rehearsal.log()
    assert "a closer in the account tears down and certifies" in said and "bivouac down nobody-detached" in said


def test_the_report_of_it_is_written_where_nobody_drove(ended: Ended) -> None:
    done = ended.rehearsal.run("report", ended.rehearsal.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(ended.rehearsal.results / "report.html").exists()
