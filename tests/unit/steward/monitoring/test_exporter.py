"""The steward's metrics say what its last look saw, and nothing that it did not see."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from infra.clock import Clock
from infra.steward.monitoring.exporter import Exporter
from infra.steward.seeing.views import NodeView, Observation, PodView, Unseen
from tests.worlds.s3 import Time
from trainer.contract import Phase

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


def test_a_steward_that_waits_lives_one_that_is_over_looks_no_more_and_an_attempt_that_is_over_has_no_pods() -> None:
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
