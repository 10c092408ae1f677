"""What an admin configures in Kueue itself: fair shares of a cohort, and the deletion of what Kueue has stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client

from infra.cluster import attempts
from infra.cluster.kubernetes import JobSet, prepare_models
from infra.cluster.standing.queueing import VANISHED
from infra.record.store import LIVE, CampaignStore
from infra.rehearsal.aws.world import World
from infra.spec.campaign import Spec
from infra.steward.seeing import committed
from tests.rehearsal.aws_account import signed_in
from tests.worlds.control_plane import client, config, plane
from tests.worlds.standing.kubelets import Kubelets
from tests.worlds.standing.queue import KUEUE, SPACE, Approval, Queued, cluster_queue, queued
from tests.worlds.standing.steward import run_steward, spec_at

__all__ = ["client", "config", "plane", "queued"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid", tools=("kueue",))]
BUCKET = "training-queued"


@pytest.fixture(scope="session")
def kueue_settings() -> dict[str, Any]:
    return {
        "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
        "objectRetentionPolicies": {"workloads": {"afterDeactivatedByKueue": "1s"}},
    }


@pytest.fixture
def gangs(queued: Queued) -> Iterator[Queued]:
    prepare_models()
    yield queued
    queued.remove(*queued.numbers)


def shared(name: str, weight: int) -> list[dict[str, Any]]:
    """A tenant's queue without a GPU of its own, for as much of the cohort's as its weight is worth."""
    preemption = {"reclaimWithinCohort": "Any"}
    return cluster_queue(
        name, "any", gpus=0, cohortName="shares", preemption=preemption, fairSharing={"weight": str(weight)}
    )


def test_a_queue_above_its_fair_share_gives_it_up_and_one_at_its_share_gets_no_more(gangs: Queued) -> None:
    """Room for four gangs; of them three are one tenant's share, and one is the other's."""
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": "64"}]
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "any", "resources": resources}]}
    cohort = {**KUEUE, "kind": "Cohort", "metadata": {"name": "shares"}, "spec": {"resourceGroups": [group]}}
    gangs.make(cohort, *shared("heavy", 3), *shared("light", 1))
    for number in (1, 2, 3, 4):
        gangs.launch(f"heavy-{number}", "heavy", priority="low" if number == 4 else "high")
        gangs.await_state(f"heavy-{number}", "admitted")
    gangs.launch("light-1", "light", priority="low")
    gangs.await_state("light-1", "admitted")
    assert gangs.await_state("heavy-4", "evicted").reason == "InCohortFairSharing"
    assert "its queue held more than its fair share of the cohort" in gangs.words("heavy-4")
    gangs.launch("light-2", "light", priority="high")
    gangs.await_state("light-2", "waiting")
    assert "the gang waits for quota: Pending" in gangs.words("light-2")
    assert [gangs.words(f"heavy-{number}") for number in (1, 2, 3)] == [""] * 3
    # What a tenant does not use is anybody's again.
    gangs.await_pods("light-1")
    gangs.end("light-1", "Succeeded")
    gangs.await_state("light-2", "admitted")
    assert gangs.place("heavy-4").state == "evicted"


class StrictApproval(Kubelets):
    """Kubelets beside who approves gangs: each once the steward has said that it waits, and the first no more once it
    runs."""

    def __init__(self, admin: Client, folder: Path, spec: Spec, approval: Approval, store: CampaignStore) -> None:
        self.approval, self.store = approval, store
        self.approved: list[str] = []
        super().__init__(admin, folder, spec.campaign)

    def turn(self) -> None:
        super().turn()
        if "approval is Pending" in str((self.store.get_json(LIVE) or {}).get("why", "")):
            for workload in self.approval.pending():
                self.approval.decide(workload, "Ready")
                self.approved.append(workload)

    def first_gang_runs(self, nodes: set[str]) -> None:
        self.approval.decide(self.approved[0], "Rejected")


def test_an_attempt_that_kueue_stops_and_deletes_is_interrupted_and_the_next_queues_anew(
    gangs: Queued, world: World, aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = Approval(gangs, "approval")
    approval.make()
    approval.stand_ready()
    gangs.make(*cluster_queue("retained", "any", admissionChecksStrategy={"admissionChecks": [{"name": "approval"}]}))
    signed_in(monkeypatch, world)
    monkeypatch.setattr(committed, "SHARED_CHECKPOINTS", str(tmp_path))
    aws.s3.create_bucket(Bucket=BUCKET)
    spec = spec_at(world.endpoint_url, BUCKET)
    assert spec.cluster is not None
    spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"queue": "retained"})})
    store = CampaignStore(aws.s3, BUCKET, spec.campaign, "reader", f"{spec.bucket_root}campaigns/{spec.campaign}")
    kubelets = StrictApproval(gangs.admin, tmp_path, spec, approval, store)
    try:
        events = run_steward(spec, BUCKET, aws.s3, gangs.steward)
    finally:
        kubelets.stop()
    (ended, *_) = (event.payload for event in events if event.kind == "attempt.ended")
    assert ended.failure == "interrupted"  # type: ignore[attr-defined]
    assert ended.detail == VANISHED  # type: ignore[attr-defined]
    assert len(set(kubelets.approved)) == 2, "each attempt had a Workload of its own, and waited in it"
    assert set(kubelets.gangs) == {"1", "2"}
    (finished,) = (event.payload for event in events if event.kind == "training.finished")
    assert finished.outcome == "done"  # type: ignore[attr-defined]
    for name in attempts.jobs(gangs.steward, JobSet, spec.campaign).values():
        gangs.admin.delete(JobSet, name, namespace=SPACE)
