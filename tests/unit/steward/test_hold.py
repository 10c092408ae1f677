"""When a warm cluster is held, until when, and what may change for a relaunch."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.campaign.relaunch import difference, refuse_unfit
from infra.errors import UserError
from infra.record.events import CampaignState, Event, Stage
from infra.record.meter import read
from infra.record.payloads.training import Held
from infra.spec.campaign import Spec
from infra.steward.decide import EndAttempt, FailureClass, Finish, History, Hold, Observation, Wait, decide
from infra.steward.rules.means import hold_until
from tests.built_in import training_of
from tests.root import ROOT
from tests.unit.record.cost_lines import line, lines
from tests.unit.steward.test_decide import NOW, ended, seen
from tests.unit.steward.test_decide import POLICY as JUDGED

TICK = timedelta(microseconds=1)
POLICY = JUDGED.model_copy(
    update={"on_stop": "hold", "hold_for": timedelta(minutes=30), "archive": timedelta(minutes=5)}
)
BASE = ROOT / "tests/unit/base.yaml"


def held(**changes: object) -> Observation:
    """Ten minutes into a hold of half an hour."""
    since = {"held_since": NOW - timedelta(minutes=10), "usd_per_hour": Decimal(6)}
    return seen(**{"in_flight": False, "pods": (), **since, **changes})


USER = History(attempts=(ended(1, FailureClass.USER, -1, 5),))


@pytest.mark.parametrize("failure", [FailureClass.USER, FailureClass.DATA, FailureClass.NUMERIC])
def test_an_error_that_a_retry_would_repeat_holds_once_and_then_waits(failure: FailureClass) -> None:
    history = History(attempts=(ended(1, failure, -1, 5),))
    action = decide(held(held_since=None), POLICY, history)
    assert action == Hold(attempt=1, until=NOW + timedelta(minutes=30), why=action.why)
    assert isinstance(decide(held(), POLICY, history), Wait)


def test_a_hold_ends_at_its_time_and_not_before() -> None:
    begun = NOW - POLICY.hold_for
    assert isinstance(decide(held(held_since=begun + TICK), POLICY, USER), Wait)
    action = decide(held(held_since=begun), POLICY, USER)
    assert isinstance(action, Finish) and action.outcome == "held" and "not relaunched within" in action.why


def test_a_hold_leaves_time_and_money_for_the_archive_and_needs_none_for_an_interval() -> None:
    tight = {"deadline": NOW + POLICY.archive + TICK}
    assert isinstance(decide(held(**tight), POLICY, USER), Wait), "an interval is not wanted any more"
    assert isinstance(decide(held(deadline=NOW + POLICY.archive), POLICY, USER), Finish)
    archive = Decimal("0.5")
    assert isinstance(decide(held(spent_usd=100 - archive), POLICY, USER), Finish)
    assert isinstance(decide(held(spent_usd=100 - archive - Decimal("0.01")), POLICY, USER), Wait)
    assert isinstance(decide(held(stop_requested=True), POLICY, USER), Finish)


def test_a_hold_is_announced_until_the_first_of_its_ends() -> None:
    assert hold_until(held(), POLICY, NOW) == NOW + timedelta(minutes=30)
    assert hold_until(held(deadline=NOW + timedelta(minutes=20)), POLICY, NOW) == NOW + timedelta(minutes=15)
    assert hold_until(held(spent_usd=Decimal(98)), POLICY, NOW) == NOW + timedelta(minutes=15)
    rich = held(spent_usd=Decimal(-(10**15)), usd_per_hour=Decimal("0.001"))
    assert hold_until(rich, POLICY, NOW) == NOW + timedelta(minutes=30), "a moment that no calendar has"
    free = held().model_copy(update={"usd_per_hour": Decimal(0)})
    assert hold_until(free, POLICY, NOW) == NOW + timedelta(minutes=30)


def test_without_hold_such_an_error_ends_training_at_once() -> None:
    action = decide(held(held_since=None), POLICY.model_copy(update={"on_stop": "teardown"}), USER)
    assert isinstance(action, Finish) and action.outcome == "held"


@given(
    in_hold=st.floats(0, 3600),
    spent=st.floats(0, 120),
    left=st.floats(0, 3600),
    failure=st.sampled_from(list(FailureClass)),
)
def test_a_hold_never_lasts_beyond_its_time_the_deadline_or_the_budget(
    in_hold: float, spent: float, left: float, failure: FailureClass
) -> None:
    view = held(
        held_since=NOW - timedelta(seconds=in_hold),
        spent_usd=Decimal(spent),
        deadline=NOW + timedelta(seconds=left),
        nodes_wanted=0,
    )
    action = decide(view, POLICY, History(attempts=(ended(1, failure, -1, 20),)))
    if failure in (FailureClass.USER, FailureClass.DATA, FailureClass.NUMERIC) and isinstance(action, Wait):
        assert in_hold < 1800 and left > 300 and spent + 6 / 12 < 100
    assert not isinstance(action, EndAttempt)


def specs() -> tuple[Spec, Spec]:
    raw = yaml.safe_load(BASE.read_text())
    return Spec.model_validate(raw), Spec.model_validate(raw)


def changed(**sections: dict[str, object]) -> Spec:
    raw = yaml.safe_load(BASE.read_text())
    for section, fields in sections.items():
        raw[section] = raw[section] | fields
    return Spec.model_validate(raw)


HELD = CampaignState(finished_stages={Stage.LAUNCH: {}}, hold=Held(until="later"))


def test_only_what_steward_and_trainer_read_may_change() -> None:
    old, _ = specs()
    fine = difference(old, changed(training={"steps": training_of(old).steps + 10}))
    assert [one.field for one in fine] == ["training.steps"]
    refuse_unfit(HELD, fine, committed_step=20, now=False)
    built = difference(old, changed(nodes={"count": old.nodes.count + 2}))
    with pytest.raises(UserError, match=r"nodes\.count"):
        refuse_unfit(HELD, built, committed_step=-1, now=False)


def test_the_models_shape_may_change_only_while_there_is_no_checkpoint() -> None:
    old, _ = specs()
    model = training_of(old).model.model_dump() | {"layers": training_of(old).model.layers + 2}
    diff = difference(old, changed(training={"model": model}))
    refuse_unfit(HELD, diff, committed_step=-1, now=False)
    with pytest.raises(UserError, match="step 20 has another shape"):
        refuse_unfit(HELD, diff, committed_step=20, now=False)


@pytest.mark.parametrize("back", [False, True])
def test_a_job_becomes_no_mpi_job_on_a_warm_cluster_and_stays_one(back: bool) -> None:
    raw = yaml.safe_load((ROOT / "trainer/examples/mpi/rehearsal.yaml").read_text())
    by_mpirun = Spec.model_validate(raw)
    alone = Spec.model_validate(raw | {"workload": raw["workload"] | {"launcher": "none"}})
    diff = difference(by_mpirun, alone) if back else difference(alone, by_mpirun)
    with pytest.raises(UserError, match=r"workload\.launcher"):
        refuse_unfit(HELD, diff, committed_step=-1, now=False)


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
            refuse_unfit(HELD, difference(old, new), committed_step=-1, now=False)
    refuse_unfit(HELD, difference(old, job(TOKEN={"secret": "team/token"})), committed_step=-1, now=False)


def test_the_image_stays_in_its_repository_and_mounts_are_those_of_the_file_system() -> None:
    def job(**changes: object) -> Spec:
        raw = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())
        return Spec.model_validate(raw | {"workload": raw["workload"] | changes})

    def refused(old: Spec, new: Spec) -> str:
        try:
            refuse_unfit(HELD, difference(old, new), committed_step=20, now=False)
        except UserError as error:
            return error.what
        return ""

    old, image = job(image="nvcr.io/nvidia/pytorch:25.10-py3"), "the cluster admits the job's image from one repository"
    assert refused(old, job(image="nvcr.io/nvidia/pytorch@sha256:" + "0" * 64)) == ""
    for other in ("nvcr.io/nvidia/nemo:25.10-py3", "docker.io/nvidia/pytorch:25.10-py3", None):
        assert refused(old, job(image=other)).startswith(image), other
    small = job(rehearsal={"image": "team/job:v1"})
    assert refused(small, job(rehearsal={"image": "team/job:v2"})) == ""
    assert refused(small, job(rehearsal={"image": "team/other:v1"})).startswith(image)
    assert refused(small, job()).startswith(image)
    mounted = job(image="nvcr.io/nvidia/pytorch:25.10-py3", mounts={"a": "s3://bucket/a"})
    assert refused(old, mounted).startswith("these fields cannot")
    begun = job(image="nvcr.io/nvidia/pytorch:25.10-py3", init_from="s3://bucket/llama")
    assert refused(old, begun).startswith("these fields cannot"), "its link comes with the file system"
    judged = job(image="nvcr.io/nvidia/pytorch:25.10-py3", evaluate={"command": ["python3", "held_out.py"]})
    assert refused(old, judged) == ""


def test_a_campaign_that_trains_is_relaunched_only_when_told_to_stop_it() -> None:
    training = CampaignState(finished_stages={Stage.LAUNCH: {}})
    with pytest.raises(UserError, match="not held"):
        refuse_unfit(training, (), committed_step=-1, now=False)
    refuse_unfit(training, (), committed_step=-1, now=True)


def event(minutes: float, kind: str, **data: object) -> Event:
    at = NOW + timedelta(minutes=minutes)
    return Event(at=at, writer="w", sequence=int(minutes * 60), kind=kind, data=dict(data))


STORY = (
    event(0, "stage.started", stage=Stage.PROVISION),
    event(6, "stage.finished", stage=Stage.PROVISION, outputs={}),
    event(6, "stage.started", stage=Stage.PREFLIGHT),
    event(36, "training.finished", outcome="done", why="", committed_step=3),
    event(42, "nodes.at-zero", group="g"),
    event(42, "stage.started", stage=Stage.TEARDOWN),
    event(48, "stage.finished", stage=Stage.TEARDOWN, outputs={}),
)


def test_money_counts_from_provision_and_gpu_nodes_from_preflight_to_their_end() -> None:
    spent = read(lines(10, 100), STORY, NOW + timedelta(minutes=90)).spent_usd
    assert spent == pytest.approx(Decimal(10) * Decimal("0.8") + Decimal(100) * Decimal("0.6"))


def test_nodes_that_prepare_the_data_cost_by_their_own_price_until_they_go() -> None:
    begun, ended = event(1, "data.begun", nodes=2), event(5, "data.ended", digest="d")
    now, bill = NOW + timedelta(minutes=90), (*lines(10, 100), line("data nodes", "4.5"))
    without = read(bill, STORY, now).spent_usd
    assert read(bill, (*STORY, begun, ended), now).spent_usd - without == pytest.approx(Decimal("4.5") * 4 / 60)
    killed = read(bill, (*STORY, begun), now).spent_usd
    assert killed - without == pytest.approx(Decimal("4.5") * 5 / 60), "until the end of the stage that they are for"
    assert read(bill, (STORY[0], begun), NOW).usd_per_hour == Decimal("14.5")
    assert read(bill, (STORY[0], begun, ended), NOW).usd_per_hour == 10


@pytest.mark.parametrize(("upto", "rate"), [(0, 0), (1, 10), (3, 110), (4, 110), (5, 10), (7, 0)])
def test_the_rate_is_that_of_what_is_up(upto: int, rate: int) -> None:
    assert read(lines(10, 100), STORY[:upto], NOW).usd_per_hour == rate


def test_losses_before_and_after_a_relaunch_are_not_compared() -> None:
    from infra.report.trainer_log import LoggedStep, TrainerLog, repeats

    def line(step: int, loss: float) -> LoggedStep:
        return LoggedStep(attempt=0, step=step, loss=loss, ended_s=0.0, seconds=0.0)

    log = TrainerLog(steps={1: (line(1, 7.0), line(2, 6.0)), 2: (line(1, 5.0), line(2, 4.0)), 3: (line(2, 4.0),)})
    assert (repeats(log).steps, repeats(log).equal) == (3, 0)
    told = repeats(log, frozenset({1}))
    assert (told.steps, told.equal) == (1, 1), "within the relaunched training equality is still asked for"
