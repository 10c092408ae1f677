"""A steward in a cluster of somebody's: its gangs come to borrowed nodes, and no node is changed or ended."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User

from infra.record.events import Event
from infra.rehearsal.aws.world import World
from infra.steward.seeing import committed
from tests.rehearsal.aws_account import signed_in
from tests.rehearsal.fake_kubernetes import FakeKubernetes
from tests.worlds.standing.steward import ARCHIVED, commit, run_steward, spec_at
from trainer.contract import ExitCode

SPACE, OTHERS = "team-a", "team-b"
LABELS = {"gpu": "h100"}
RACKS = tuple(f"rack-{number}" for number in range(1, 6))
numbers = itertools.count(1)


def rack(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": "8", "rdma/hca": "8"},
        },
    }


class Racks:
    """Four nodes for two pods, one of another kind, another tenant's pod, and controllers that place a gang."""

    def __init__(self, world: World, shared: Path, bucket: str) -> None:
        self.shared, self.bucket = shared, bucket
        self.ends: dict[str, int] = {}
        """Node -> exit code of each pod that comes to it; of all others it is 0."""
        self.api = FakeKubernetes(
            lambda: [rack(name, LABELS if name != "rack-5" else {"gpu": "a100"}) for name in RACKS]
        )
        self.stranger = {"metadata": {"name": "theirs", "namespace": OTHERS, "labels": {"app": "theirs"}}}
        self.api.objects["v1", "pods", OTHERS, "theirs"] = copy.deepcopy(self.stranger)
        self.api.created = self.created
        self.jobs: list[dict[str, Any]] = []
        self.spec = spec_at(world.endpoint_url, bucket)

    def created(self, document: dict[str, Any]) -> None:
        """What the controllers make of a new object, at once."""
        if document.get("kind") == "Job":
            self.jobs.append(document)
            self._pod("archive-0", document, 0, 0, None, ARCHIVED)
            document["status"] = {"succeeded": 1}
        if document.get("kind") == "JobSet":
            self.jobs.append(document)
            commit(self.shared, self.spec.campaign)
            size = document["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"]
            for index, node in enumerate(self.allowed(document)[:size]):
                name = f"{document['metadata']['name']}-{index}"
                self._pod(name, document, index, self.ends.get(node, 0), node, "")

    def allowed(self, document: dict[str, Any]) -> list[str]:
        """Nodes that the scheduler may choose for a pod of this gang, by its labels and its affinity."""
        pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        affinity = pod["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        (term,) = affinity.get("nodeSelectorTerms", [{"matchFields": []}])
        barred = {name for field in term["matchFields"] for name in field["values"] if field["operator"] == "NotIn"}
        assert all(field["key"] == "metadata.name" and len(field["values"]) == 1 for field in term["matchFields"])
        nodes = [node["metadata"] for node in self.api.nodes()]
        items = pod["nodeSelector"].items()
        return [node["name"] for node in nodes if items <= node["labels"].items() and node["name"] not in barred]

    def _pod(self, name: str, owner: dict[str, Any], index: int, code: int, node: str | None, message: str) -> None:
        space, labels = owner["metadata"]["namespace"], owner["metadata"]["labels"]
        ended = {"name": "trainer", "image": "", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": {"exitCode": code, "message": message}}}  # fmt: skip
        note = {"batch.kubernetes.io/job-completion-index": str(index)}
        self.api.objects["v1", "pods", space, name] = {
            "metadata": {"name": name, "namespace": space, "labels": labels, "annotations": note},
            "spec": {"containers": [], **({"nodeName": node} if node else {})},
            "status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]},
        }

    def steward(self, s3: Any) -> tuple[Event, ...]:
        """One steward to its end; the record that it leaves."""
        kube = KubeConfig.from_one(
            cluster=Cluster(server=self.api.endpoint, insecure=True), user=User(), context_name="racks"
        )
        client = Client(config=kube, namespace=SPACE, field_manager="steward", trust_env=False)
        return run_steward(self.spec, self.bucket, s3, client)


@pytest.fixture
def racks(world: World, aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Racks]:
    signed_in(monkeypatch, world)
    monkeypatch.setattr(committed, "SHARED_CHECKPOINTS", str(tmp_path))
    bucket = f"training-{next(numbers)}"
    aws.s3.create_bucket(Bucket=bucket)
    made = Racks(world, tmp_path, bucket)
    yield made
    made.api.stop()


def kinds(events: tuple[Event, ...]) -> list[str]:
    return [str(event.kind) for event in events]


def test_a_gang_trains_on_borrowed_nodes_and_is_archived(racks: Racks, aws: Any) -> None:
    events = racks.steward(aws.s3)
    assert "training.finished" in kinds(events) and "archive.verified" in kinds(events)
    assert {job["metadata"]["namespace"] for job in racks.jobs} == {SPACE}
    assert racks.api.patches == {} and racks.api.objects["v1", "pods", OTHERS, "theirs"] == racks.stranger
    assert {key[2] for key in racks.api.objects if key[3] != "theirs"} == {SPACE}
    keys = [item["Key"] for item in aws.s3.list_objects_v2(Bucket=racks.bucket)["Contents"]]
    assert keys and all(key.startswith("bivouac/campaigns/on-racks/") for key in keys)


@pytest.mark.parametrize("sick", [("rack-1",), ("rack-1", "rack-2")])
def test_nodes_that_compute_wrongly_are_left_out_by_one_decision_and_spare_ones_taken(
    sick: tuple[str, ...], racks: Racks, aws: Any
) -> None:
    racks.ends = dict.fromkeys(sick, int(ExitCode.SICK))
    events = racks.steward(aws.s3)
    first, second = (job for job in racks.jobs if job["kind"] == "JobSet")
    usable = ["rack-1", "rack-2", "rack-3", "rack-4"]
    assert racks.allowed(first) == usable and racks.allowed(second) == [name for name in usable if name not in sick]
    given_up = tuple(event.payload.node for event in events if event.kind == "node.quarantined")  # type: ignore[attr-defined]
    assert given_up == sick
    # They answer, and what computed wrongly never comes back.
    assert not any(event.payload.died for event in events if event.kind == "node.quarantined")  # type: ignore[attr-defined]
    assert [str(event.payload.action) for event in events if event.kind == "decision"].count("replace") == 1  # type: ignore[attr-defined]
    assert racks.api.patches == {}
    assert "training.finished" in kinds(events)


def test_with_no_spare_node_left_the_gang_goes_on_with_those_that_are_there(racks: Racks, aws: Any) -> None:
    recovery = racks.spec.recovery.model_copy(update={"min_nodes": 1, "spare_timeout": timedelta(seconds=1)})
    racks.spec = racks.spec.model_copy(update={"recovery": recovery})
    racks.ends = dict.fromkeys(("rack-1", "rack-2", "rack-3"), int(ExitCode.SICK))
    events = racks.steward(aws.s3)
    gangs = [job["spec"]["replicatedJobs"][0]["template"]["spec"] for job in racks.jobs if job["kind"] == "JobSet"]
    assert [gang["completions"] for gang in gangs] == [2, 2, 1]
    (resized,) = [event.payload.data() for event in events if event.kind == "gang.resized"]
    assert (resized["attempt"], resized["previous_nodes"], resized["nodes"], resized["of"]) == (3, 2, 1, 2)
    (finished,) = [event.payload.data() for event in events if event.kind == "training.finished"]
    assert finished["outcome"] == "done" and racks.api.patches == {}
