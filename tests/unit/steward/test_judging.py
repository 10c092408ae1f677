"""The steward and the job's own evaluation: one pod, its bounds, its tries, and what is recorded of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.clock import Clock
from infra.cluster.gang import jobset
from infra.cluster.steward_config import StewardConfig
from infra.errors import PermanentError
from infra.record.events import CampaignState
from infra.record.payloads.attempts import AttemptLaunched, AttemptRecord
from infra.spec.campaign import Spec
from infra.steward import archiving, gangs, judging
from infra.steward.judging import Judged
from tests.fake_cluster import FakeCluster
from tests.part import part
from tests.root import ROOT
from tests.unit.steward.steward_story import config
from tests.worlds.s3 import Time
from trainer.contract.workload import JudgingConfig, WorkloadConfig

LIMIT, BARE = timedelta(minutes=10), timedelta(minutes=5)
"""The spec's limit of one run, and the planned archive without any."""
GAUGE = "a" * 64


def judging_config() -> StewardConfig:
    document = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())
    document |= {"campaign": "story", "recovery": {**document["recovery"], "capacity_timeout": "20m"}}
    document["workload"]["evaluate"] = {"command": ["python3", "evaluate.py"], "limit": "10m"}
    spec = Spec.model_validate(document)
    workload = part(WorkloadConfig, judging=JudgingConfig(evaluate=("python3", "evaluate.py")))
    changes = {"spec": spec, "train": None, "workload": workload, "archive": LIMIT + BARE}
    return config().model_copy(update=changes)


def pod(name: str, phase: str, message: str | None = None, code: int = 0, why: str = "") -> Pod:
    state: dict[str, Any] = {"running": {}} if phase == "Running" else {"waiting": {"reason": "ContainerCreating"}}
    if phase in ("Succeeded", "Failed"):
        state = {"terminated": {"exitCode": code, "message": message, "reason": why}}
    container = {"name": "trainer", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    labels = {"bivouac.dev/campaign": "story", "bivouac.dev/attempt": "0"}
    return from_dict(  # type: ignore[return-value]
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"containers": []}, "status": {"phase": phase, "containerStatuses": [container]},
        }
    )  # fmt: skip


class Ended:
    """A steward whose training is over; each turn takes a minute, and `turns` says what its cluster did meanwhile."""

    def __init__(self) -> None:
        self.config, self.client, self.time = judging_config(), FakeCluster(), Time()
        self.clock = Clock(self.time, self.time.wall)
        self.config = self.config.model_copy(update={"deadline": self.time.wall() + timedelta(hours=5)})
        self.recorded: list[tuple[str, dict[str, Any]]] = []
        self.store = SimpleNamespace(append=lambda payload: self.recorded.append((payload.kind, payload.data())))
        self.lease = SimpleNamespace(check=lambda: None)
        self.followed: list[str] = []
        follow, rest = self.followed.append, lambda *_: None
        self.logs = SimpleNamespace(follow=follow, wait_for=rest, flush=lambda: None)
        self.nodes = SimpleNamespace(left_out=())
        self.turns: list[Callable[[], None]] = []

    def pause(self) -> None:
        self.time.go(60)
        if self.turns:
            self.turns.pop(0)()

    def shows(self, *given: Any, **more: Any) -> Callable[[], None]:
        """A turn in which the newest try's pod is seen like this."""

        def turn() -> None:
            newest = sorted(self.client.jobs)[-1]
            self.client.pods = {"p": pod(f"{newest}-gang-0-0-x", *given, **more)}

        return turn

    def judge(self) -> Judged:
        return judging.judge(self, self.pause)  # type: ignore[arg-type]

    @property
    def launched(self) -> list[str]:
        return [one.removeprefix("create ") for one in self.client.writes if one.startswith("create")]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    monkeypatch.setattr("tests.fake_cluster.PODS", 0)
    return Ended()


TOLD = json.dumps({"exit_code": 0, "detail": "", "judgement": GAUGE})
BAD = json.dumps({"exit_code": 64, "detail": "loss", "judgement": GAUGE})


