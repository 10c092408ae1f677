"""Ask an existing cluster what it would say to a campaign. Nothing is made: objects are sent as a dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import httpx2
from botocore.exceptions import BotoCoreError, ClientError
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.core_v1 import Node, PersistentVolumeClaim
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaimTemplate
from lightkube.resources.storage_v1 import StorageClass

from infra.cluster.standing.borrowed import untolerated
from infra.cluster.standing.connection import LOGIN_KEYS, connect, login_of, s3_client, user_of
from infra.cluster.standing.fabric_claims import DRA_GROUP, DRA_VERSION, template_name
from infra.cluster.standing.queueing import (
    QUEUE_LABEL,
    ClusterQueue,
    LocalQueue,
    WorkloadPriorityClass,
    demand,
    pod_demand,
    quantities,
    quota_gaps,
)
from infra.errors import first_line
from infra.plan.standing_facts import DryRun, SeenCluster, SeenNode, SeenQueue
from infra.spec.campaign import Spec
from infra.spec.names import TRAINER_ACCOUNT
from infra.spec.standing import StandingCluster, StandingFabric
from infra.standing.rights import Right, driver_rights
from infra.standing.tenancy import held_names

Object = dict[str, Any]
SHARED_MODE = "ReadWriteMany"


def look_at_queue(
    client: Client,
    cluster: StandingCluster,
    documents: Sequence[Object],
    overhead: Mapping[str, Decimal] = MappingProxyType({}),
) -> SeenQueue | None:
    """Return what the queue says to the gang among `documents`; None without a queue. `overhead`: of each of its pods.

    Raises `ApiError` for an answer other than that an object is not there.
    """
    if cluster.queue is None:
        return None
    try:
        local = client.get(LocalQueue, cluster.queue, namespace=cluster.namespace).to_dict()
        name = str((local.get("spec") or {}).get("clusterQueue", ""))
        if cluster.priority is not None:
            client.get(WorkloadPriorityClass, cluster.priority)
        queue = client.get(ClusterQueue, name).to_dict()
    except ApiError as error:
        if error.status.code != 404:
            raise
        return SeenQueue(absent=error.status.message or str(error))
    except httpx2.HTTPStatusError as error:
        # Not an error of an object: the server has no such resource.
        if error.response.status_code != 404:
            raise
        return SeenQueue(absent=f"the cluster has no Kueue with kueue.x-k8s.io/v1beta2: {first_line(error)}")
    gang = next(document for document in documents if QUEUE_LABEL in document["metadata"].get("labels", {}))
    gaps = quota_gaps(queue, demand(gang, overhead))
    return SeenQueue(
        # Of a broken ClusterQueue its LocalQueue says no more than that.
        inactive=_inactive(f"ClusterQueue {name}", queue) or _inactive(f"LocalQueue {cluster.queue}", local),
        uncovered=gaps.uncovered,
        short=gaps.short,
        borrowed=gaps.borrowed,
        checks=_checks(queue),
    )


def _checks(queue: Object) -> tuple[str, ...]:
    strategy = (queue.get("spec") or {}).get("admissionChecksStrategy") or {}
    return tuple(str(check.get("name")) for check in strategy.get("admissionChecks") or ())


def _inactive(name: str, queue: Object) -> str:
    """Return why a queue admits nobody; empty if it does."""
    policy = (queue.get("spec") or {}).get("stopPolicy", "None")
    if policy != "None":
        return f"{name}: its stopPolicy is {policy}"
    conditions = (queue.get("status") or {}).get("conditions") or []
    active = next((row for row in conditions if row["type"] == "Active"), None)
    if active is None:
        return f"{name}: Kueue has not said that it is active"
    return "" if active["status"] == "True" else f"{name}: {active.get('reason', '')}: {active.get('message', '')}"


def look(
    spec: Spec, cluster: StandingCluster, documents: Sequence[tuple[str, Object]], progress: Callable[[str], None]
) -> SeenCluster:
    """Return the answers to the spec, whose section `cluster` is. `documents`: (words, manifest) of what the campaign
    makes first.

    Raises `UserError` if the cluster cannot be reached, or does not know the login.
    """
    client = connect(cluster)
    user = user_of(client, cluster)
    progress(f"{cluster.context} knows you as {user}")
    missing = tuple(_missing(client, cluster, spec.runtime.by_mpirun))
    progress(f"{len(missing)} rights are missing")
    answers = SeenCluster(user=user, missing_rights=missing)
    if missing:
        return answers  # what follows would be refused for the same reason
    gang_pod = next(document for _, document in documents if _is_of_gang(document))
    overhead = _overhead(connect(cluster, dry_run=True), cluster, gang_pod)
    pod_takes = pod_demand(gang_pod["spec"], overhead)
    listing = client.list(Node, labels=dict(cluster.nodes.labels))
    return answers.model_copy(
        update={
            "held_names": held_names(client, spec, cluster),
            "nodes": tuple(_node(node, cluster, pod_takes, overhead) for node in listing),
            "volume": _volume(client, cluster),
            "bucket": _bucket(client, cluster),
            "claim": _claim(client, cluster.fabric),
            "dry_runs": tuple(_dry_run(connect(cluster, dry_run=True), *document) for document in documents),
            "policy_gap": _policy_gap(connect(cluster, dry_run=True), spec, cluster, documents),
            "queue": look_at_queue(client, cluster, [document for _, document in documents], overhead),
        }
    )


def _missing(client: Client, cluster: StandingCluster, mpi: bool) -> Iterator[str]:
    """Yield the driver's rights that the API server denies to this login."""
    for right in driver_rights(cluster, mpi):
        denied_verbs = [verb for verb in right.verbs if not all(_may(client, cluster, right, verb))]
        if denied_verbs:
            place = "the cluster" if right.everywhere else f"namespace {cluster.namespace}"
            yield f"{', '.join(denied_verbs)} {right.kinds} in {place}"


