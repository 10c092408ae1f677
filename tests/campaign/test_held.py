"""A learning rate with a slip of the key: training turns infinite, the warm cluster is held, a mended spec goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from rehearsal import Rehearsal, until

SLIPPED = {
    "campaign": "held",
    "data": {"max_files": 60},
    "training": {
        "model": {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 1024},
        "optimizer": {"learning_rate": 3.0e8, "minimum_learning_rate": 1.0e8, "warmup_steps": 20},
        "steps": 40,
        "evaluate_every": 40,
        "step_seconds_estimate": 0.1,
    },
    "checkpoint": {"every_steps": 20},
    "on_stop": "hold",
    "hold_for": "20m",
    "rehearsal": {"faults": []},
}


@dataclass
class Seen:
    rehearsal: Rehearsal
    status: dict[str, Any]
    while_driven: Any
    foreign: Any
    relaunched: Any


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("held"), SLIPPED)
    mended = rehearsal.folder / "mended.yaml"
    optimizer = {"learning_rate": 3.0e-3, "minimum_learning_rate": 3.0e-4, "warmup_steps": 20}
    spec = rehearsal.spec | {"training": rehearsal.spec["training"] | {"optimizer": optimizer}}
    mended.write_text(yaml.safe_dump(spec))
    other = rehearsal.folder / "other.yaml"
    other.write_text(yaml.safe_dump(spec | {"owner": "somebody else"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_CACHE", str(rehearsal.cache))
        try:
            driver = rehearsal.start()
            until(lambda: driver.poll() is not None or rehearsal.status().get("hold"), "the cluster is held", 300)
            assert driver.poll() is None, rehearsal.log()
            status = rehearsal.status()
            while_driven = rehearsal.run("relaunch", rehearsal.name, "--spec", str(mended))
            driver.send_signal(signal.SIGINT)
            driver.wait(timeout=30)
            foreign = rehearsal.run("relaunch", rehearsal.name, "--spec", str(other))
            relaunched = rehearsal.run("relaunch", rehearsal.name, "--spec", str(mended))
            yield Seen(rehearsal, status, while_driven, foreign, relaunched)
        finally:
            rehearsal.strike()


def test_a_held_cluster_bills_and_says_so_with_its_cause_and_end(seen: Seen) -> None:
    hold = seen.status["hold"]
    assert "numeric" in hold["cause"] and hold["until"] > seen.status["live"]["at"]
    assert seen.status["bills_usd_per_hour"] == pytest.approx(hold["usd_per_hour"])
    assert any("NumericError" in line or "not finite" in line for line in hold["log"])
    assert "bivouac relaunch held" in seen.rehearsal.log()


def test_a_living_driver_and_a_change_of_what_is_built_refuse_a_relaunch(seen: Seen) -> None:
    assert seen.while_driven.returncode == 75 and "already has a driver" in seen.while_driven.stderr
    assert seen.foreign.returncode == 64 and "owner" in seen.foreign.stderr


def test_the_mended_campaign_trains_on_the_same_nodes_to_its_end(seen: Seen) -> None:
    assert seen.relaunched.returncode == 0, seen.relaunched.stdout + seen.relaunched.stderr
    events = seen.rehearsal.events()
    kinds = [event["kind"] for event in events]
    assert kinds.index("held") < kinds.index("relaunched") < kinds.index("archive.verified")
    relaunched = next(event["data"] for event in events if event["kind"] == "relaunched")
    fields = {one["field"] for one in relaunched["diff"]}
    assert fields == {"training.optimizer.learning_rate", "training.optimizer.minimum_learning_rate"}
    ran = [event["data"]["nodes"] for event in events if event["kind"] == "attempt.running"]
    preflight = {event["data"]["node"] for event in events if event["kind"] == "node.verdict"}
    assert set(ran[-1]) == preflight, "no new node was paid for"
    finished = next(event["data"] for event in events if event["kind"] == "training.finished")
    assert (finished["outcome"], finished["committed_step"]) == ("done", 40)
    assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]
