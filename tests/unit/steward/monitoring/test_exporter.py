"""The steward's metrics say what its last look saw, and nothing that it did not see."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from infra.clock import Clock
from infra.steward.monitoring.exporter import Exporter
from infra.steward.monitoring.figures import Dip, further_figures, peak, projected_usd, step_seconds
from infra.steward.seeing.views import Attempt, FailureClass, History, NodeView, Observation, PodView, Unseen
from tests.worlds.s3 import Time
from trainer.contract import Phase, StepFigures
from trainer.contract.job import Status
from trainer.contract.metrics import SUPERVISOR, exposition

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


def view(**changes: Any) -> Observation:
    pods = (
        PodView(index=0, name="a-0", node="n0", phase="Running", silent_for=timedelta(seconds=7)),
        PodView(index=1, name="a-1", node="n1", phase="Running", trainer_phase=Phase.TRAINING),
    )
    facts: dict[str, Any] = {
        "now": NOW, "deadline": NOW + timedelta(hours=1), "spent_usd": Decimal("12.5"), "usd_per_hour": Decimal(40),
        "attempt": 1, "in_flight": True, "pods": pods, "nodes": (NodeView(name="n0", instance="i-0", ready=True),),
        "nodes_wanted": 2, "step": 30, "since_step": timedelta(seconds=4), "committed_step": 20,
        "unseen": (Unseen(source="AWS", lasts=timedelta(seconds=90), why="timed out"),),
    }  # fmt: skip
    return Observation.model_validate(facts | changes)


def lines(exporter: Exporter) -> dict[str, float]:
    rows = [line.rsplit(" ", 1) for line in exporter.text().splitlines() if line and not line.startswith("#")]
    return {name.replace('campaign="c"', "").replace("{}", "").replace("{,", "{"): float(value) for name, value in rows}


def test_a_look_is_exported_and_a_pod_that_never_answered_has_no_silence() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    assert lines(exporter) == {}, "before the first look nothing is known"
    exporter.note(view(), 100.0, 2, 0.25, timedelta(minutes=10))
    told = lines(exporter)
    assert told["bivouac_look_timestamp_seconds"] == NOW.timestamp() and told["bivouac_look_seconds"] == 0.25
    assert (told["bivouac_attempts_total"], told["bivouac_in_flight"], told["bivouac_held"]) == (2, 1, 0)
    assert told['bivouac_pods{phase="Running"}'] == 2 and told['bivouac_unseen_seconds{source="AWS"}'] == 90
    assert {name: value for name, value in told.items() if "silent" in name} == {'bivouac_silent_seconds{pod="a-0"}': 7}
    assert [told[f'bivouac_nodes{{state="{state}"}}'] for state in ("wanted", "there", "fit")] == [2, 1, 1]
    assert (told["bivouac_spent_usd"], told["bivouac_budget_usd"], told["bivouac_usd_per_hour"]) == (12.5, 100, 40)
    assert told["bivouac_hang_timeout_seconds"] == 300 and told["bivouac_save_interval_seconds"] == 600


def test_only_training_time_without_a_commit_counts() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))

    def after(seconds: float, **changes: Any) -> float | None:
        time.go(seconds)
        exporter.note(view(**changes), 100.0, 1, 0.1, timedelta(minutes=10))
        return lines(exporter).get("bivouac_since_commit_seconds")

    assert after(0) == 0 and after(30) == 30, "the first look begins the count"
    assert after(10, committed_step=40) == 0 and after(20, committed_step=40) == 20
    assert after(100, in_flight=False, committed_step=40) is None, "between attempts nothing can be committed"
    assert after(50, committed_step=40) == 0 and after(5, committed_step=-1) == 5, "a tier that is unseen is no commit"
    starting = (PodView(index=0, name="a-0", node="n0", phase="Running", trainer_phase=Phase.RESTORING),)
    assert after(70, pods=starting) is None, "who restores commits nothing"
    assert after(80) == 0 and after(9) == 9


def test_a_waiting_steward_lives_an_ended_one_looks_no_more_and_old_attempts_lack_pods() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    exporter.live_on()
    assert lines(exporter) == {}, "it has not looked yet"
    exporter.note(view(), 100.0, 1, 0.1, timedelta(minutes=10))
    exporter.rest()
    time.go(600)
    exporter.live_on()
    told = lines(exporter)
    assert told["bivouac_look_timestamp_seconds"] == time.wall().timestamp() and told["bivouac_in_flight"] == 0
    assert not [name for name in told if "pods" in name or "since" in name or "silent" in name]
    exporter.end()
    exporter.live_on()
    told = lines(exporter)
    assert told.pop("bivouac_over") == 1
    assert told.keys() <= {"bivouac_look_timestamp_seconds"}


def test_it_is_served_over_http() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    exporter.note(view(), 100.0, 1, 0.1, timedelta(minutes=10))
    server = exporter.open("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            assert answer.read().decode() == exporter.text() and "0.0.4" in answer.headers["Content-Type"]
    finally:
        server.shutdown(), server.server_close()


def test_time_has_the_causes_of_the_report() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))

    def pods(phase: Phase | None, step: int = 30) -> dict[str, Any]:
        """One node is a step behind, as between two of its answers."""
        settings: dict[str, Any] = {"node": "n0", "phase": "Running", "trainer_phase": phase}
        nodes = (PodView(index=index, name=f"a-{index}", step=max(0, step - index), **settings) for index in range(2))
        return {"pods": tuple(nodes), "step": step}

    looks = [
        ("startup", 4, pods(None, step=0)), ("startup", 3, pods(Phase.RESTORING, step=0)),
        ("useful", 10, pods(Phase.TRAINING)), ("saving", 3, pods(Phase.SAVING)),
        ("evaluation", 2, pods(Phase.EVALUATING)), ("replace", 15, pods(None)), ("replace", 25, {"in_flight": False}),
        ("idle", 100, {"in_flight": False, "held_since": NOW}), ("redo", 5, pods(Phase.TRAINING, step=12)),
        ("useful", 1, pods(Phase.TRAINING)),
    ]  # fmt: skip
    exporter.note(view(step=0), 100.0, 1, 0.1, timedelta(minutes=10))
    for _, seconds, changes in looks:
        time.go(seconds)
        exporter.note(view(**changes), 100.0, 1, 0.1, timedelta(minutes=10))
    spent = {name: value for name, value in lines(exporter).items() if "cause_seconds" in name and value}
    assert spent == {
        f'bivouac_cause_seconds_total{{cause="{cause}"}}': seconds
        for cause, seconds in {"startup": 7, "useful": 11, "redo": 5, "saving": 3, "evaluation": 2, "replace": 40,
                               "idle": 100}.items()
    }  # fmt: skip


def test_the_end_is_projected_from_a_measured_pace_alone() -> None:
    look = view(step=40)
    hours = (60 * 30 + 600) / 3600
    assert projected_usd(look, 100, 30.0, timedelta(minutes=10)) == 12.5 + 40 * hours
    assert projected_usd(look, 20, 30.0, timedelta()) == 12.5, "a gang that passes its last step has none left"
    assert projected_usd(look, 100, None, timedelta()) is None
    assert projected_usd(view(in_flight=False), 100, 30.0, timedelta()) is None


def status(mfu: float | None) -> Status:
    facts: dict[str, Any] = {
        "campaign": "c", "attempt": 1, "node": "n", "phase": "training", "step": 1, "steps": 2, "committed_step": -1,
        "tokens": 1, "loss": 1.0, "step_seconds": 1.0, "figures": StepFigures(mfu=mfu), "ranks": (),
    }  # fmt: skip
    return Status(**facts)


def test_the_denominator_is_told_where_mfu_is() -> None:
    config: Any = SimpleNamespace(
        train=SimpleNamespace(peak_bf16_tflops=989.0), ranks_per_node=8,
        spec=SimpleNamespace(nodes=SimpleNamespace(count=2, instance_type="p5.48xlarge")),
    )  # fmt: skip
    assert peak(config, 2, [status(None), status(0.4)]) == {"16 of p5.48xlarge, bf16 dense": 16 * 989e12}
    assert peak(config, 1, [status(0.4)]) == {"8 of p5.48xlarge, bf16 dense": 8 * 989e12}, "a smaller gang's"
    assert peak(config, 2, [status(None)]) is None and peak(config, 2, []) is None
    config.train = None
    assert peak(config, 2, [status(0.4)]) is None, "a job of one's own has no formula of ours"


def test_what_nobody_looks_for_in_a_view_is_exported_beside_it() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    more = {"source_errors": {"AWS": 3}, "lease_left_s": 12.0, "events_written": 7, "peak": {"8 of x": 1e15}}
    exporter.note(view(), 100.0, 1, 0.1, timedelta(minutes=10), more)
    told = lines(exporter)
    assert told['bivouac_source_errors_total{source="AWS"}'] == 3 and told["bivouac_lease_left_seconds"] == 12
    assert told["bivouac_events_written_total"] == 7 and told['bivouac_peak_flops{accelerators="8 of x",}'] == 1e15


def test_what_budget_and_deadline_keep_and_what_failed_is_exported() -> None:
    lookout: Any = SimpleNamespace(
        interval_and_archive=timedelta(minutes=7), pace=SimpleNamespace(measured_s=None),
        observer=SimpleNamespace(statuses={}), sources=SimpleNamespace(failures={}), record_figures={},
    )  # fmt: skip
    config: Any = SimpleNamespace(steps=10, archive=timedelta(minutes=5), train=None)
    lease: Any = SimpleNamespace(covers_until=0.0)
    ended = Attempt(number=1, failure=FailureClass.NODE, ended_at=NOW, committed_at_launch=-1, committed_at_end=2)
    figures = further_figures(config, view(), History(attempts=(ended,)), lookout, lease, 0, {})
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    exporter.note(view(), 100.0, 1, 0.1, timedelta(minutes=10), figures)
    told = lines(exporter)
    assert told["bivouac_reserve_seconds"] == 420
    assert told['bivouac_failures_total{failure="node"}'] == 1 and told['bivouac_failures_total{failure="user"}'] == 0


def test_a_utilisation_above_one_is_an_error_and_no_sample() -> None:
    place = {"campaign": "c", "attempt": 1, "node": "n"}
    text = exposition(SUPERVISOR, {"figures": {"mfu": 1.01, "hfu": 1.0}}, place)
    assert "bivouac_mfu_ratio" not in text and "bivouac_hfu_ratio" in text


def test_the_age_of_a_checkpoint_is_known_once_its_step_was_seen_to_rise() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))

    def ages(seconds: float, local: int, shared: int, more: dict[str, Any] | None = None, **changes: Any) -> Any:
        time.go(seconds)
        pods = tuple(pod.model_copy(update={"committed_step": local}) for pod in view().pods)
        seen = view(pods=pods, committed_step=shared, **changes)
        exporter.note(seen, 100.0, 1, 0.1, timedelta(minutes=10), more)
        key = "bivouac_checkpoint_age_seconds"
        return {name[len(key) :]: value for name, value in lines(exporter).items() if name.startswith(key)}

    assert ages(0, 40, 20) == {}, "when they were committed nobody here has seen"
    assert ages(5, 60, 20) == {'{tier="local"}': 0} and ages(7, 60, 20) == {'{tier="local"}': 7}
    assert ages(1, 60, 60) == {'{tier="local"}': 8, '{tier="shared"}': 0}
    assert ages(2, 60, -1, troubles=("the tier is away",)) == {'{tier="local"}': 10, '{tier="shared"}': 2}
    assert ages(1, 60, 60, {"copy_age_s": 90.0})['{tier="archive"}'] == 90
    exporter.rest()
    assert "checkpoint_age" not in exporter.text(), "nobody looks any more"


def test_the_excess_of_steps_beside_a_save_over_quiet_ones_is_no_useful_time() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    pods = (PodView(index=0, name="a-0", node="n0", phase="Running", trainer_phase=Phase.TRAINING),)

    def step(number: int, seconds: float, committed: int) -> dict[str, float]:
        time.go(seconds)
        here = tuple(pod.model_copy(update={"committed_step": committed}) for pod in pods)
        exporter.note(view(pods=here, step=number), 100.0, 1, 0.1, timedelta(minutes=10), step_s=seconds)
        causes = {name: value for name, value in lines(exporter).items() if "cause" in name}
        return {
            cause: causes.get(f'bivouac_cause_seconds_total{{cause="{cause}"}}', 0.0) for cause in ("useful", "dip")
        }

    for number in range(10, 21):
        step(number, 2.0, -1)
    for number in range(21, 25):
        step(number, 3.0, -1)  # beside the save of step 20
    assert step(25, 2.0, 20) == {"useful": 20 + 12 + 2 - 2, "dip": 2}, "the next useful time pays what is due"
    after = step(26, 5.0, 20)
    assert after["dip"] == pytest.approx(2 + 2) and sum(after.values()) == pytest.approx(20 + 12 + 2 + 5)


def test_a_dip_needs_quiet_steps_and_a_restart_begins_anew() -> None:
    dip = Dip()
    assert [dip.note(step, 3.0, -1) for step in range(4)] == [0.0] * 4 and dip.note(5, 9.0, 3) == 0, "too few"
    dip = Dip()
    for step in range(10):
        dip.note(step, 2.0, -1)
    assert dip.note(2, 9.0, -1) == 0 and dip.note(4, 9.0, 2) == 0, "what was before the restart is no step beside"


def test_seconds_of_a_step_leave_out_the_stall_of_its_save() -> None:
    status: dict[str, Any] = {
        "campaign": "c", "attempt": 1, "node": "n", "phase": "training", "step": 3, "steps": 9, "committed_step": -1,
        "tokens": 1, "loss": None, "ranks": (),
    }  # fmt: skip
    plain = Status.model_validate(status | {"step_seconds": 2.0})
    stalled = Status.model_validate(status | {"step_seconds": 2.5, "figures": StepFigures(checkpoint_s=1.0)})
    unknown = Status.model_validate(status | {"step_seconds": None})
    assert step_seconds([plain, stalled, unknown]) == 2.0 and step_seconds([stalled]) == 1.5
    assert step_seconds([unknown]) is None


def test_the_driver_s_stages_are_exported_from_the_record() -> None:
    time = Time()
    exporter = Exporter("c", Clock(time, time.wall), timedelta(minutes=5))
    figures = {"stage_seconds": {"bake": 60.0}, "stage_running": {"bake": False}, "driver_gone": False,
               "copies": {"copied": 2}, "copied_step": 40}  # fmt: skip
    exporter.note(view(), 100.0, 1, 0.1, timedelta(minutes=10), figures)
    told = lines(exporter)
    assert told['bivouac_stage_seconds_total{stage="bake"}'] == 60 and told['bivouac_stage_running{stage="bake"}'] == 0
    assert told["bivouac_driver_gone"] == 0 and told["bivouac_copied_step"] == 40
    assert told['bivouac_copies_total{outcome="copied"}'] == 2
