"""The objects of a campaign in the namespace of an existing cluster: their kinds, and what proves whose each is.

A label proves it. What a controller makes of a labelled object has another proof: the label in its pods' template, or
an owner under a name that only the campaign gives.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Node, PersistentVolumeClaim, Pod, Service

from infra.campaign.proving import LONGEST_NAME
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import JobSet, MPIJob, or_none
from infra.cluster.standing import pod_groups
from infra.cluster.standing.borrowed import not_ready, obstacles, ready_condition
from infra.cluster.standing.queueing import Workload
from infra.errors import first_line
from infra.record.payloads.attempts import AttemptRunning, NodeQuarantined
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster

Object = dict[str, Any]
_OWNERS = frozenset({"JobSet", "MPIJob"})
"""Kinds whose controllers give neither label nor template to all that they make."""

POD_GROUPS = f"{pod_groups.PLURAL}.{pod_groups.GROUP}"
"""Their resource is the version that the cluster serves, if it serves any."""
PROTECTED = frozenset({"persistentvolumeclaims", POD_GROUPS})
"""Kinds that Kubernetes keeps while any pod names them."""
NO_SUCH_NODE = "the cluster has no such node any more"


@dataclass(frozen=True)
class Tenant:
    """A campaign in its namespace, and how its driver passes the time."""

    client: Client
    """Of the namespace, with the rights of the driver."""
    store: CampaignStore
    spec: Spec
    pause: Callable[[], None]
    """Called between two looks."""
    guard: Callable[[], None] = lambda: None
    """Called before each change; raises when the driver has lost its lease."""
    say: Callable[[str], None] = lambda words: None
    """Tells people what is waited for."""
    now: Callable[[], float] = time.monotonic
    """Seconds of a clock that only goes forward."""

    @property
    def campaign(self) -> str:
        return self.spec.campaign

    @property
    def cluster(self) -> StandingCluster:
        assert self.spec.cluster is not None, "a campaign of another target is no tenant"
        return self.spec.cluster


class OwnKind(NamedTuple):
    """A kind of object that the campaign makes, or a controller on its behalf."""

    word: str
    """Plural and group, as the grant names them."""
    resource: Any
    has_label: bool = True
    """The driver and the steward make it, with the campaign's label. Else a controller does, and it goes with its
    owner."""


def own_kinds(spec: Spec, cluster: StandingCluster) -> tuple[OwnKind, ...]:
    """Return the kinds in the order of their removal: who makes others first, what others read last."""
    mpi = [OwnKind("mpijobs.kubeflow.org", MPIJob)] if spec.runtime.by_mpirun else []
    queue = [OwnKind("workloads.kueue.x-k8s.io", Workload, False)] if cluster.queue is not None else []
    group = [OwnKind(POD_GROUPS, None, False)] if cluster.queue is None else []
    return (
        OwnKind("deployments.apps", Deployment),
        OwnKind("replicasets.apps", ReplicaSet, False),
        OwnKind("jobsets.jobset.x-k8s.io", JobSet),
        *mpi,
        *queue,
        OwnKind("jobs.batch", Job),
        OwnKind("services", Service, False),
        OwnKind("pods", Pod),
        *group,
        OwnKind("configmaps", ConfigMap),
        OwnKind("persistentvolumeclaims", PersistentVolumeClaim),
    )


@dataclass(frozen=True)
class Belonging:
    """An object of the campaign's, and why it is."""

    kind: OwnKind
    document: Object
    evidence: str
    has_label: bool = True

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def leaving(self) -> bool:
        """The API server was told to delete it."""
        return bool(self.document["metadata"].get("deletionTimestamp"))

    @property
    def node(self) -> str:
        """The node of a pod; empty for all else."""
        return str((self.document.get("spec") or {}).get("nodeName") or "") if self.kind.word == "pods" else ""

    def __str__(self) -> str:
        return f"{self.kind.word} {self.name}"


def documents_of(client: Client, kind: OwnKind) -> list[Object]:
    """Return every object of the kind in the namespace. Raises `httpx2.HTTPError` if the server does not say."""
    if kind.word == POD_GROUPS:
        return list(pod_groups.pod_groups(client))
    return [item.to_dict() for item in client.list(kind.resource)]


def belongings(kind: OwnKind, documents: list[Object], campaign: str) -> list[Belonging]:
    """Return those of `documents` that are the campaign's."""
    rows = ((document, _evidence(document, campaign)) for document in documents)
    return [
        Belonging(kind, document, evidence, _label(document["metadata"]) == campaign)
        for document, evidence in rows
        if evidence
    ]


