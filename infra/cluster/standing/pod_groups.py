"""Kubernetes' own gangs: a PodGroup (`scheduling.k8s.io`) whose pods are bound all together or not at all.

Kubernetes 1.36 has PodGroups behind the gates `GenericWorkload` and `GangScheduling`. A pod names its group in
`spec.schedulingGroup`, which a JobSet before 0.12 drops from its template. Where the API server does not take both, the
pods are bound one by one, as in a cluster that never heard of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource

from infra.cluster.kubernetes import JobSet, create
from infra.spec.standing import StandingCluster, StandingTopology

Object = dict[str, Any]
GROUP, PLURAL = "scheduling.k8s.io", "podgroups"
_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""The newest first: of Kubernetes 1.37, and of 1.36."""
_KINDS: tuple[type[GenericNamespacedResource], ...] = tuple(
    create_namespaced_resource(GROUP, version, "PodGroup", PLURAL) for version in _VERSIONS
)
_THERE, _FORBIDDEN, _ABSENT, _REFUSED = 409, 403, 404, frozenset({400, 422})
"""Statuses of an object that exists, a right that the grant lacks, a version that is not served, a field that a gate
forbids."""


def launch(client: Client, document: Object, cluster: StandingCluster) -> None:
    """Create a gang's JobSet, with its PodGroup where the cluster binds gangs as a whole. One that exists stays.

    The JobSet comes first, so that the group goes with it: until the group is there, its pods wait. A gang in a queue
    of Kueue is bound by that. Raises `httpx2.HTTPError` as the API server answers.
    """
    job = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    group = None if cluster.queue is not None else _group(client, document, job["parallelism"], cluster.topology)
    if group is None:
        create(client, JobSet.from_dict(document))
        return
    name = document["metadata"]["name"]
    job["template"]["spec"]["schedulingGroup"] = {"podGroupName": name}
    if not _is_kept(client, document):
        del job["template"]["spec"]["schedulingGroup"]
        group = None
    create(client, JobSet.from_dict(document))
    if group is not None and group.metadata is not None:
        owner = client.get(JobSet, name).to_dict()
        reference = {"apiVersion": owner["apiVersion"], "kind": "JobSet", "name": name, "uid": owner["metadata"]["uid"]}
        create(client, type(group).from_dict({**group.to_dict(), "metadata": _metadata(document, [reference])}))


def _group(
    client: Client, document: Object, pods: int, topology: StandingTopology | None
) -> GenericNamespacedResource | None:
    """Return the gang's PodGroup as the API server would take it; None where it takes none."""
    if pods < 2:
        return None
    policy = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    constraints = [] if topology is None or not topology.required else [{"topology": [{"key": topology.label}]}]
    specs = [*({**policy, "schedulingConstraints": row} for row in constraints), policy]
    for version, kind in zip(_VERSIONS, _KINDS, strict=True):
        for spec in specs:
            api = {"apiVersion": f"{GROUP}/{version}", "kind": "PodGroup"}
            group = kind.from_dict({**api, "metadata": _metadata(document, []), "spec": spec})
            status = _status_of(client, group)
            if status == _FORBIDDEN:
                return None  # a grant of an earlier version: also what is not served is forbidden then
            if status == _ABSENT:
                break
            if status not in _REFUSED:
                return group
    return None


def _metadata(document: Object, owners: list[Object]) -> Object:
    metadata = document["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "labels": metadata["labels"],
        "ownerReferences": owners,
    }


def _status_of(client: Client, resource: Any) -> int:
    """Return the status with which the API server would make the object, 200 if it would. Raises for one that tells
    nothing: overload, a lost connection."""
    try:
        client.create(resource, dry_run=True)
    except httpx2.HTTPStatusError as error:
        status = error.response.status_code
        if status not in (_THERE, _FORBIDDEN, _ABSENT, *_REFUSED):
            raise
        return status
    return 200


def _is_kept(client: Client, document: Object) -> bool:
    """Return True if the API server keeps the pods' group in a JobSet, or the JobSet that exists has it."""
    try:
        answer = client.create(JobSet.from_dict(document), dry_run=True)
    except ApiError as error:
        if error.status.code != _THERE:
            raise
        answer = client.get(JobSet, document["metadata"]["name"])
    job = answer.to_dict()["spec"]["replicatedJobs"][0]["template"]["spec"]
    return bool(job["template"]["spec"].get("schedulingGroup"))


def pod_groups(client: Client) -> Iterator[Object]:
    """Yield the PodGroups of the client's namespace, none where no version is served. Raises `httpx2.HTTPError`."""
    for kind in _KINDS:
        try:
            groups = list(client.list(kind))
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != _ABSENT:
                raise
            continue
        yield from (group.to_dict() for group in groups)
        return