def _may(client: Client, cluster: StandingCluster, right: Right, verb: str) -> Iterator[bool]:
    for resource in right.resources:
        kind, _, part = resource.partition("/")
        for name in right.names or (None,):
            attributes = ResourceAttributes(
                group=right.group, resource=kind, subresource=part or None, verb=verb, name=name,
                namespace=None if right.everywhere else cluster.namespace,
            )  # fmt: skip
            spec = SelfSubjectAccessReviewSpec(resourceAttributes=attributes)
            review = client.create(SelfSubjectAccessReview(spec=spec))
            yield bool(review.status and review.status.allowed)


def _is_of_gang(document: Object) -> bool:
    return document["kind"] == "Pod" and document["spec"]["serviceAccountName"] == TRAINER_ACCOUNT


def _overhead(client: Client, cluster: StandingCluster, pod: Object) -> dict[str, Decimal]:
    """Return what the RuntimeClass takes of a node beside each pod, by the pod as the server would make it; empty where
    it refuses the pod, which the dry runs say. `client` makes nothing."""
    if cluster.nodes.runtime_class is None:
        return {}
    try:
        answer: Any = client.create(from_dict(pod))
    except httpx2.HTTPStatusError:  # an `ApiError` is one
        return {}
    return quantities(answer.spec.overhead or {})


def _node(
    node: Node, cluster: StandingCluster, pod_takes: Mapping[str, Decimal], overhead: Mapping[str, Decimal]
) -> SeenNode:
    """`pod_takes`: resource -> what a pod of the gang takes, its `overhead` included."""
    name = str(node.metadata.name if node.metadata else "")
    short = _shortages(node, cluster, pod_takes, overhead)
    return SeenNode(name=name, obstacle="; ".join([*_obstacles(node, cluster), *short]))


def _shortages(
    node: Node, cluster: StandingCluster, pod_takes: Mapping[str, Decimal], overhead: Mapping[str, Decimal]
) -> Iterator[str]:
    """Yield what a node has too little of, beside the devices. What it does not report is not known."""
    allocatable = quantities((node.status.allocatable if node.status else None) or {})
    for resource, amount in pod_takes.items():
        if resource not in cluster.nodes.devices and allocatable.get(resource, amount) < amount:
            extra = overhead.get(resource, Decimal()).normalize()
            part = f", of which RuntimeClass {cluster.nodes.runtime_class} takes {extra:f}" if extra else ""
            yield f"{allocatable[resource].normalize():f} {resource} of {amount.normalize():f}{part}"


