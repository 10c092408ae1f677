"""When a warm cluster is held, until when, and what may change for a relaunch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.campaign.relaunch import difference, refuse_unfit
from infra.errors import UserError
from infra.record import meter
from infra.record.events import CampaignState, Event, Kind, Stage, fold
from infra.spec.campaign import Spec
from infra.steward.decide import (
    Attempt,
    EndAttempt,
    FailureClass,
    Finish,
    History,
    Hold,
    Observation,
    Policy,
    Wait,
    decide,
)
from tests.built_in import training_of
from tests.root import ROOT

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
POLICY = Policy(
    attempts_without_progress=3,
    process_restarts=3,
    node_replacements=3,
    repairs_per_hour=3,
    heartbeat_timeout=timedelta(seconds=5),
    hang_timeout=timedelta(seconds=60),
    startup_timeout=timedelta(seconds=60),
    capacity_timeout=timedelta(seconds=60),
    budget_usd=Decimal(1000),
    on_stop="hold",
    hold_for=HOUR,
    archive=timedelta(minutes=10),
    interval_and_archive=timedelta(minutes=20),
)
BASE = ROOT / "tests/unit/base.yaml"


def after(failure: FailureClass) -> History:
    return History(
        attempts=(Attempt(number=1, failure=failure, ended_at=NOW, committed_at_launch=-1, committed_at_end=20),)
    )


def seen(**changes: object) -> Observation:
    values = {
        "now": NOW,
        "deadline": NOW + 24 * HOUR,
        "spent_usd": Decimal(10),
        "usd_per_hour": Decimal(100),
        "attempt": 1,
        "in_flight": False,
    }
    return Observation.model_validate(values | changes)


@pytest.mark.parametrize("failure", [FailureClass.USER, FailureClass.DATA, FailureClass.NUMERIC])
def test_an_error_that_a_retry_would_repeat_holds_the_warm_cluster(failure: FailureClass) -> None:
    action = decide(seen(), POLICY, after(failure))
    assert isinstance(action, Hold) and action.until == NOW + HOUR


def test_without_hold_such_an_error_ends_training_at_once() -> None:
    action = decide(seen(), POLICY.model_copy(update={"on_stop": "teardown"}), after(FailureClass.USER))
    assert isinstance(action, Finish) and action.outcome == "held"


def test_a_hold_waits_until_its_end_and_no_longer() -> None:
    since = NOW - HOUR + timedelta(seconds=1)
    assert isinstance(decide(seen(held_since=since), POLICY, after(FailureClass.USER)), Wait)
    action = decide(seen(held_since=NOW - HOUR), POLICY, after(FailureClass.USER))
    assert isinstance(action, Finish) and "not relaunched within" in action.why


@pytest.mark.parametrize(
    "changes",
    [{"deadline": NOW + timedelta(minutes=10)}, {"spent_usd": Decimal(990)}, {"stop_requested": True}],
    ids=["deadline", "budget", "stop"],
)
def test_a_hold_ends_before_money_or_time_no_longer_cover_the_archive(changes: dict[str, object]) -> None:
    assert isinstance(decide(seen(held_since=NOW, **changes), POLICY, after(FailureClass.USER)), Finish)


@given(
    held=st.floats(0, 7200),
    spent=st.floats(0, 1200),
    left=st.floats(0, 7200),
    failure=st.sampled_from(list(FailureClass)),
)
def test_a_hold_never_lasts_beyond_its_time_the_deadline_or_the_budget(
    held: float, spent: float, left: float, failure: FailureClass
) -> None:
    view = seen(
        held_since=NOW - timedelta(seconds=held),
        spent_usd=Decimal(spent),
        deadline=NOW + timedelta(seconds=left),
        nodes_wanted=0,
    )
    action = decide(view, POLICY, after(failure))
    if failure in (FailureClass.USER, FailureClass.DATA, FailureClass.NUMERIC) and isinstance(action, Wait):
        assert held < 3600 and left > 600 and spent + 100 / 6 < 1000
    assert not isinstance(action, EndAttempt)


def specs() -> tuple[Spec, Spec]:
    raw = yaml.safe_load(BASE.read_text())
    return Spec.model_validate(raw), Spec.model_validate(raw)


def changed(**sections: dict[str, object]) -> Spec:
    raw = yaml.safe_load(BASE.read_text())
    for section, fields in sections.items():
        raw[section] = raw[section] | fields
    return Spec.model_validate(raw)


HELD = CampaignState(finished_stages={Stage.LAUNCH: {}}, hold={"until": "later"})


def test_only_what_steward_and_trainer_read_may_change() -> None:
    old, _ = specs()
    fine = difference(old, changed(training={"steps": training_of(old).steps + 10}))
    assert [one.field for one in fine] == ["training.steps"]
    refuse_unfit(HELD, fine, committed=20, now=False)
    built = difference(old, changed(nodes={"count": old.nodes.count + 2}))
    with pytest.raises(UserError, match=r"nodes\.count"):
        refuse_unfit(HELD, built, committed=-1, now=False)


def test_the_models_shape_may_change_only_while_there_is_no_checkpoint() -> None:
    old, _ = specs()
    model = training_of(old).model.model_dump() | {"layers": training_of(old).model.layers + 2}
    diff = difference(old, changed(training={"model": model}))
    refuse_unfit(HELD, diff, committed=-1, now=False)
    with pytest.raises(UserError, match="step 20 has another shape"):
        refuse_unfit(HELD, diff, committed=20, now=False)


def test_the_secrets_stay_those_to_which_the_stack_has_given_the_pods_rights() -> None:
    def job(**secrets: dict[str, str]) -> Spec:
        raw = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())
        return Spec.model_validate(raw | {"workload": raw["workload"] | {"secrets": secrets}})

    old = job(TOKEN={"secret": "team/token"})
    for new in (
        job(),
        job(TOKEN={"secret": "team/other"}),
        job(TOKEN={"secret": "team/token"}, KEY={"parameter": "/k"}),
    ):
        with pytest.raises(UserError, match=r"workload\.secrets"):
            refuse_unfit(HELD, difference(old, new), committed=-1, now=False)
    refuse_unfit(HELD, difference(old, job(TOKEN={"secret": "team/token"})), committed=-1, now=False)


def test_a_campaign_that_trains_is_relaunched_only_when_told_to_stop_it() -> None:
    training = CampaignState(finished_stages={Stage.LAUNCH: {}})
    with pytest.raises(UserError, match="not held"):
        refuse_unfit(training, (), committed=-1, now=False)
    refuse_unfit(training, (), committed=-1, now=True)


def event(minutes: float, kind: Kind, **data: object) -> Event:
    at = NOW + timedelta(minutes=minutes)
    return Event(at=at, writer="w", sequence=int(minutes * 60), kind=kind, data=dict(data))


STORY = (
    event(0, Kind.STAGE_STARTED, stage=Stage.PROVISION),
    event(6, Kind.STAGE_FINISHED, stage=Stage.PROVISION, outputs={}),
    event(6, Kind.STAGE_STARTED, stage=Stage.PREFLIGHT),
    event(36, Kind.TRAINING_FINISHED, outcome="done", why="", committed_step=3),
    event(42, Kind.NODES_AT_ZERO, group="g"),
    event(42, Kind.STAGE_STARTED, stage=Stage.TEARDOWN),
    event(48, Kind.STAGE_FINISHED, stage=Stage.TEARDOWN, outputs={}),
)


def test_money_counts_from_provision_and_gpu_nodes_from_preflight_to_their_end() -> None:
    spent = meter.spent(STORY, None, Decimal(10), Decimal(100), NOW + timedelta(minutes=90))
    assert spent == pytest.approx(Decimal(10) * Decimal("0.8") + Decimal(100) * Decimal("0.6"))


@pytest.mark.parametrize(("upto", "rate"), [(0, 0), (1, 10), (3, 110), (4, 110), (5, 10), (7, 0)])
def test_the_rate_is_that_of_what_is_up(upto: int, rate: int) -> None:
    assert meter.rate(fold(STORY[:upto]), None, Decimal(10), Decimal(100)) == rate


def test_losses_before_and_after_a_relaunch_are_not_compared() -> None:
    from infra.report.trainer_log import StepLine, TrainerLog, repeats

    def line(step: int, loss: float) -> StepLine:
        return StepLine(attempt=0, step=step, loss=loss, ended_s=0.0, seconds=0.0)

    log = TrainerLog(steps={1: (line(1, 7.0), line(2, 6.0)), 2: (line(1, 5.0), line(2, 4.0)), 3: (line(2, 4.0),)})
    assert (repeats(log).steps, repeats(log).equal) == (3, 0)
    told = repeats(log, frozenset({1}))
    assert (told.steps, told.equal) == (1, 1), "within the relaunched training equality is still asked for"
