"""Every line that a trainer or a supervisor prints for the infrastructure has the fields that its schema allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from infra.record.payloads.attempts import AttemptRestartedInPlace
from infra.record.payloads.base import PRINTED, PrintedPayload
from infra.record.trainer_lines import StepLine, line_of
from tests.root import ROOT
from trainer.contract.frozen import Frozen


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Yield (place, event, names of the fields) of each call of an `emit` with a name in it."""
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name.strip("_") != "emit":
                continue
            words = [leaf.value for leaf in ast.walk(node.args[0]) if isinstance(leaf, ast.Constant)]
            for event in words:
                yield (
                    f"{path.relative_to(ROOT)}:{node.lineno}",
                    str(event),
                    {key.arg for key in node.keywords if key.arg},
                )


STEPS = ("step", "evaluated", "restored", "started_fresh")
CALLS = [call for call in calls() if call[1] in STEPS or call[1] in PRINTED]


@pytest.mark.parametrize(("place", "event", "fields"), CALLS, ids=[f"{place} {event}" for place, event, _ in CALLS])
def test_a_line_has_fields_of_its_schema(place: str, event: str, fields: set[str]) -> None:
    models: list[type[Frozen]] = [StepLine] if event in STEPS else []
    for model in (*models, *filter(None, [PRINTED.get(event)])):
        assert model.model_config.get("extra") == "ignore" or fields <= set(model.model_fields), place
        needed = {name for name, field in model.model_fields.items() if field.is_required()} - {"event"}
        needed |= set(model.needed) if issubclass(model, PrintedPayload) else set()
        always = {"node", "attempt"}  # of who prints
        assert event in ("unrecognised", "step") or needed <= fields | always, place  # they are printed from a splat


def test_the_lines_were_found() -> None:
    events = {event for _, event, _ in CALLS}
    assert {"step", "restored", "started_fresh", "not_sealed", "look_failed", "refused_step"} <= events
    assert {"restarted_in_place", "watch"} <= events


def test_a_restart_in_place_without_attempt_or_step_is_text() -> None:
    line = {"attempt": 1, "step": 31, "cause": "SIGKILL"}
    assert AttemptRestartedInPlace.of_line("p", line) is not None
    assert not any(AttemptRestartedInPlace.of_line("p", {**line, name: None}) for name in ("attempt", "step"))


def test_what_a_job_prints_beside_a_step_is_for_people_and_a_begin_is_the_records() -> None:
    for parameters in ("7B", 1.3e9, None):
        line = line_of({"event": "step", "step": 3, "loss": 2.0, "parameters": parameters})
        assert line is not None and (line.loss, line.parameters) == (2.0, None)
    begin = line_of({"event": "restored", "step": 5, "parameters": 7})
    assert begin is not None and begin.parameters == 7
    assert line_of({"event": "restored", "step": 5, "invented": 1}) is None
