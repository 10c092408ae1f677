"""Events of each kind as the versions of November 2026 stored them: they stay readable, and say what they said."""

from __future__ import annotations

import json

import pytest

from infra.record.events import Event, fold, stored
from infra.record.payloads.base import PAYLOADS
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from tests.root import ROOT

LINES = (ROOT / "tests/unit/record/stored_events.jsonl").read_text().splitlines()
SAMPLES = {json.loads(line)["kind"]: line.encode() for line in LINES}


def read(kind: str) -> Event:
    event = stored(SAMPLES[kind])
    assert event is not None
    return event


def test_there_is_a_sample_of_each_kind() -> None:
    assert set(SAMPLES) == set(PAYLOADS)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_stored_event_is_read_said_and_stored_again_without_a_difference(kind: str) -> None:
    event = read(kind)
    assert "cannot be read" not in event.sentence() or kind == "record.unreadable"
    again = Event.of(event.payload, event.at, event.writer, event.sequence)
    assert again.data.keys() == event.data.keys() and again.payload == event.payload


def test_a_field_of_a_later_version_is_kept() -> None:
    later = {**json.loads(SAMPLES["decision"]), "data": {"action": "launch", "why": "so", "colour": "red"}}
    event = stored(json.dumps(later).encode())
    assert event is not None and event.payload.data() == later["data"]


def test_all_kinds_together_fold_into_a_state() -> None:
    state = fold(read(kind) for kind in SAMPLES)
    assert (state.outcome, state.copied, state.version, state.unreadable) == ("done", 30, 1, 1)
    assert state.attempts[0].failure == "node" and state.archive is not None and state.abandoned is False


def test_a_stage_s_outputs_are_read_by_its_model_and_stored_as_they_were() -> None:
    data = {"stage": "bake", "seconds": 1.0, "outputs": {"image": "i", "node_image": {"ami": "a"}, "later": 1}}
    line = json.dumps({**json.loads(SAMPLES["stage.finished"]), "data": data})
    event = stored(line.encode())
    assert event is not None and event.payload.data() == data
    state = fold([event])
    bake = BakeOutput.of(state.finished_stages)
    assert bake.image == "i" and bake.node_image is not None and bake.node_image.ours
    assert ProvisionOutput.known(state.finished_stages) == ProvisionOutput()
