"""Each scenario names only what there is, and a spec takes it by its name."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from infra.monitoring.alerts import alerts
from infra.plan.checks import check, failed
from infra.plan.survey import survey
from infra.record.payloads import PAYLOADS
from infra.rehearsal.aws.faults import Rule
from infra.rehearsal.aws.troubles import Shortage
from infra.rehearsal.drills.conduct import named_drill
from infra.spec.campaign import Spec, load
from infra.spec.drills.scenarios import Scenario, scenarios
from infra.spec.rehearsal import Fault
from infra.steward.seeing.views import FailureClass
from tests.root import ROOT

ALL = list(scenarios().items())
BODIES: dict[str, Any] = {"faults": Rule, "capacity": Shortage}
PLACES = {"{first}", "{last}", "{campaign}"}


@pytest.mark.parametrize(("name", "scenario"), ALL, ids=[name for name, _ in ALL])
def test_a_scenario_names_kinds_alerts_classes_and_places_that_there_are(name: str, scenario: Scenario) -> None:
    expect = scenario.expect
    assert {*expect.events, *expect.absent} <= PAYLOADS.keys()
    assert {expect.alert, *expect.tolerated} - {None} <= alerts().keys()
    assert expect.failure is None or expect.failure in set(FailureClass)
    assert scenario.hands or scenario.driver, "it does something"
    assert bool(scenario.undo) <= (scenario.lasts_s > 0), "what is undone lasts until then"
    for hand in (*scenario.hands, *scenario.undo):
        placed = {place for value in hand.query.values() for place in re.findall(r"{.*?}", value)}
        assert placed <= PLACES
        for row in (hand.body or {}).get("add", ()):
            BODIES[hand.route].model_validate(row)
    rules = [row for hand in scenario.hands if hand.route == "faults" for row in (hand.body or {})["add"]]
    assert not rules or scenario.undo, "a rule for the emulated AWS is taken back"
    assert expect.seen_within_s is None or expect.events or expect.attempts or expect.alert


@pytest.mark.parametrize("name", scenarios())
def test_a_spec_takes_the_fault_by_its_name(name: str) -> None:
    content = yaml.safe_load((ROOT / "tests/unit/base.yaml").read_text())
    content["rehearsal"] = {"faults": [{"fault": name, "after_step": 30}]}
    assert Spec.model_validate(content).rehearsal is not None


@pytest.mark.parametrize("row", [{"fault": "rank-kiled"}, {"fault": "rank-killed", "kill_rank": 1}, {}])
def test_another_name_and_two_faults_in_one_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"no fault of this name; there are|give either"):
        Fault.model_validate({**row, "after_step": 30})


def test_the_spec_with_all_faults_passes_every_rule(tmp_path: Path) -> None:
    path = tmp_path / "drill.yaml"
    path.write_text(yaml.safe_dump(named_drill(list(scenarios()), seed=1).document()))
    file = load(path)
    findings = check(file, survey(file.spec), date(2026, 8, 1))
    assert not failed(findings), findings


def test_the_seed_draws_the_order() -> None:
    names = list(scenarios())
    drills = [named_drill(names, seed) for seed in range(4)]
    assert len({drill.names for drill in drills}) > 1 and named_drill(names, 3) == drills[3]
    assert all(sorted(drill.names) == sorted(names) for drill in drills)
    steps = [fault["after_step"] for fault in drills[0].document()["rehearsal"]["faults"]]
    assert steps == sorted(set(steps)), "each waits for the one before"
