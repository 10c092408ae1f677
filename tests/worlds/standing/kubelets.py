"""Kubelets of a cluster of somebody's, played by the test: they say how pods end, and one of their nodes dies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from infra.cluster.gang import ATTEMPT_LABEL
from tests.worlds.standing.cluster import code
from tests.worlds.standing.steward import ARCHIVED, GANG, commit

SPACE = "team-a"
RACKS = ("rack-5", "rack-6", "rack-7")
DEVICES = {"nvidia.com/gpu": "8", "rdma/hca": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}


class PlayedKubelets:
    """Those of some nodes, on a thread: the nodes are ready but for a dead one, and `handle` moves each pod on."""

    def __init__(self, admin: Client, racks: Sequence[str]) -> None:
        self.admin, self.racks, self.dead = admin, racks, ""
        self._over = threading.Event()
        for name in racks:
            self.admin.create(Node(metadata=ObjectMeta(name=name, labels={"gpu": "h100"})))
        self.turn()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.5):
            self.turn()

    def turn(self) -> None:
        for name in self.racks:
            ready = "Unknown" if name == self.dead else "True"
            condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": now(), "reason": "Test", "message": ""}
            change = {"status": {"conditions": [condition], "capacity": DEVICES, "allocatable": DEVICES}}
            self.admin.patch(Node.Status, name, change, patch_type=PatchType.MERGE)
        for pod in self.admin.list(Pod, namespace=SPACE):
            assert pod.metadata is not None and pod.spec is not None and pod.status is not None
            name, node = str(pod.metadata.name), str(pod.spec.nodeName or "")
            if not node or node == self.dead:
                continue
            if pod.metadata.deletionTimestamp is not None:
                code(partial(self.admin.delete, Pod, name, namespace=SPACE, grace_period=0))
            elif pod.status.phase == "Pending":
                self.handle(name, pod.metadata.labels or {}, node)

    def handle(self, name: str, labels: dict[str, str], node: str) -> None:
        """Say what becomes of a pod that is bound and has not begun."""
        raise NotImplementedError


class Kubelets(PlayedKubelets):
    """Those of three nodes for two pods. The first node that gets a pod of the gang dies once its peer runs too."""

    def __init__(self, admin: Client, shared: Path, campaign: str) -> None:
        self.shared, self.campaign = shared, campaign
        self.gangs: dict[str, set[str]] = {}
        """Attempt -> nodes that the scheduler chose."""
        super().__init__(admin, RACKS)

    def handle(self, name: str, labels: dict[str, str], node: str) -> None:
        attempt = labels.get(ATTEMPT_LABEL, "")
        if not attempt:
            self._end(name, "archive", ARCHIVED)
            return
        commit(self.shared, self.campaign)
        nodes = self.gangs.setdefault(attempt, set())
        nodes.add(node)
        if attempt != "1":
            peers = list(self.admin.list(Pod, namespace=SPACE, labels={ATTEMPT_LABEL: attempt}))
            # A pod that ends leaves its node to a peer that waits.
            if sum(bool(pod.spec and pod.spec.nodeName) for pod in peers) == GANG:
                self._end(name, "trainer", "")
            return
        self._status(name, {"phase": "Running", "podIP": "127.0.0.1"}, "trainer", {"running": {"startedAt": now()}})
        if len(nodes) > 1:
            self.first_gang_runs(nodes)

    def first_gang_runs(self, nodes: set[str]) -> None:
        """What happens once the whole first gang runs."""
        self.dead = min(nodes)

    def _end(self, name: str, container: str, message: str) -> None:
        state = {"terminated": {"exitCode": 0, "message": message, "startedAt": now(), "finishedAt": now()}}
        self._status(name, {"phase": "Succeeded"}, container, state)

    def _status(self, name: str, status: dict[str, Any], container: str, state: dict[str, Any]) -> None:
        row = {"name": container, "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        change = {"status": status | {"containerStatuses": [row]}}
        self.admin.patch(Pod.Status, name, change, namespace=SPACE, patch_type=PatchType.MERGE)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
