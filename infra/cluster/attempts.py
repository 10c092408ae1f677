"""Launch and removal of attempts of the training job, by the steward only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import CascadeType

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob, jobset, mpijob
from infra.cluster.kubernetes import JobSet, MPIJob, create, or_none
from infra.cluster.standing import pod_groups
from infra.cluster.standing.placing import placed
from infra.cluster.standing.queueing import QueuePlace, Workload, queue_place
from infra.errors import PermanentError
from infra.spec.campaign import Spec
from infra.spec.names import NAMESPACE
from infra.spec.standing import StandingCluster

Kind = type[GenericNamespacedResource]
"""`JobSet` or `MPIJob`."""


def create_config(client: Client, name: str, labels: dict[str, str], files: dict[str, str]) -> None:
    """Create a config map or replace its contents.

    Raises `PermanentError` if one of this name is not the campaign's, which can only be in an existing cluster.
    """
    config = ConfigMap(metadata=ObjectMeta(name=name, labels=labels), data=files)
    try:
        client.create(config)
    except ApiError as error:
        if error.status.code != 409:
            raise
        _refuse_foreign(client, name, labels.get(CAMPAIGN_LABEL))
        client.replace(config)


def _refuse_foreign(client: Client, name: str, campaign: str | None) -> None:
    """Raise `PermanentError` if the config map has not the label of `campaign`. None: it has no such label anyway. In a
    namespace that we make, one without a label is of an earlier version."""
    if campaign is None:
        return
    metadata = client.get(ConfigMap, name).metadata
    owner = ((metadata.labels if metadata else None) or {}).get(CAMPAIGN_LABEL)
    if owner != campaign and (owner is not None or client.namespace != NAMESPACE):
        raise PermanentError(
            "a config map of this name is not the campaign's; it was left as it is",
            seen=f"{name} in namespace {client.namespace}, of {f'campaign {owner}' if owner else 'somebody else'}",
            cure="give the campaign a namespace of its own, or wait until the other campaign is over",
        )


def kind_of(spec: Spec) -> Kind:
    """Return the kind of the campaign's attempts. A health check is always a JobSet."""
    return MPIJob if spec.runtime.by_mpirun else JobSet


def launch(client: Client, gang: GangJob, cluster: StandingCluster | None = None, left_out: Sequence[str] = ()) -> None:
    """Create the gang's job; leave one that exists (from a driver that was killed) as it is. `cluster`: the existing
    one that it is for; `left_out`: its nodes that the gang must not get."""
    document = placed(mpijob(gang) if gang.by_mpirun else jobset(gang), cluster, left_out)
    if cluster is not None and not gang.by_mpirun:
        pod_groups.launch(client, document, cluster)
    else:
        create(client, (MPIJob if gang.by_mpirun else JobSet).from_dict(document))


def jobs(client: Client, kind: Kind, campaign: str) -> dict[int, str]:
    """Return attempt -> name of its job, for every attempt (no preflight) that exists and is not being deleted."""
    names = {}
    for item in client.list(kind, labels={CAMPAIGN_LABEL: campaign}):
        metadata = item.metadata
        number = int((metadata.labels or {}).get(ATTEMPT_LABEL, "0")) if metadata else 0
        if metadata and number > 0 and metadata.deletionTimestamp is None:
            names[number] = str(metadata.name)
    return names


def ask_queue(client: Client, kind: Kind, name: str, namespace: str) -> QueuePlace:
    """Return where a job stands in Kueue's queue: `admitted` is one that is not suspended, whatever Kueue says."""
    job = or_none(lambda: client.get(kind, name, namespace=namespace))
    if job is None:
        return QueuePlace(state="vanished")
    spec = job.to_dict().get("spec") or {}
    if not (spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend")):
        return QueuePlace(state="admitted")
    uid = str(job.metadata.uid if job.metadata else "")
    return queue_place(uid, [workload.to_dict() for workload in client.list(Workload, namespace=namespace)])


def remove(client: Client, kind: Kind, name: str) -> None:
    """Delete an attempt's job or a health check and, in the background, its pods."""
    or_none(lambda: client.delete(kind, name, cascade=CascadeType.BACKGROUND))


def end_now(client: Client, labels: Mapping[str, str], grace_seconds: int) -> None:
    """Delete the pods of a broken gang: the survivors hold GPUs and can commit nothing without their peers."""
    for pod in pods(client, labels):
        remove_now(client, str(pod.metadata.name if pod.metadata else ""), grace_seconds)


def remove_now(client: Client, pod: str, grace_seconds: int = 0) -> None:
    or_none(lambda: client.delete(Pod, pod, grace_period=grace_seconds))


def pods(client: Client, labels: Mapping[str, str]) -> list[Pod]:
    return list(client.list(Pod, labels=dict(labels)))
