"""The archive as a Job in the cluster: created, watched, its verdict read. Used by the steward."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from infra.actions import attempts
from infra.actions.archive import ArchiveConfig
from infra.actions.cluster import is_gone, is_there_already
from infra.actions.gang import CAMPAIGN_LABEL, on_gpu_nodes, volumes
from infra.errors import PermanentError
from infra.names import ARCHIVE_ACCOUNT, NAMESPACE

NAME = "archive"
CONFIG = "archive"
TRIES = 3


def manifest(config: ArchiveConfig, image: str, accelerators: int) -> dict[str, Any]:
    """The Job: on a GPU node, since it evaluates the restored model; retried by Kubernetes, since it is idempotent."""
    pod_volumes, mounts = volumes(CONFIG)
    labels = {CAMPAIGN_LABEL: config.campaign, "bivouac.dev/role": "archive"}
    container = {
        "name": "archive",
        "image": image,
        "command": ["python", "-m", "infra.actions.archive"],
        "resources": {"limits": {"nvidia.com/gpu": str(accelerators)}},
        "volumeMounts": mounts,
    }
    pod = {
        **on_gpu_nodes(),
        "restartPolicy": "Never",
        "serviceAccountName": ARCHIVE_ACCOUNT,
        "volumes": pod_volumes,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        "spec": {"backoffLimit": TRIES - 1, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def run(
    client: Client,
    config: ArchiveConfig,
    job: dict[str, Any],
    train: str,
    guard: Callable[[], None],
    pause: Callable[[], None],
    follow: Callable[[str], None],
) -> dict[str, Any]:
    """Run the Job and wait for it; returns what it reports. Raises `PermanentError` when every try failed."""
    guard()
    labels = {CAMPAIGN_LABEL: config.campaign}
    files = {"archive.json": config.model_dump_json(indent=1), "train.json": train}
    attempts.create_config(client, CONFIG, labels, files)
    _forget_failed(client, pause)
    try:
        client.create(from_dict(job))
    except ApiError as error:
        if not is_there_already(error):
            raise
    while True:
        guard()
        pods = list(client.list(Pod, labels={"bivouac.dev/role": "archive"}))
        for pod in pods:
            if pod.status and pod.status.phase != "Pending" and pod.metadata:
                follow(str(pod.metadata.name))
        status = _status(client)
        if status.get("succeeded"):
            return _verdict(pods)
        if status.get("failed", 0) >= TRIES:
            raise PermanentError("the archive failed", seen=_last_message(pods), cure="see the archive pods' logs")
        pause()


def _forget_failed(client: Client, pause: Callable[[], None]) -> None:
    """A Job that has used up its tries makes way: whoever asks again has mended the cause."""
    while _status(client).get("failed", 0) >= TRIES:
        client.delete(Job, NAME, cascade=CascadeType.BACKGROUND)
        pause()


def _status(client: Client) -> dict[str, int]:
    try:
        status = client.get(Job, NAME).status
    except ApiError as error:
        if is_gone(error):
            return {}
        raise
    return {
        "succeeded": (status.succeeded if status else None) or 0,
        "failed": (status.failed if status else None) or 0,
    }


def _messages(pods: list[Pod]) -> list[tuple[str, str]]:
    """(phase, termination message) of each ended pod."""
    found = []
    for pod in pods:
        for container in (pod.status.containerStatuses if pod.status else None) or ():
            if container.state and container.state.terminated:
                found.append((str(pod.status.phase if pod.status else ""), container.state.terminated.message or ""))
    return found


def _verdict(pods: list[Pod]) -> dict[str, Any]:
    message = next((text for phase, text in _messages(pods) if phase == "Succeeded"), None)
    if message is None:
        raise PermanentError("the archive succeeded but its pod is gone", seen="no message", cure="run it again")
    verdict: dict[str, Any] = json.loads(message)
    return verdict


def _last_message(pods: list[Pod]) -> str:
    messages = _messages(pods)
    return messages[-1][1][-500:] if messages else "no message"
