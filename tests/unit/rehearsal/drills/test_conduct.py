"""Conducting a drill without a site: a script stands for `bivouac`, and writes what the injector and the run would."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import PermanentError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Event
from infra.record.payloads import payload_of
from infra.rehearsal.drills import conduct, history
from infra.rehearsal.drills.conduct import Conductor, drill, remember
from infra.rehearsal.drills.drill_campaigns import Drill, random_drill
from infra.rehearsal.drills.judge import DrillResult
from infra.rehearsal.drills.moments import moments_in
from infra.rehearsal.site import campaigns
from infra.report.record import PACKED, Record
from infra.report.trained import Repeats
from infra.spec.campaign import Spec
from infra.spec.drills.scenarios import scenarios

BIVOUAC = """
import datetime, json, os, pathlib, sys, time
folder, moments, verb = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
faults = json.loads((folder / "faults").read_text())
say = lambda fault, kind: moments.open("a").write(json.dumps({"fault": fault, "kind": kind, "step": 60 + fault,
    "at": datetime.datetime.now(datetime.timezone.utc).isoformat()}) + "\\n")
with (folder / "started").open("a") as file:
    file.write(verb + "+abandon" * ("--abandon" in sys.argv) + "\\n")
if verb == "down" and "destroy-interrupted" in faults:
    number = faults.index("destroy-interrupted")
    say(number, "due")
    while f'"fault":{number},"kind":"struck"' not in moments.read_text():
        time.sleep(0.02)
    (folder / "record.made").replace(folder / "record.json.gz")
    sys.exit(0)
if verb == "down":
    (folder / "stop").touch()
    if "block-end" in faults:
        (folder / "record.made").replace(folder / "record.json.gz")
    sys.exit(0)
if moments.exists() and '"due"' in moments.read_text() and "two-drivers" in faults:
    sys.exit(0 if (folder / "second").exists() else 3)
elif moments.exists() and '"due"' in moments.read_text():
    say(len(faults) - 1, "recovered")
elif moments.exists() and '"driver-ended"' in moments.read_text():
    say(0, "recovered" if '"over"' in moments.read_text() else "struck")
else:
    for number, name in enumerate(faults):
        if name == "destroy-interrupted":
            break
        if name in ("driver-killed", "two-drivers"):
            say(number, "due")
            while name == "driver-killed" or '"struck"' not in moments.read_text():
                time.sleep(0.02)
            say(number, "recovered")
            break
        say(number, "struck")
        if name == "s3-denied":
            (folder / "record.json.gz").write_bytes((folder / "record.of-training").read_bytes())
            if os.fork() == 0:
                time.sleep(1)
                say(number, "over")
                os._exit(0)
            sys.exit(77)
        say(number, "recovered")
        if name == "block-end":
            (folder / "record.json.gz").write_bytes((folder / "record.of-training").read_bytes())
            sys.exit(74)
        if name == "budget-reached":
            (folder / "record.made").replace(folder / "record.json.gz")
            sys.exit(0)
while faults and not (folder / "stop").exists():
    time.sleep(0.02)
(folder / "record.made").replace(folder / "record.json.gz")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BIVOUAC_RESULTS", str(tmp_path / "results"))
    folder = tmp_path / "cache" / "sites" / campaigns.SITE
    (folder / "campaigns").mkdir(parents=True)

    def start(conductor: Any, *arguments: str) -> subprocess.Popen[bytes]:
        results = conductor._results
        (results / "faults").write_text(json.dumps(conductor._drill.names))
        if not (results / "record.made").exists():
            (results / "record.made").write_bytes(record(conductor._drill).packed())
            (results / "record.of-training").write_bytes(record(conductor._drill, certified=False).packed())
        moments = folder / "campaigns" / f"{conductor._drill.campaign}.moments"
        return subprocess.Popen([sys.executable, "-c", BIVOUAC, str(results), str(moments), *arguments])

    monkeypatch.setattr(Conductor, "_start", start)
    return tmp_path


def record(drill: Drill, *, certified: bool = True) -> Record:
    spec = Spec.model_validate(drill.document())
    kinds: tuple[tuple[float, str, dict[str, Any]], ...] = (
        (-60, "attempt.running", {"attempt": 1}),
        (600, "attempt.ended", {"attempt": 1, "failure": "numeric"}),
        (700, "certified", {"clean": True}),
    )
    now = datetime.now(UTC)
    events = tuple(
        Event.of(payload_of(kind, data), now + timedelta(seconds=seconds), "steward-1", n)
        for n, (seconds, kind, data) in enumerate(kinds if certified else kinds[:1])
    )
    return Record(spec, make_plan(spec, survey(spec)), events, now)


def started(folder: Path) -> list[str]:
    return (folder / "started").read_text().split()


def test_the_campaign_ends_once_all_faults_are_over_and_a_killed_driver_starts_again(site: Path) -> None:
    lines = list[str]()
    names = ("steward-killed", "driver-killed")
    results = Conductor(Drill("drill", names), lines.append).run()
    folder = site / "results" / "123456789012-us-east-1" / "drill"
    assert started(folder) == ["run", "run", "down"]
    assert (1, "stopping") in moments_in(site / "cache" / "sites" / campaigns.SITE, "drill")
    assert [result.fault for result in results] == list(names) and all(result.left == () for result in results)
    assert set(campaigns.struck_in(site / "cache" / "sites" / campaigns.SITE, "drill")) == {1}
    assert "drill: driver-killed due at step 61" in lines and "drill: driver-killed recovered at step 61" in lines
    spec = yaml.safe_load((folder / "drill.yaml").read_text())
    assert [fault["fault"] for fault in spec["rehearsal"]["faults"]] == list(names)