def _obstacles(node: Node, cluster: StandingCluster) -> Iterator[str]:
    """Yield what keeps the gang's pods off a node, whoever uses it now."""
    conditions = (node.status.conditions if node.status else None) or []
    if not any(condition.type == "Ready" and condition.status == "True" for condition in conditions):
        yield "not Ready"
    if node.spec and node.spec.unschedulable:
        yield "cordoned"
    for taint in untolerated(node, cluster):
        yield f"tainted {taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}"
    allocatable = (node.status.allocatable if node.status else None) or {}
    for device, count in cluster.nodes.devices.items():
        if int(allocatable.get(device, "0")) < count:
            yield f"{allocatable.get(device, 'no')} {device} of {count}"


def _volume(client: Client, cluster: StandingCluster) -> str:
    """Return what is wrong with the shared claim, or with the storage class; empty if nothing is."""
    shared = cluster.shared
    try:
        if shared.storage_class is not None:
            client.get(StorageClass, shared.storage_class)
            return ""
        claim = client.get(PersistentVolumeClaim, str(shared.claim))
    except ApiError as error:
        return f"{shared.claim or shared.storage_class}: {error.status.message}"
    modes = (claim.spec.accessModes if claim.spec else None) or []
    return "" if SHARED_MODE in modes else f"{shared.claim} is {', '.join(modes)} and not {SHARED_MODE}"


def _bucket(client: Client, cluster: StandingCluster) -> str:
    """Return why the driver cannot read the bucket with the Secret's login; empty if it can."""
    place = cluster.s3
    try:
        login = login_of(client, place)
    except ApiError as error:
        return f"Secret {place.secret}: {error.status.message}"
    except ValueError:
        return f"Secret {place.secret}: its login is no text"
    if lacking := [key for key in LOGIN_KEYS if key not in login]:
        return f"Secret {place.secret} has no {' and no '.join(lacking)}"
    try:
        pages = s3_client(place, login).get_paginator("list_objects_v2")
        next(iter(pages.paginate(Bucket=place.bucket, PaginationConfig={"PageSize": 1})), None)
    except (ClientError, BotoCoreError) as error:
        return f"{place.bucket} at {place.endpoint or 'AWS'}: {error}"
    return ""


def _claim(client: Client, fabric: StandingFabric) -> str:
    """Return why the gang's pods would wait for ever for their adapters; empty if nothing is known to keep them."""
    try:
        if fabric.device_class is not None:
            client.get(DeviceClass, fabric.device_class)
        if template := template_name(fabric):
            client.get(ResourceClaimTemplate, template)
    except ApiError as error:
        return error.status.message or str(error)
    except httpx2.HTTPStatusError as error:
        return f"{DRA_GROUP}/{DRA_VERSION}: {first_line(error)}"
    return ""


def _policy_gap(client: Client, spec: Spec, cluster: StandingCluster, documents: Sequence[tuple[str, Object]]) -> str:
    """Return what the server takes though the grant's policy forbids it, where the spec opens the namespace; empty if
    it refuses it. `client` makes nothing."""
    if not (spec.runtime.host_network or cluster.fabric.ipc_lock):
        return ""
    wish = next(document["spec"] | {"hostPID": True} for _, document in documents if _is_of_gang(document))
    metadata = {"name": f"{spec.campaign}-guard", "namespace": cluster.namespace}
    answer = _dry_run(client, "", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": wish})
    return "" if answer.refusal else f"a pod of account {TRAINER_ACCOUNT} with hostPID"


def _dry_run(client: Client, title: str, document: Object) -> DryRun:
    """Send an object that the server checks and does not make."""
    try:
        client.create(from_dict(document))
    except ApiError as error:
        if error.status.code == 409:  # it is there already, and so may be made
            return DryRun(what=title, refusal="")
        return DryRun(what=title, refusal=error.status.message or str(error))
    except httpx2.HTTPStatusError as error:
        # Not an error of an object: the server has no such resource, or a proxy stands before it.
        return DryRun(what=title, refusal=f"{document['apiVersion']} {document['kind']}: {first_line(error)}")
    return DryRun(what=title, refusal="")