def test_a_job_that_asks_for_nothing_is_not_started_again(ended: Ended) -> None:
    ended.config = ended.config.model_copy(update={"workload": part(WorkloadConfig, judging=None)})
    assert ended.judge() == Judged() and not ended.client.writes


@pytest.mark.parametrize(("phase", "said"), [("Succeeded", TOLD), ("Failed", BAD)])
def test_what_the_pod_told_is_its_judgement_good_or_bad(phase: str, said: str, ended: Ended) -> None:
    ended.turns = [ended.shows("Pending"), ended.shows("Running"), ended.shows(phase, said, 64)]
    assert ended.judge() == Judged(sha256=GAUGE)
    assert ended.launched == ["story-judge1"] and set(ended.followed) == {"story-judge1-gang-0-0-x"}
    assert set(ended.client.config_maps) == {"judge"}


def test_a_pod_that_ends_without_a_word_is_tried_again_and_not_for_ever(ended: Ended) -> None:
    shows = ended.shows("Failed", None, 137, why="Evicted")
    ended.turns = [shows, ended.shows("Running"), ended.shows("Succeeded", TOLD)]
    assert ended.judge() == Judged(sha256=GAUGE) and ended.launched == ["story-judge1", "story-judge2"]
    ended.client.jobs.clear(), ended.client.pods.clear()
    ended.turns = [shows, shows, ended.shows("Failed", '{"detail": "no folder for the run"}', 74)]
    assert ended.judge() == Judged(unjudged="its pod ended 3 times without a word of its own: no folder for the run")


def test_a_pod_that_hangs_or_never_starts_is_ended_at_its_bound(ended: Ended) -> None:
    begun = ended.time()
    ended.turns = [ended.shows("Pending")]
    assert ended.judge().unjudged.startswith("its pod did not start: ")
    assert (ended.time() - begun) / 60 == 21, "capacity_timeout, and the turn that sees it"
    assert ended.client.writes[-1] == "delete story-judge1" and not ended.client.jobs
    ended.client.pods.clear()
    begun, ended.turns = ended.time(), [ended.shows("Running")]
    assert ended.judge() == Judged(unjudged="its pod did not end in time") and not ended.client.jobs
    assert (ended.time() - begun) / 60 == 1 + 15 + 1, "the limits, and the time to read the checkpoint"


def test_the_time_of_the_archive_is_never_spent_on_the_evaluation(ended: Ended) -> None:
    now = ended.time.wall()
    ended.config = ended.config.model_copy(update={"deadline": now + LIMIT + BARE - timedelta(seconds=1)})
    assert "leaves no time for it" in ended.judge().unjudged and not ended.client.writes
    ended.config = ended.config.model_copy(update={"deadline": now + LIMIT + BARE})
    ended.turns = [ended.shows("Running")]
    assert "the time to the deadline is for the archive" in ended.judge().unjudged and not ended.client.jobs
    assert ended.time.wall() - now == LIMIT + timedelta(minutes=1)


