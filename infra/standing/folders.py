"""Removal of the campaign's folders on the shared claim and on the borrowed nodes, by one Job per place.

A Job has the right to nothing but its place: no login, no token, and a mount that ends at the tenant's own folder. A
node that is dead, held by its owner or gone cannot be reached; that is said and is no error, since it may stay so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from infra.archive import archive_job
from infra.cluster import pod_start
from infra.cluster.confinement import (
    READS_ALL,
    ROOT,
    batch_job,
    container_context,
    environment,
    one_time_pod,
)
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.standing import placing
from infra.errors import PermanentError
from infra.spec.names import ARCHIVE_ACCOUNT, ARCHIVE_WORK, LOCAL_CLAIM, PROJECT
from infra.standing.belongings import BorrowedNode, Tenant, node_trouble
from trainer.contract import LOCAL_CHECKPOINTS

ROLE_LABEL, ROLE = "bivouac.dev/role", "folders"
_MOUNT = "/place"
_TRIES = 3
START_S = 600.0
"""Longest time until a pod starts: it may have to pull the image."""
RUN_S = 3600
"""Longest time of one place: a claim may hold many files."""


class FolderPlace(NamedTuple):
    """A folder of the campaign's, by the claim that leads to it."""

    claim: str
    folder: str
    """Folder of the claim that is mounted: other people's lie beside it."""
    paths: tuple[str, ...]
    """Paths below it that are removed."""
    node: str = ""
    """The node on which it lies; empty on the shared claim."""

    @property
    def job(self) -> str:
        """Return the name of its Job: nodes' names may be too long for one."""
        return f"folders-{hashlib.sha256(f'{self.claim}/{self.node}'.encode()).hexdigest()[:12]}"

    def __str__(self) -> str:
        location = f"of node {self.node}" if self.node else f"of claim {self.claim}"
        return f"{self.folder}/{self.paths[0]} {location}"


def shared_place(tenant: Tenant) -> FolderPlace | None:
    """Return the folder on the shared claim; None where the campaign has a claim of its own, which goes as a whole."""
    claim = tenant.cluster.shared.claim
    return None if claim is None else FolderPlace(claim, f"{PROJECT}/{tenant.cluster.namespace}", (tenant.campaign,))


def local_place(tenant: Tenant, node: str) -> FolderPlace:
    """Return the folder on a node: the local tier, and where the archive worked."""
    work = ARCHIVE_WORK.removeprefix(f"{LOCAL_CHECKPOINTS}/")
    return FolderPlace(LOCAL_CLAIM, tenant.cluster.namespace, (tenant.campaign, work), node)


def manifest(tenant: Tenant, place: FolderPlace) -> dict[str, Any]:
    """Return the Job that removes a place's folders. Files may be of any user: it is root whom permissions do not
    bind."""
    labels = {CAMPAIGN_LABEL: tenant.campaign, ROLE_LABEL: ROLE}
    container = {
        "name": ROLE,
        "image": tenant.spec.image.steward_base,
        "command": ["rm", "-rf", "--", *(f"{_MOUNT}/{path}" for path in place.paths)],
        "env": environment(),
        "securityContext": container_context(capabilities=READS_ALL),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "place", "mountPath": _MOUNT, "subPath": place.folder}],
    }
    place_volumes = [{"name": "place", "persistentVolumeClaim": {"claimName": place.claim}}]
    pod = one_time_pod(ARCHIVE_ACCOUNT, ROOT, place_volumes, container, terminationGracePeriodSeconds=5)
    placed_pod = placing.plain_pod(pod, tenant.cluster, tenant.campaign, place.node)
    placed_pod.pop("priorityClassName", None)  # nobody's pod is to go for it
    limits = {"backoffLimit": _TRIES - 1, "activeDeadlineSeconds": RUN_S}
    return batch_job(place.job, labels, placed_pod, tenant.cluster.namespace, **limits)


def remove_folders(tenant: Tenant, nodes: Mapping[str, BorrowedNode]) -> dict[str, str]:
    """Remove every folder that can be reached; return node -> why its own was not reached.

    `nodes`: all that the campaign may have used. Raises `PermanentError` with each place that could be reached and was
    not emptied, once all others are.
    """
    return _FolderRemoval(tenant, nodes).run()


class _FolderRemoval:
    """As many Jobs at a time as the gang has pods, since the namespace's quota has room for these."""

    def __init__(self, tenant: Tenant, nodes: Mapping[str, BorrowedNode]) -> None:
        self._tenant, self._client, self._nodes = tenant, tenant.client, nodes
        self._unreached = {name: words for name, node in nodes.items() if (words := node.trouble or node.held)}
        shared = shared_place(tenant)
        local_places = [local_place(tenant, name) for name in nodes if name not in self._unreached]
        self._waiting = [*([shared] if shared else []), *local_places]
        self._started: dict[FolderPlace, float] = {}
        """Places whose Jobs are under way, and since when."""
        self._failures: dict[FolderPlace, str] = {}

    def run(self) -> dict[str, str]:
        while self._waiting or self._started:
            while self._waiting and len(self._started) < self._tenant.spec.nodes.count:
                self._start(self._waiting.pop(0))
            for place in tuple(self._started):
                self._look(place)
            if self._started:
                self._tenant.say(f"{len(self._waiting) + len(self._started)} folders are left")
                self._tenant.pause()
        if self._failures:
            raise PermanentError(
                "folders of the campaign are not removed",
                seen="; ".join(f"{place}: {words}" for place, words in self._failures.items()),
                cure=f"mend what it names, then `bivouac down {self._tenant.campaign}` goes on",
            )
        return self._unreached

    def _start(self, place: FolderPlace) -> None:
        self._tenant.guard()
        try:
            self._client.create(from_dict(manifest(self._tenant, place)))
        except ApiError as error:
            if error.status.code != 409:
                raise
            # Of a request whose answer was lost; one of somebody else's says nothing of this place.
            metadata = self._client.get(Job, place.job).metadata
            if ((metadata.labels if metadata else None) or {}).get(CAMPAIGN_LABEL) != self._tenant.campaign:
                self._failures[place] = f"Job {place.job} stands there and is somebody else's"
                return
        self._started[place] = self._tenant.now()

    def _look(self, place: FolderPlace) -> None:
        # The Job is read before its pods: if it reports an end, the later listing shows the pod's end too.
        status = archive_job.status_of(self._client, place.job)
        if status.get("succeeded"):
            self._end(place)
            return
        pods = list(self._client.list(Pod, labels={"job-name": place.job}))
        if status.get("over") or status.get("failed", 0) >= _TRIES or not status:
            words = archive_job.last_message(pods) or ("it ended without a word" if status else "somebody removed it")
            self._fail(place, words)
        elif self._tenant.now() - self._started[place] > START_S and not any(map(pod_start.has_started, pods)):
            words = "; ".join(pod_start.why_not(pod, "") for pod in pods) or "its Job has no pod"
            self._fail(place, words)
        elif place.node and (words := node_trouble(self._client, place.node)):
            self._unreached[place.node] = words
            self._end(place)

    def _fail(self, place: FolderPlace, words: str) -> None:
        """Note a failure; none is that of a node which is dead by now, or which no attempt of the record had."""
        if place.node and (trouble := node_trouble(self._client, place.node)):
            self._unreached[place.node] = trouble
        elif place.node and not self._nodes[place.node].was_used:
            self._unreached[place.node] = f"no attempt ran there; {words}"
        else:
            self._failures[place] = words
        self._end(place)

    def _end(self, place: FolderPlace) -> None:
        self._tenant.guard()
        archive_job.remove(self._client, place.job)
        del self._started[place]