def test_a_driver_that_gives_up_is_started_again_once_the_fault_is_over_and_that_is_said(site: Path) -> None:
    (result,) = Conductor(Drill("drill", ("s3-denied",)), lambda _: None).run()
    assert started(site / "results" / "123456789012-us-east-1" / "drill") == ["run", "run", "down"]
    assert result.driver_ended


@pytest.mark.parametrize("drives", [False, True])
def test_a_second_driver_is_started_beside_the_first_and_must_be_refused(site: Path, drives: bool) -> None:
    folder = site / "results" / "123456789012-us-east-1" / "drill"
    folder.mkdir(parents=True)
    if drives:
        (folder / "second").touch()
    (result,) = Conductor(Drill("drill", ("two-drivers",)), lambda _: None).run()
    assert started(folder) == ["run", "run", "down"]
    assert not result.driver_ended and ("second driver" in " ".join(result.problems)) is drives


def test_a_campaign_that_a_fault_ends_is_ended_by_nobody_else(site: Path) -> None:
    (result,) = Conductor(Drill("drill", ("budget-reached",)), lambda _: None).run()
    assert started(site / "results" / "123456789012-us-east-1" / "drill") == ["run"]
    assert result.fault == "budget-reached" and not result.driver_ended
    assert (0, "stopping") not in moments_in(site / "cache" / "sites" / campaigns.SITE, "drill")


def test_what_nothing_could_archive_is_given_up_by_who_ends_the_campaign(site: Path) -> None:
    (result,) = Conductor(Drill("drill", ("block-end",)), lambda _: None).run()
    assert started(site / "results" / "123456789012-us-east-1" / "drill") == ["run", "down+abandon"]
    assert result.left == (), "the record is that of the end"


def test_a_driver_is_killed_in_the_teardown_and_whoever_ends_the_campaign_goes_on(site: Path) -> None:
    conductor = Conductor(Drill("drill", ("steward-killed", "destroy-interrupted")), lambda _: None)
    results = conductor.run()
    assert started(site / "results" / "123456789012-us-east-1" / "drill") == ["run", "down"], "no other driver starts"
    assert conductor._driver.poll() == -signal.SIGKILL
    assert [result.fault for result in results] == ["steward-killed", "destroy-interrupted"]


@pytest.mark.parametrize("name", ["steward-killed", "user-error"])
def test_a_drill_that_is_interrupted_ends_its_campaign(site: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    conductor = Conductor(Drill("drill", (name,)), lambda _: None)

    def interrupt() -> None:
        assert conductor._driver.poll() is None, "it trains for hours"
        raise KeyboardInterrupt

    monkeypatch.setattr(conductor, "_until_overcome", interrupt)
    with pytest.raises(KeyboardInterrupt):
        conductor.run()
    assert "down" in started(site / "results" / "123456789012-us-east-1" / "drill")
    assert conductor._driver.poll() is not None


def test_results_are_kept_by_fault_and_the_newest_counts(site: Path) -> None:
    report = drill(["steward-killed"], 0, 1, None, lambda _: None)
    assert not report.missed and [row["fault"] for row in report.rows] == ["steward-killed"]
    path = site / "results" / history.NEWEST
    older = DrillResult(fault="rank-killed", campaign="x", day="2026-01-01", step=1)
    assert [result.fault for result in remember(path, [older])] == ["rank-killed", "steward-killed"]
    newer = older.model_copy(update={"day": f"{date(2026, 1, 2)}"})
    assert remember(path, [newer])[0] == newer and len(remember(path, [])) == 2


def test_drawn_faults_are_the_seeds_and_their_gaps_differ(site: Path) -> None:
    assert random_drill(6, 3) == random_drill(6, 3) != random_drill(6, 4)
    steps = [fault["after_step"] for fault in random_drill(6, 3).document()["rehearsal"]["faults"]]
    assert steps == sorted(set(steps)) and len({b - a for a, b in itertools.pairwise(steps)}) > 1
    drawn = random_drill(400, 1).names
    assert set(drawn) == {name for name, scenario in scenarios().items() if scenario.goes_on and not scenario.group}
    report = drill([], 3, 2, None, lambda _: None)
    assert not report.missed and [result.fault for result in report.results] == list(random_drill(3, 2).names)


def test_a_campaign_without_a_record_is_an_error_that_names_its_log(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conductor, "_start", lambda self, *arguments: subprocess.Popen([sys.executable, "-c", ""]))
    with pytest.raises(PermanentError, match="left no record") as error:
        Conductor(Drill("drill", ("steward-killed",)), lambda _: None).run()
    assert "drill.log" in (error.value.cure or "") and PACKED in str(error.value)


def test_a_fault_that_lost_steps_has_its_campaigns_comparison(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_steps(fault: str, *arguments: Any) -> DrillResult:
        lost_steps = 3 if fault == "node-killed" else 0
        return DrillResult(fault=fault, campaign="drill", day="2026-11-26", step=1, lost_steps=lost_steps)

    monkeypatch.setattr(conduct, "judge", lose_steps)
    monkeypatch.setattr(conduct.trainer_log, "repeats", lambda *arguments: Repeats(steps=9, equal=6, uncompared=2))
    costly, free = Conductor(Drill("drill", ("node-killed", "steward-killed")), lambda _: None).run()
    assert (costly.compared_steps, costly.equal_steps) == (7, 6)
    assert (free.compared_steps, free.equal_steps) == (0, 0)


def test_each_result_of_a_drill_is_kept_with_those_before_it(site: Path) -> None:
    older = DrillResult(fault="steward-killed", campaign="x", day="2026-01-01", step=1)
    remember(site / "results" / history.NEWEST, [older])
    drill(["steward-killed"], 0, 1, None, lambda _: None)
    assert [result.campaign == "x" for result in history.kept_results(site / "results")] == [True, False]
