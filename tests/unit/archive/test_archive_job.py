"""The archive's Job over Kubernetes in memory: what it asks for, when it has ended, and what is told of its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError

from infra.archive import archive_job
from infra.archive.settings import ArchiveConfig
from infra.errors import PermanentError
from tests.unit.archive.archive_kubernetes import (
    CONFIG,
    NOON,
    VERDICT,
    Clock,
    Kubernetes,
    bounds,
    clock,
    kube,
    pod,
    run,
)

__all__ = ["clock", "kube"]


def test_a_job_is_made_watched_and_its_verdict_read(kube: Kubernetes) -> None:
    followed: list[str] = []

    def pending() -> None:
        kube.pods = [pod("archive-1", "Pending")]

    def running() -> None:
        kube.pods = [pod("archive-1", "Running")]

    def done() -> None:
        assert followed == ["archive-1"], "a pod that waits for a node has no log"
        kube.succeeds()

    kube.later = [pending, running, done]
    assert run(kube, followed) == VERDICT
    assert kube.config is not None and ArchiveConfig.model_validate_json(kube.config["archive.json"]) == CONFIG
    assert kube.config["train.json"] == '{"steps": 100}'
    assert "delete job" not in kube.calls


def test_a_job_that_is_there_already_is_watched_and_not_made_twice(kube: Kubernetes) -> None:
    kube.job = {**archive_job.manifest(CONFIG, "i", 8), "status": {"succeeded": 1}}
    kube.pods = [pod("archive-1", "Succeeded", json.dumps(VERDICT))]
    assert run(kube) == VERDICT and "delete job" not in kube.calls


def test_what_kubernetes_refuses_is_an_error(kube: Kubernetes) -> None:
    for call in ("create config", "create job", "get job"):
        kube.refuses = {call: 403}
        with pytest.raises(ApiError):
            run(kube)


def test_a_line_that_breaks_is_told_as_it_is(kube: Kubernetes, clock: Clock) -> None:
    for call in ("create job", "get job"):
        kube.cut = (call,)
        with pytest.raises(ConnectionError):
            run(kube)
    kube.cut = ("delete job",)
    kube.job = {**archive_job.manifest(CONFIG, "old", 8), "status": {"failed": 3}}
    with pytest.raises(ConnectionError):
        run(kube)


def test_every_pod_that_has_begun_is_followed(kube: Kubernetes) -> None:
    followed: list[str] = []

    def two() -> None:
        kube.pods = [pod("archive-1", "Failed"), pod("archive-2", "Pending"), pod("archive-3", "Running")]

    def done() -> None:
        assert followed == ["archive-1", "archive-3"]
        kube.succeeds("archive-3", failed=1)

    kube.later = [two, done]
    assert run(kube, followed) == VERDICT


def test_a_steward_that_lost_its_lease_makes_no_job_and_watches_none(kube: Kubernetes) -> None:
    def lost() -> None:
        raise RuntimeError("another steward has the lease")

    with pytest.raises(RuntimeError):
        run(kube, guard=lost)
    assert kube.calls == []
    asked: list[int] = []

    def lost_later() -> None:
        asked.append(1)
        if len(asked) > 2:
            lost()

    kube.later = [lambda: None]
    with pytest.raises(RuntimeError):
        run(kube, guard=lost_later)


@pytest.mark.parametrize("failed", [1, 2])
def test_a_try_that_failed_is_no_end_and_the_third_is(kube: Kubernetes, failed: int) -> None:
    def fails(count: int) -> Callable[[], None]:
        def now() -> None:
            kube.status(failed=count)
            kube.pods = [
                pod("archive-2", "Failed", "the second", "2026-11-22T12:00:02Z"),
                pod("archive-3", "Failed", "the last word" + "." * 500, None),
                pod("archive-1", "Failed", "the first", "2026-11-22T12:00:01Z"),
            ]

        return now

    kube.later = [fails(failed), fails(3)]
    with pytest.raises(PermanentError, match="the archive failed") as told:
        run(kube)
    assert told.value.seen == "." * 500 and kube.later == []
    assert kube.job is not None and kube.job["status"] == {"failed": 3}, "its pods stay to be looked at"
    assert kube.job["spec"]["backoffLimit"] == 2, "the first try and two more"


def test_the_last_to_end_has_the_last_word_and_no_pod_none(kube: Kubernetes) -> None:
    def failed(*pods: dict[str, Any]) -> str:
        kube.job, kube.pods = None, list(pods)
        kube.later = [lambda: kube.status(failed=3)]
        with pytest.raises(PermanentError) as told:
            run(kube)
        return str(told.value.seen)

    early = pod("archive-1", "Failed", "first", "2026-11-22T12:00:01Z")
    late = pod("archive-2", "Failed", "second", "2026-11-22T12:00:02Z")
    assert failed(late, early) == failed(early, late) == "second"
    assert failed() == failed(pod("archive-1", "Pending")) == "no message"
    assert failed(early, {**pod("archive-2", "Failed"), "status": None}) == "first"
    early["status"]["containerStatuses"] += late["status"]["containerStatuses"]
    assert failed(early) == "second", "a container beside the archive's hides no verdict"


def test_a_success_whose_pod_is_gone_says_so(kube: Kubernetes) -> None:
    kube.later = [lambda: kube.status(succeeded=1, failed=1)]
    kube.pods = [pod("archive-1", "Failed", "no verdict", "2026-11-22T12:00:01Z")]
    with pytest.raises(PermanentError, match="its pod is gone"):
        run(kube)


def test_a_failed_try_beside_the_one_that_succeeded_has_no_verdict(kube: Kubernetes) -> None:
    kube.later = [lambda: kube.status(succeeded=1, failed=1)]
    failed = pod("archive-1", "Failed", "not json", "2026-11-22T12:00:01Z")
    kube.pods = [failed, pod("archive-2", "Succeeded", json.dumps(VERDICT), "2026-11-22T12:00:05Z")]
    assert run(kube) == VERDICT


@pytest.mark.parametrize("at_once", [True, False])
def test_a_job_that_used_up_its_tries_makes_way_for_a_new_one(kube: Kubernetes, at_once: bool) -> None:
    kube.job = {**archive_job.manifest(CONFIG, "old", 8), "status": {"failed": 3}}
    kube.leaves_at_once = at_once

    def done() -> None:
        assert kube.job is not None and "old" not in json.dumps(kube.job)
        kube.succeeds()

    kube.later = [lambda: None, done] if at_once else [lambda: None, kube.vanishes, done]
    assert run(kube) == VERDICT
    assert "delete job" in kube.calls[: kube.calls.index("create job")]


def test_a_job_that_is_on_its_way_out_is_waited_for_and_not_taken_for_ours(kube: Kubernetes) -> None:
    old = archive_job.manifest(CONFIG, "old", 8)
    kube.job = {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-11-22T12:00:00Z"}, "status": {}}

    kube.later = [kube.vanishes, kube.succeeds]
    assert run(kube) == VERDICT and "delete job" not in kube.calls


def test_a_failed_try_of_a_job_that_goes_on_is_left_alone(kube: Kubernetes) -> None:
    kube.job = {**archive_job.manifest(CONFIG, "old", 8), "status": {"failed": 2, "active": 1}}

    kube.later = [lambda: kube.succeeds("archive-3", failed=2)]
    assert run(kube) == VERDICT and "delete job" not in kube.calls


def test_the_bounds_on_paper() -> None:
    at = bounds()
    assert at.over(False, 600) is None and at.over(True, 4200) is None
    assert "found no GPU node within 0:10:00" in str(at.over(False, 600.1))
    assert "did not end within 1:10:00" in str(at.over(True, 4200.1))
    assert at.over(True, 600.1) is None, "from its start it has an hour more"
    late = bounds(now=lambda: NOON + timedelta(seconds=1))
    assert (
        late.over(False, 0)
        == late.over(True, 0)
        == ("the archive did not end by the deadline, 2026-11-22T12:00:00+00:00")
    )


def test_by_itself_a_bound_looks_at_the_clock() -> None:
    now = datetime.now(UTC)
    made = archive_job.Bounds(timedelta(1), timedelta(1), now - timedelta(seconds=1), "")
    assert made.over(False, 0) is not None
    assert archive_job.Bounds(timedelta(1), timedelta(1), now + timedelta(days=1), "").over(False, 0) is None


@pytest.mark.parametrize("begun", [False, True])
def test_a_job_beyond_its_bound_is_removed_and_its_pods_state_told(kube: Kubernetes, clock: Clock, begun: bool) -> None:
    def waits(seconds: float) -> Callable[[], None]:
        def now() -> None:
            clock.at = 1000.0 + seconds
            kube.pods = [
                pod("archive-1", "Running" if begun else "Pending"),
                pod("archive-2", "Pending", why="0/4 nodes are available"),
            ]

        return now

    last = 4200 if begun else 600
    kube.later = [waits(300), waits(last), waits(last + 1)]
    with pytest.raises(PermanentError, match="did not end within" if begun else "found no GPU node") as told:
        run(kube)
    assert kube.later == [] and kube.job is None and told.value.cure == "by hand"
    state = "Running" if begun else "Pending"
    assert told.value.seen == f"archive-1 {state}; archive-2 Pending: 0/4 nodes are available"


def test_what_is_told_of_many_pods_is_of_a_bearable_length(kube: Kubernetes, clock: Clock) -> None:
    def late() -> None:
        clock.at += 601
        kube.pods = [
            {**pod("silent", ""), "status": None},
            *(pod(f"archive-{n}", "Pending", why="?" * 99) for n in range(9)),
        ]

    kube.later = [late]
    with pytest.raises(PermanentError) as told:
        run(kube)
    seen = str(told.value.seen)
    assert seen.startswith("silent unknown; archive-0 Pending: ?") and 400 < len(seen) <= 500


def test_a_job_that_ended_or_was_taken_away_at_its_bound_is_no_other_error(kube: Kubernetes, clock: Clock) -> None:
    def taken() -> None:
        kube.job, clock.at = None, 1601.0

    kube.later = [taken]
    with pytest.raises(PermanentError, match="found no GPU node") as told:
        run(kube)
    assert told.value.seen == "its Job has no pod"

    def ends() -> None:
        clock.at += 601
        kube.succeeds()

    kube.later = [ends]
    assert run(kube) == VERDICT, "what succeeded in the end is no failure"
    kube.job, kube.pods, kube.refuses = None, [], {"delete job": 403}

    def late() -> None:
        clock.at += 601

    kube.later = [late]
    with pytest.raises(ApiError):
        run(kube)


def test_the_job_runs_on_a_gpu_node_as_nobody_with_the_rights_of_the_archive_alone() -> None:
    job = archive_job.manifest(CONFIG, "image@sha256:1", 8)
    labels = {"bivouac.dev/campaign": "tiny", "bivouac.dev/role": "archive"}
    assert job["metadata"] == {"name": "archive", "namespace": "campaign", "labels": labels}
    assert job["spec"]["template"]["metadata"]["labels"] == labels
    spec = job["spec"]["template"]["spec"]
    assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("Never", "archive")
    assert spec["automountServiceAccountToken"] is False and "gpu" in json.dumps(spec["nodeSelector"])
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    (room,), (container,) = spec["initContainers"], spec["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container["command"] == ["python", "-m", "infra.archive.archive"]
    assert room["image"] == container["image"] == "image@sha256:1"
    # Root makes a folder that anyone may write into on the node's disk; it sees nothing else.
    assert room["command"] == ["install", "-d", "-m", "1777", "/local-checkpoints/.archive"]
    assert [mount["name"] for mount in room["volumeMounts"]] == ["local"]
    assert (room["securityContext"]["runAsUser"], room["securityContext"]["runAsNonRoot"]) == (0, False)
    for each in (room, container):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    data = next(mount for mount in container["volumeMounts"] if mount.get("subPath") == "data")
    assert data["readOnly"] is True


def test_without_a_gpu_node_the_shared_tier_is_the_way() -> None:
    spec: Any = SimpleNamespace(campaign="tiny")
    assert "bivouac checkpoints restore tiny FOLDER --tier shared" in archive_job.out_of_cluster(spec)
