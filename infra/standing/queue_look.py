"""Ask an existing cluster whether the spec's queue can ever admit the gang, and what it may wait for there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx2
from lightkube import Client
from lightkube.core.exceptions import ApiError

from infra.cluster.standing.queueing import (
    QUEUE_LABEL,
    ClusterQueue,
    LocalQueue,
    WorkloadPriorityClass,
    demand,
    quota_gaps,
)
from infra.errors import first_line
from infra.plan.standing_facts import SeenQueue
from infra.spec.standing import StandingCluster

Object = dict[str, Any]


def look_at_queue(client: Client, cluster: StandingCluster, documents: Sequence[Object]) -> SeenQueue | None:
    """Return what the queue says to the gang among `documents`; None without a queue.

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
    gaps = quota_gaps(queue, demand(gang))
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
