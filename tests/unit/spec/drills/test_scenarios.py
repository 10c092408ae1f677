"""Each scenario names only what there is, and a spec takes it by its name."""

from __future__ import annotations

import re
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console

from infra.cli.run.drill import drill_command
from infra.errors import UserError
from infra.monitoring.alerts import alerts
from infra.plan.checks import check, failed
from infra.plan.survey import survey
from infra.record.payloads import PAYLOADS
from infra.rehearsal.aws.faults import Rule
from infra.rehearsal.aws.troubles import Shortage
from infra.rehearsal.drills.drill_campaigns import Drill, named_drills
from infra.rehearsal.kubernetes.exporters import Words
from infra.spec.campaign import Spec, load
from infra.spec.drills.scenarios import Scenario, scenarios
from infra.spec.rehearsal import Fault
from infra.steward.seeing.views import FailureClass
from tests.root import ROOT

ALL = [(name, scenario) for name, scenario in scenarios().items() if not scenario.absent_because]
ABSENT = {name: scenario for name, scenario in scenarios().items() if scenario.absent_because}
BODIES: dict[str, Any] = {"faults": Rule, "capacity": Shortage}
PLACES = {"{first}", "{last}", "{campaign}"}


@pytest.mark.parametrize(("name", "scenario"), ALL, ids=[name for name, _ in ALL])
def test_a_scenario_names_kinds_alerts_classes_and_places_that_there_are(name: str, scenario: Scenario) -> None:
    expect = scenario.expect
    assert {*expect.events, *expect.absent, scenario.after_event} - {""} <= PAYLOADS.keys()
    assert {*expect.alerts, *expect.tolerated} <= alerts().keys()
    assert expect.failure is None or expect.failure in set(FailureClass)
    is_by_spec = scenario.spec and (scenario.ends_campaign or scenario.group)
    assert scenario.hands or scenario.driver or is_by_spec, "it does something"
    assert (expect.committed_within_s is None) == (expect.ends_within_s > 0), "one of both follows"
    assert bool(scenario.undo) <= (scenario.lasts_s > 0), "what is undone lasts until then"
    for hand in (*scenario.hands, *scenario.undo):
        placed = {place for value in hand.query.values() for place in re.findall(r"{.*?}", value)}
        assert placed <= PLACES
        for row in (hand.body or {}).get("add", ()):
            BODIES[hand.route].model_validate(row)
        if hand.route == "exporter":
            Words.model_validate(hand.body)
    rules = [row for hand in scenario.hands if hand.route == "faults" for row in (hand.body or {})["add"]]
    is_finite = all(row.get("times", 1) for row in rules)
    assert is_finite or scenario.undo, "a rule for the emulated AWS is taken back, or hits so many calls"
    assert expect.seen_within_s is None or expect.events or expect.attempts or expect.alerts


@pytest.mark.parametrize("name", ABSENT)
def test_what_a_rehearsal_cannot_strike_with_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(ABSENT[name].absent_because)):
        Fault.model_validate({"fault": name, "after_step": 30})
    console = Console(file=StringIO())
    with pytest.raises(UserError, match=re.escape(ABSENT[name].absent_because)):
        drill_command([name], 0, 1, False, None, console)
    assert not ABSENT[name].hands and name not in named_drills([name, "rank-killed"], 1)[0].names


@pytest.mark.parametrize("name", dict(ALL))
def test_a_spec_takes_the_fault_by_its_name(name: str) -> None:
    content = yaml.safe_load((ROOT / "tests/unit/base.yaml").read_text())
    content["rehearsal"] = {"faults": [{"fault": name, "after_step": 30}]}
    assert Spec.model_validate(content).rehearsal is not None


@pytest.mark.parametrize("row", [{"fault": "rank-kiled"}, {"fault": "rank-killed", "kill_rank": 1}, {}])
def test_another_name_and_two_faults_in_one_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"no fault of this name; there are|give either"):
        Fault.model_validate({**row, "after_step": 30})


PREFIX = "drill-235959"
"""As the command has it: a campaign's name has at most 20 characters."""


@pytest.mark.parametrize("drill", named_drills(list(scenarios()), 1, PREFIX), ids=lambda drill: drill.names[0])
def test_the_spec_of_each_campaign_of_drills_passes_every_rule(drill: Drill, tmp_path: Path) -> None:
    path = tmp_path / "drill.yaml"
    path.write_text(yaml.safe_dump(drill.document()))
    file = load(path)
    findings = check(file, survey(file.spec), date(2026, 8, 1))
    assert not failed(findings), findings


def test_a_fault_that_ends_its_campaign_stands_alone_and_the_teardowns_come_last() -> None:
    names = ["destroy-interrupted", "user-error", "node-killed", "budget-reached", "spot-notice"]
    shared, *own = named_drills(names, seed=2)
    assert set(shared.names[:-1]) == {"node-killed", "spot-notice"} and shared.names[-1] == "destroy-interrupted"
    assert shared.training_numbers == [0, 1] and not shared.ends_itself
    assert [drill.names for drill in own] == [("user-error",), ("budget-reached",)] and own[0].ends_itself
    assert shared.document()["nodes"]["capacity"] == "spot" and "training" not in own[0].document()
    assert own[1].document()["nodes"].get("capacity") is None, "what one needs is not the other's"


def test_faults_of_a_group_share_a_campaign_with_nobody_else() -> None:
    names = ["lustre-hangs", "node-killed", "deadline-near", "nvme-nearly-full"]
    shared, own_job, late = named_drills(names, seed=2)
    assert shared.names == ("node-killed",) and late.names == ("deadline-near",)
    assert set(own_job.names) == {"lustre-hangs", "nvme-nearly-full"}
    assert own_job.campaign == "drill-own-job" and "training" in shared.document()
    assert "workload" in own_job.document() and "training" not in own_job.document()


def test_the_seed_draws_the_order() -> None:
    names = list(scenarios())
    drills = [named_drills(names, seed)[0] for seed in range(4)]
    assert len({drill.names for drill in drills}) > 1 and named_drills(names, 3)[0] == drills[3]
    own = {name for name, scenario in scenarios().items() if scenario.ends_campaign or scenario.group}
    assert all(sorted(drill.names) == sorted(set(names) - own - ABSENT.keys()) for drill in drills)
    steps = [fault["after_step"] for fault in drills[0].document()["rehearsal"]["faults"]]
    assert steps == sorted(set(steps)), "each waits for the one before"
