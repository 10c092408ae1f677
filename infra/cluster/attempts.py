"""Launch and removal of attempts of the training job, by the steward only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import CascadeType

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob, jobset
from infra.cluster.kubernetes import JobSet, is_gone, is_there_already
from infra.spec.names import NAMESPACE


def create_config(client: Client, name: str, labels: dict[str, str], files: dict[str, str]) -> None:
    """Create a config map or replace its contents."""
    wanted = ConfigMap(metadata=ObjectMeta(name=name, labels=labels), data=files)
    try:
        client.create(wanted)
    except ApiError as error:
        if not is_there_already(error):
            raise
        client.replace(wanted)


def launch(client: Client, gang: GangJob) -> None:
    """Create the gang's JobSet; leave one that exists (from a driver that was killed) as it is."""
    manifest: dict[str, Any] = jobset(gang)
    try:
        client.create(JobSet.from_dict(manifest))
    except ApiError as error:
        if not is_there_already(error):
            raise


def jobsets(client: Client, campaign: str) -> dict[int, str]:
    """Return attempt -> name of its JobSet, for every attempt (no preflight) that exists and is not being deleted."""
    found = {}
    for item in client.list(JobSet, labels={CAMPAIGN_LABEL: campaign}):
        metadata = item.metadata
        number = int((metadata.labels or {}).get(ATTEMPT_LABEL, "0")) if metadata else 0
        if metadata and number > 0 and metadata.deletionTimestamp is None:
            found[number] = str(metadata.name)
    return found


def remove(client: Client, name: str) -> None:
    """Delete a JobSet and, in the background, its jobs and pods."""
    try:
        client.delete(JobSet, name, cascade=CascadeType.BACKGROUND)
    except ApiError as error:
        if not is_gone(error):
            raise


def gangs(client: Client, labels: Mapping[str, str]) -> list[str]:
    """Return the names of the JobSets with these labels."""
    found = client.list(JobSet, namespace=NAMESPACE, labels=dict(labels))
    return [str(one.metadata.name) for one in found if one.metadata]


def end_now(client: Client, labels: Mapping[str, str], grace_seconds: int) -> None:
    """Delete the pods of a broken gang: the survivors hold GPUs and can commit nothing without their peers."""
    for pod in pods(client, labels):
        try:
            client.delete(Pod, str(pod.metadata.name if pod.metadata else ""), grace_period=grace_seconds)
        except ApiError as error:
            if not is_gone(error):
                raise


def pods(client: Client, labels: Mapping[str, str]) -> list[Pod]:
    return list(client.list(Pod, namespace=NAMESPACE, labels=dict(labels)))
