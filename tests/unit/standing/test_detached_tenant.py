"""A driver that leaves a campaign in an existing cluster: who goes on, and what waits until a person comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra import target
from infra.campaign import stages as campaign_stages
from infra.campaign.stages import StageStep
from infra.cli.look import status
from infra.cli.look.status import facts_by
from infra.cli.run import run
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.store import CampaignStore
from infra.report.record import Record
from infra.session import session
from tests.unit.standing.conftest import Standing
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time


def test_it_leaves_once_training_runs_and_says_that_a_person_must_come_back(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, ran, said = standing(), list[Stage](), StringIO()
    spec = file.spec
    s3: Any = FakeS3(Time())
    store = CampaignStore(s3, "training", spec.campaign, "driver")
    context: Any = SimpleNamespace(
        spec=spec, store=store, state=store.state, outputs={}, operator_arn="ada", guard=lambda: None,
        account=SimpleNamespace(ends_by_itself=lambda: False), lease=SimpleNamespace(holder="ada@laptop"),
        deadline=datetime(2026, 12, 1, 12, tzinfo=UTC), progress=SilentProgress(),
    )  # fmt: skip

    @contextmanager
    def opened(*_: Any) -> Iterator[Any]:
        yield context

    def done(stage: Stage) -> Callable[[Any], Any]:
        return lambda context: ran.append(stage) or {}  # type: ignore[func-returns-value]

    monkeypatch.setattr(session, "opened", opened)
    monkeypatch.setattr(target, "steps", lambda spec: tuple(StageStep(stage, "", done(stage)) for stage in Stage))
    monkeypatch.setattr(target, "enter_for", lambda *_, **__: None)
    monkeypatch.setattr(run, "with_answers", lambda check, console: check)
    monkeypatch.setattr(campaign_stages, "tell", lambda context, cost: None)
    monkeypatch.setattr(campaign_stages.block_clock, "await_lead", lambda context: None)
    code = run.run_command(file.path, True, Console(file=said, width=200), detach=True)
    assert code == 0 and ran and ran[-1] is Stage.LAUNCH
    assert "nobody tears down and certifies until the same `bivouac run` does" in said.getvalue()
    assert "closer" not in said.getvalue()
    assert store.state().detached is not None

    record = Record(spec, make_plan(spec, survey(spec)), tuple(store.events()), datetime.now(UTC))
    facts, state = facts_by(record, {}, {})
    stream = StringIO()
    status._show(facts, state, False, Console(file=stream, width=300))
    assert "the steward carries on, then nobody tears down and certifies" in stream.getvalue()
