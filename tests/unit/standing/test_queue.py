"""A gang in a queue of an existing cluster: its manifest, the rights to hear of it, and what `check --online` asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ApiError
from pydantic import ValidationError

from infra.cluster.standing import placing
from infra.plan.checks import Finding, Level
from infra.plan.standing_facts import SeenCluster, SeenNode, SeenQueue
from infra.spec.standing import StandingCluster
from infra.standing.look import look_at_queue
from infra.standing.openings import health_gang, openings
from infra.standing.rights import rights
from tests.unit.standing.conftest import SPEC, Standing, bent
from tests.unit.standing.test_standing_spec import WORKLOAD

Found = Callable[..., dict[str, Finding]]
CLUSTER: dict[str, Any] = yaml.safe_load(SPEC.read_text())["cluster"]
LEAF = "topology.k8s.aws/network-node-layer-3"
KUEUE = "kueue.x-k8s.io"


def cluster(**changes: Any) -> StandingCluster:
    return StandingCluster.model_validate(bent(CLUSTER, changes))


def gang(standing: Standing, **changes: Any) -> dict[str, Any]:
    return placing.gang(health_gang(standing().spec), cluster(**changes))


def template(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return found


def test_a_gang_in_a_queue_begins_suspended_with_its_queue_and_priority(standing: Standing) -> None:
    document = gang(standing, queue="team-a", priority="high")
    assert document["spec"]["suspend"] is True
    assert (
        document["metadata"]["labels"] | {f"{KUEUE}/queue-name": "team-a", f"{KUEUE}/priority-class": "high"}
        == (document["metadata"]["labels"])
    )
    # Kueue would queue such pods one by one.
    assert not any(name.startswith(KUEUE) for name in template(document)["metadata"]["labels"])


def test_a_gang_without_a_queue_is_as_before(standing: Standing) -> None:
    document = gang(standing)
    assert "suspend" not in document["spec"] and KUEUE not in str(document)
    assert "podAffinity" not in template(document)["spec"]["affinity"]


@pytest.mark.parametrize(("required", "word"), [(True, "required"), (False, "preferred")])
def test_one_leaf_is_asked_of_kueue_or_else_of_the_scheduler(required: bool, word: str, standing: Standing) -> None:
    topology = {"label": LEAF, "required": required}
    queued = template(gang(standing, queue="team-a", topology=topology))
    assert queued["metadata"]["annotations"] == {f"{KUEUE}/podset-{word}-topology": LEAF}
    assert "podAffinity" not in queued["spec"]["affinity"]
    alone = template(gang(standing, topology=topology))
    assert "annotations" not in alone["metadata"]
    (rule,) = alone["spec"]["affinity"]["podAffinity"][f"{word}DuringSchedulingIgnoredDuringExecution"]
    term = rule if required else rule["podAffinityTerm"]
    assert term["topologyKey"] == LEAF and term["labelSelector"]["matchLabels"]["bivouac.dev/campaign"] == "on-racks"
    assert "podAntiAffinity" in alone["spec"]["affinity"]


def test_a_priority_without_a_queue_is_refused() -> None:
    with pytest.raises(ValidationError, match="give `queue`"):
        cluster(priority="high")


def test_a_spec_without_a_queue_keeps_its_digest() -> None:
    assert not {"queue", "priority", "topology"} & cluster().model_dump(mode="json").keys()


def kueues(standing: Standing, **changes: Any) -> list[tuple[Any, ...]]:
    spec = standing({f"cluster.{name}": value for name, value in changes.items()}).spec
    assert spec.cluster is not None
    return [
        (right.account, right.resources, right.verbs, right.names, right.everywhere)
        for right in rights(spec, spec.cluster)
        if right.group == KUEUE
    ]


def test_the_grant_of_a_queue_lets_one_look_and_change_nothing(standing: Standing) -> None:
    look = ("get", "list", "watch")
    assert kueues(standing) == []
    assert kueues(standing, queue="team-a", priority="high") == [
        ("driver", ("localqueues",), ("get",), ("team-a",), False),
        ("driver", ("workloads",), look, (), False),
        ("driver", ("clusterqueues",), ("get",), (), True),
        ("driver", ("workloadpriorityclasses",), ("get",), ("high",), True),
        ("steward", ("workloads",), look, (), False),
    ]


@pytest.mark.parametrize(
    ("queue", "detail", "cure"),
    [
        (SeenQueue(absent='localqueues "x" not found'), '"x" not found', "kubectl get localqueues"),
        (SeenQueue(inactive="ClusterQueue gpus: FlavorNotFound"), "FlavorNotFound", "every gang waits"),
        (SeenQueue(uncovered=("rdma/hca, of cpu, nvidia.com/gpu",)), "rdma/hca", "coveredResources"),
        (SeenQueue(short=("h100: 16 nvidia.com/gpu of 32",)), "16 nvidia.com/gpu of 32", "fewer nodes"),
        (SeenQueue(borrowed=("h100: 16 nvidia.com/gpu of 32",)), "16 nvidia.com/gpu of 32", "raise nominalQuota"),
        (SeenQueue(checks=("approval", "nodes")), "approval, nodes", "bivouac status"),
    ],
)
def test_what_a_queue_says_becomes_a_finding(queue: SeenQueue, detail: str, cure: str, found: Found) -> None:
    fit = tuple(SeenNode(name=f"rack-{number}", obstacle="") for number in range(4))
    seen_cluster = SeenCluster(user="ada", nodes=fit, queue=queue)
    (finding,) = found(facts=lambda facts: facts.model_copy(update={"cluster": seen_cluster})).values()
    assert (finding.rule, finding.field) == ("open-queue", "cluster.queue")
    assert detail in finding.seen and cure in finding.cure
    # Kueue may pass over a resource, and its own configuration no tenant can read; a loan and a check may go well.
    is_gap = bool(queue.absent or queue.inactive or queue.short)
    assert finding.level == (Level.ERROR if is_gap else Level.WARNING if queue.uncovered else Level.INFO)


@pytest.mark.parametrize(
    ("launcher", "queue", "is_refused"), [("mpirun", "q", True), ("none", "q", False), ("mpirun", None, False)]
)
def test_a_job_by_mpirun_in_a_queue_is_refused(
    launcher: str, queue: str | None, is_refused: bool, found: Found
) -> None:
    """Its MPIJob would not be suspended, and would take nodes past the queue."""
    job = dict(WORKLOAD["workload"] or {}) | {
        "launcher": launcher,
        "image": f"registry.example.org/ml/job@sha256:{'0' * 64}",
    }
    findings = found(WORKLOAD | {"workload": job, **({"cluster.queue": queue} if queue else {})})
    assert ("queued-launcher cluster.queue" in findings) is is_refused


@pytest.mark.parametrize(
    ("min_nodes", "queue", "is_refused"), [(1, "q", True), (2, "q", False), (None, "q", False), (1, None, False)]
)
def test_a_gang_that_may_grow_waits_in_no_queue(
    min_nodes: int | None, queue: str | None, is_refused: bool, found: Found
) -> None:
    """For the larger gang it gives up the quota of the smaller one, and waits behind others."""
    findings = found({"nodes.count": 2, "recovery.min_nodes": min_nodes, **({"cluster.queue": queue} if queue else {})})
    assert ("queued-growth recovery.min_nodes" in findings) is is_refused


class Server:
    """An API server with these objects, by kind."""

    def __init__(self, **objects: dict[str, Any]) -> None:
        self.objects = objects

    def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        request = httpx2.Request("GET", "https://racks")
        resource = kind._api_info.resource.kind
        if not self.objects:
            answer = httpx2.Response(404, request=request)
            raise httpx2.HTTPStatusError("404 page not found", request=request, response=answer)
        if resource not in self.objects:
            status = {"code": 404, "message": f'{resource} "{name}" not found', "status": "Failure"}
            raise ApiError(request=request, response=httpx2.Response(404, json=status, request=request))
        return kind.from_dict(self.objects[resource])


ACTIVE = {"conditions": [{"type": "Active", "status": "True"}]}
LOCAL = {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "gpus"}, "status": ACTIVE}
QUOTA = {"cpu": "10", "nvidia.com/gpu": "32", "rdma/hca": "32"}


def queue(status: Any = ACTIVE, quota: dict[str, str] = QUOTA, **spec: Any) -> dict[str, Any]:
    resources = [{"name": name, "nominalQuota": count} for name, count in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": "h100", "resources": resources}]}
    return {"metadata": {"name": "gpus"}, "spec": {"resourceGroups": [group], **spec}, "status": status}


def looked(
    standing: Standing, server: Server, overhead: Mapping[str, Decimal] = MappingProxyType({}), **changes: Any
) -> SeenQueue | None:
    fields = {"queue": "team-a", **changes}
    spec = standing({f"cluster.{name}": value for name, value in fields.items()}).spec
    assert spec.cluster is not None
    documents = [document for _, document in openings(spec, spec.cluster)]
    return look_at_queue(server, spec.cluster, documents, overhead)  # type: ignore[arg-type]


def test_a_queue_with_room_lacks_nothing(standing: Standing) -> None:
    server = Server(LocalQueue=LOCAL, ClusterQueue=queue())
    assert looked(standing, server) == SeenQueue()
    assert looked(standing, server, queue=None) is None


@pytest.mark.parametrize(
    ("server", "field", "words"),
    [
        (Server(), "absent", "no Kueue"),
        (Server(ClusterQueue=queue()), "absent", 'LocalQueue "team-a" not found'),
        (Server(LocalQueue=LOCAL), "absent", 'ClusterQueue "gpus" not found'),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue({})), "inactive", "has not said"),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue(stopPolicy="Hold")), "inactive", "gpus: its stopPolicy is Hold"),
        (Server(LocalQueue={**LOCAL, "spec": {"clusterQueue": "gpus", "stopPolicy": "Hold"}}, ClusterQueue=queue()),
         "inactive", "LocalQueue team-a: its stopPolicy is Hold"),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue(
            {"conditions": [{"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "h100"}]})),
         "inactive", "gpus: FlavorNotFound: h100"),
        (Server(LocalQueue=LOCAL | {"status": {"conditions": [
            {"type": "Active", "status": "False", "reason": "ClusterQueueIsInactive", "message": "no new workloads"}]}},
            ClusterQueue=queue({"conditions": [
                {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "h100"}]})),
         "inactive", "gpus: FlavorNotFound: h100"),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue(quota={"cpu": "9", "nvidia.com/gpu": "32"})), "uncovered",
         "rdma/hca, of cpu, nvidia.com/gpu"),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue(quota=QUOTA | {"rdma/hca": "8"})), "short",
         "h100: 8 rdma/hca of 32"),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue(quota=QUOTA | {"rdma/hca": "8"}, cohortName="all")), "borrowed",
         "h100: 8 rdma/hca of 32"),
        (Server(LocalQueue=LOCAL, ClusterQueue=queue(
            admissionChecksStrategy={"admissionChecks": [{"name": "approval"}]})), "checks", "approval"),
    ],
)  # fmt: skip
def test_a_look_says_what_the_queue_lacks(server: Server, field: str, words: str, standing: Standing) -> None:
    seen = looked(standing, server)
    assert seen is not None and words in str(getattr(seen, field))
    assert [name for name, value in seen if value] == [field]


def test_what_a_runtime_class_takes_beside_each_pod_counts_against_the_quota(standing: Standing) -> None:
    """As Kueue counts it: four pods of 100m, with 3 cores beside each."""
    server = Server(LocalQueue=LOCAL, ClusterQueue=queue())
    seen = looked(standing, server, overhead={"cpu": Decimal(3)})
    assert seen == SeenQueue(short=("h100: 10 cpu of 12.4",))


def test_a_priority_that_is_not_there_is_told(standing: Standing) -> None:
    server = Server(LocalQueue=LOCAL, ClusterQueue=queue())
    seen = looked(standing, server, priority="high")
    assert seen is not None and 'WorkloadPriorityClass "high" not found' in seen.absent
