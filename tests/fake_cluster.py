"""Kubernetes' API in memory, as lightkube's client gives it, and the objects of a gang; away when a test says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.models.batch_v1 import JobStatus
from lightkube.models.core_v1 import ContainerState, ContainerStateTerminated, ContainerStatus
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Node, Pod

from infra.cluster.gang import COMPLETION_INDEX
from infra.cluster.kubernetes import JobSet
from infra.spec.names import GPU_POOL, NAMESPACE, POOL_LABEL

RUNS = {"name": "trainer", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
PODS = 2


def answer(code: int, words: str) -> ApiError:
    body = {"code": code, "message": words, "reason": words, "status": "Failure"}
    request = httpx2.Request("GET", "https://cluster")
    return ApiError(request=request, response=httpx2.Response(code, json=body, request=request))


@dataclass
class FakeCluster:
    """Kubernetes' API as lightkube's client gives it."""

    namespace: str = NAMESPACE
    config_maps: dict[str, ConfigMap] = field(default_factory=dict)
    jobs: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, Any] = field(default_factory=dict)
    """Jobs, of which none ends by itself; `end` ends one."""
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    away: bool = False
    refused: str = ""
    """Words with which every new JobSet is refused."""
    writes: list[str] = field(default_factory=list)

    def list(self, kind: Any, namespace: str = "", labels: dict[str, str] | None = None) -> list[Any]:
        self._weather()
        kinds: dict[Any, dict[str, Any]] = {Node: self.nodes, Pod: self.pods, JobSet: self.jobs}
        items = (labels or {}).items()
        return [one for one in kinds[kind].values() if items <= ((one.metadata and one.metadata.labels) or {}).items()]

    def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        self._weather()
        kinds: dict[Any, dict[str, Any]] = {ConfigMap: self.config_maps, Job: self.copies}
        if name not in kinds[kind]:
            raise answer(404, "NotFound")
        return kinds[kind][name]

    def create(self, document: Any) -> None:
        self._weather()
        name = document.metadata.name
        if isinstance(document, ConfigMap):
            if name in self.config_maps:
                raise answer(409, "AlreadyExists")
            self.config_maps[name] = document
            return
        if isinstance(document, Job):
            self.writes.append(f"create {name}")
            self.copies[name] = document
            return
        if self.refused:
            raise answer(422, self.refused)
        self.writes.append(f"create {name}")
        self.jobs[name] = document
        for index in range(min(PODS, _parallelism(document))):
            self.pods[f"{name}-{index}"] = pod(f"{name}-{index}", index, document.metadata.labels)

    def end(self, name: str, told: dict[str, Any] | str) -> None:
        """End a copy's Job: with its summary, or in a failure with these words."""
        failed = isinstance(told, str)
        self.copies[name].status = JobStatus(failed=3) if failed else JobStatus(succeeded=1)
        words = told if isinstance(told, str) else json.dumps(told)
        labels = {"bivouac.dev/role": name}
        one = pod(f"{name}-pod", 0, labels, "Failed" if failed else "Succeeded")
        assert one.status is not None
        one.status.containerStatuses = [ended(74 if failed else 0, words)]
        self.pods[f"{name}-pod"] = one

    def replace(self, document: Any) -> None:
        self._weather()
        self.config_maps[document.metadata.name] = document

    def delete(self, kind: Any, name: str, **_: Any) -> None:
        self._weather()
        self.writes.append(f"delete {name}")
        if kind is Pod:
            self.pods.pop(name, None)
            return
        if kind is Job:
            self.pods.pop(f"{name}-pod", None)
        if (self.copies if kind is Job else self.jobs).pop(name, None) is None:
            raise answer(404, "NotFound")
        self.pods = {known: one for known, one in self.pods.items() if not known.startswith(f"{name}-")}

    def patch(self, kind: Any, name: str, change: dict[str, Any], **_: Any) -> None:
        self._weather()
        self.writes.append(f"patch {name}")
        labels = change.get("metadata", {}).get("labels", {})
        node = self.nodes[name]
        assert node.metadata is not None and node.spec is not None
        node.metadata.labels = {**(node.metadata.labels or {}), **labels}
        node.spec.unschedulable = change["spec"]["unschedulable"]

    def _weather(self) -> None:
        if self.away:
            raise httpx2.ConnectError("connection refused")


def _parallelism(document: Any) -> int:
    return int(document.to_dict()["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"])


def pod(name: str, index: int, labels: dict[str, str], phase: str = "Running") -> Pod:
    return from_dict(  # type: ignore[return-value]
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "annotations": {COMPLETION_INDEX: str(index)}},
            "spec": {"containers": [], "nodeName": f"node-{index}"},
            "status": {"phase": phase, "podIP": f"10.0.0.{index}", "containerStatuses": [RUNS]},
        }
    )  # fmt: skip


def ended(code: int, message: str) -> ContainerStatus:
    end = ContainerState(terminated=ContainerStateTerminated(exitCode=code, message=message))
    return ContainerStatus(name="trainer", image="", imageID="", ready=False, restartCount=0, state=end)


def gpu_node(index: int, ready: str = "True") -> Node:
    return from_dict(  # type: ignore[return-value]
        {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": f"node-{index}", "labels": {POOL_LABEL: GPU_POOL}},
            "spec": {"providerID": f"aws:///z/i-{index}"},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {}},
        }
    )  # fmt: skip