def test_the_pod_is_one_of_the_job_that_cannot_change_a_checkpoint_or_the_archives_disk(ended: Ended) -> None:
    made = jobset(gangs.judge(ended.config, 1, "judge"))
    (job,) = made["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["completions"] == 1
    (container,) = (spec := job["template"]["spec"]["template"]["spec"])["containers"]
    assert container["command"] == ["python3", "/bivouac/supervisor.pyz", "evaluate"]
    assert (spec["serviceAccountName"], [container["name"] for container in spec["initContainers"]]) == (
        "trainer",
        ["supervisor"],
    )
    writes = {
        mount["mountPath"]: mount.get("subPath") for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    assert writes == {
        "/bivouac-export": "checkpoints/story/export", "/dev/shm": None, "/bivouac": None, "/workspace": None,
    }  # fmt: skip
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/shared-checkpoints", "/data", "/config"}
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert "local" not in volumes and {mount["name"] for mount in container["volumeMounts"]} == set(volumes)


# --- what is recorded ---


@pytest.fixture
def archived(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Records an archive, whose Job comes to `found`; the Job's configurations are listed."""
    given: list[Any] = []

    def record(judged: Judged, found: dict[str, Any] | PermanentError, committed: int = 60) -> Any:
        def run(*_: Any) -> dict[str, Any]:
            given.append(_[1])
            if isinstance(found, PermanentError):
                raise found
            return found

        monkeypatch.setattr(archiving, "_have_a_node", lambda steward: None)
        monkeypatch.setattr(archiving, "GangRelease", lambda steward: SimpleNamespace(begin=lambda: None))
        monkeypatch.setattr(judging, "judge", lambda steward, pause: judged)
        monkeypatch.setattr(archiving.archive_job, "run", run)
        launched = AttemptLaunched(attempt=2, committed_step=committed)
        state = CampaignState(attempts=(AttemptRecord(launched=launched, launched_at=datetime.now(UTC)),))
        ended.store.state, ended.committed_step = lambda: state, lambda: committed  # type: ignore[attr-defined]
        archiving.record(ended)  # type: ignore[arg-type]
        return ended.recorded.pop(), given.pop()

    return record


def test_a_good_judgement_goes_to_the_archive_and_its_metrics_into_the_record(archived: Any, ended: Ended) -> None:
    verified = {"step": 60, "metrics": {"loss": 2.13}}
    (kind, data), asked = archived(Judged(sha256=GAUGE), verified)
    assert (kind, data) == ("archive.verified", verified)
    assert (asked.judgement, asked.unjudged, asked.workload) == (GAUGE, "", True)


def test_a_bad_step_fails_the_archive_tells_the_safe_one_and_leaves_the_next_try_nothing(
    archived: Any, ended: Ended
) -> None:
    ended.client.jobs["story-judge1"] = SimpleNamespace(metadata=SimpleNamespace(name="story-judge1", labels={}))
    (kind, data), asked = archived(Judged(unjudged="no time"), {"unproven": "no time", "step": 60, "objects": 9})
    assert (kind, data) == ("archive.failed", {"error": "no time", "step": 60})
    assert asked.unjudged == "no time"
    assert "delete archive" in ended.client.writes and not ended.client.jobs, "another try begins anew"


def test_an_archive_that_fails_itself_has_no_step_to_call_safe(archived: Any, ended: Ended) -> None:
    ended.client.jobs["story-judge1"] = SimpleNamespace(metadata=SimpleNamespace(name="story-judge1", labels={}))
    (kind, data), _ = archived(Judged(sha256=GAUGE), PermanentError("the archive failed"))
    assert (kind, set(data)) == ("archive.failed", {"error"}) and not ended.client.jobs


COPIED = {"prefix": "s3://a/b/unproven", "files": 3, "bytes": 12, "why": "no *.ckpt", "fits": "torch"}


def test_what_was_only_copied_is_recorded_as_unproven_and_never_as_an_archive(archived: Any, ended: Ended) -> None:
    (kind, data), asked = archived(Judged(sha256=GAUGE), {"copied": dict(COPIED)}, committed=-1)
    assert (kind, data) == ("archive.unproven", COPIED) and not ended.recorded
    assert asked.attempt == 2 and asked.unjudged == "no checkpoint to evaluate was known when training was over"


def test_what_was_copied_beside_a_golden_checkpoint_is_recorded_before_it(archived: Any, ended: Ended) -> None:
    (kind, data), _ = archived(Judged(sha256=GAUGE), {"step": 60, "copied": dict(COPIED)})
    assert (kind, data) == ("archive.verified", {"step": 60})
    assert ended.recorded == [("archive.unproven", COPIED)]


def test_a_failed_copy_beside_a_golden_checkpoint_fails_the_archive_by_its_own_name(
    archived: Any, ended: Ended
) -> None:
    found = {"unproven": "AccessDenied", "step": 60, "part": "the copy of what else the job left"}
    (kind, data), _ = archived(Judged(sha256=GAUGE), found)
    assert kind == "archive.failed"
    assert data == {"error": "AccessDenied", "step": 60, "part": "the copy of what else the job left"}