def _evidence(document: Object, campaign: str) -> str:
    """Return what proves that the object is the campaign's; empty if nothing does. The label of another campaign, or of
    another's template, is stronger than any name."""
    template = ((document.get("spec") or {}).get("template") or {}).get("metadata") or {}
    if label := _label(document["metadata"]):
        return "its label" if label == campaign else ""
    if label := _label(template):
        return "the label of its pods" if label == campaign else ""
    for owner in document["metadata"].get("ownerReferences") or ():
        if owner.get("kind") in _OWNERS and is_gang(str(owner.get("name", "")), campaign):
            return f"its owner {owner['kind']} {owner['name']}"
    return ""


def _label(metadata: Mapping[str, Any]) -> str:
    return str((metadata.get("labels") or {}).get(CAMPAIGN_LABEL, ""))


def is_gang(name: str, campaign: str) -> bool:
    """Return whether a JobSet or MPIJob of the campaign can have this name. The health check's is cut at its front."""
    if re.fullmatch(rf"{re.escape(campaign)}-(a\d+|judge\d+|check)", name):
        return True
    head, mark, number = name.rpartition("-preflight-")
    if not mark or not re.fullmatch(r"[0-9a-f]+", number):
        return False
    return head == campaign or (len(name) == LONGEST_NAME and campaign.endswith(head))


@dataclass(frozen=True)
class BorrowedNode:
    """A node that the campaign may have used, as it is now."""

    name: str
    trouble: str = ""
    """Why it counts as dead: not Ready and the reason, or that there is no such node; empty if it is Ready."""
    is_there: bool = True
    held: str = ""
    """Why no pod of the campaign can come to it though it is Ready; empty if one can."""
    left_out: str = ""
    """The record's reason for which no later gang came to it; empty if there was none."""
    was_used: bool = True
    """The record names it; else it only has the spec's labels."""
    since: datetime | None = None
    """When its condition Ready took its present value, by the API server's clock; None where that does not say."""


@dataclass(frozen=True)
class NodeHistory:
    """What the record says of nodes."""

    used: frozenset[str] = frozenset()
    left_out: Mapping[str, str] = field(default_factory=dict)
    deaths: Mapping[str, datetime] = field(default_factory=dict)
    """Node -> when the steward found it dead, the last time."""


def node_history(store: CampaignStore) -> NodeHistory:
    """Return what the record says of nodes."""
    used_names, left_out, deaths = set[str](), dict[str, str](), dict[str, datetime]()
    for event in store.events():
        match event.payload:
            case AttemptRunning(nodes=nodes):
                used_names.update(nodes)
            case NodeQuarantined(node=node, reason=reason, died=died):
                used_names.add(node)
                left_out[node] = reason or "no reason is recorded"
                if died:
                    deaths[node] = event.at
    return NodeHistory(frozenset(used_names), left_out, deaths)


def borrowed_nodes(tenant: Tenant, history: NodeHistory) -> dict[str, BorrowedNode]:
    """Return the nodes with the spec's labels, and those that the record names, by name.

    Raises `httpx2.HTTPError` if the API server does not say.
    """
    nodes = {str(node.metadata.name): node for node in tenant.client.list(Node) if node.metadata is not None}
    wanted_labels = tenant.cluster.nodes.labels.items()
    labels = {name: (node.metadata.labels if node.metadata else None) or {} for name, node in nodes.items()}
    labelled_names = {name for name in nodes if wanted_labels <= labels[name].items()}
    return {
        name: _borrowed_node(
            name, nodes.get(name), tenant.cluster, history.left_out.get(name, ""), name in history.used
        )
        for name in sorted(labelled_names | history.used)
    }


def _borrowed_node(
    name: str, node: Node | None, cluster: StandingCluster, left_out: str, was_used: bool
) -> BorrowedNode:
    if node is None:
        return BorrowedNode(name, NO_SUCH_NODE, False, left_out=left_out, was_used=was_used)
    ready = ready_condition(node)
    return BorrowedNode(
        name=name,
        trouble=not_ready(node),
        held="; ".join(obstacles(node, cluster)),
        left_out=left_out,
        was_used=was_used,
        since=ready.lastTransitionTime if ready else None,
    )


def node_trouble(client: Client, name: str) -> str:
    """Return why a node counts as dead; empty while it is Ready. Raises `httpx2.HTTPError` if nobody says."""
    node = or_none(lambda: client.get(Node, name))
    return NO_SUCH_NODE if node is None else not_ready(node)


def refusal(error: Exception) -> str:
    """Return why the API server or S3 did not say, in one line."""
    if isinstance(error, ApiError):
        return error.status.message or str(error)
    return f"{type(error).__name__}: {first_line(error)}"
