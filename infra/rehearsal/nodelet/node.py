"""The Node object: registered once, kept alive by a lease, its status reported when it changes."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from infra.errors import BivouacError, TemporaryError
from infra.rehearsal.nodelet.boot import NodeConfig
from infra.rehearsal.nodelet.client import (
    CONFLICT,
    MERGE,
    NOT_FOUND,
    Api,
    ApiRefused,
    Object,
    Watch,
    micro_timestamp,
    namespaced_path,
    timestamp,
)
from infra.rehearsal.nodelet.machine import MachineConfig
from infra.rehearsal.nodelet.pods.execution import FEATURE

log = logging.getLogger(__name__)

LEASE_GROUP = "coordination.k8s.io/v1"
LEASE_NAMESPACE = "kube-node-lease"
LEASE_S = 40
PERIOD_S = 10.0
"""A kubelet renews its lease and checks its status every 10 s, and reports an unchanged status every 5 min."""
REPORT_S = 300.0
JOIN_RETRY_S = (1.0, 10.0)
KUBELET_PORT = 10250
DEVICE_PLUGINS = {
    "nvidia.com/gpu": "nvidia-device-plugin",
    "vpc.amazonaws.com/efa": "aws-efa-k8s-device-plugin",
}
"""Extended resource -> the Helm release in kube-system that a node needs to offer it."""
RELEASES = namespaced_path("secrets", "kube-system")
HEALTHY = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


class Node:
    def __init__(self, api: Api, config: MachineConfig, settings: NodeConfig) -> None:
        self._api, self._config, self._settings = api, config, settings
        self._path = f"/api/v1/nodes/{config.hostname}"
        self._lease_path = namespaced_path("leases", LEASE_NAMESPACE, config.hostname, LEASE_GROUP)
        self._releases: dict[str, Object] = {}
        self._offered: set[str] = set()
        self._version = ""
        self._boot_id, self._reported = os.urandom(16).hex(), 0.0
        self._changed = threading.Event()
        self._watch = Watch(api, RELEASES, self._on_releases, self._on_release, labelSelector="owner=helm")

    def register(self) -> None:
        """Register until the cluster accepts the node; log to the console why it does not."""
        patience, complaint = JOIN_RETRY_S[0], ""
        while True:
            try:
                self._version = self._api.get("/version")["gitVersion"]
                self._create()
                self._renew()
                self._report()
                log.info("joined %s as %s", self._settings.cluster, self._config.hostname)
                return
            except BivouacError as error:
                if str(error) != complaint:
                    log.error("cannot join %s: %s", self._settings.cluster, error)
                complaint = str(error)
                time.sleep(patience)
                patience = min(patience * 2, JOIN_RETRY_S[1])

    def start(self) -> None:
        """Start heartbeats, and resource updates as device plugins come and go. Call it after `register`."""
        self._watch.start()
        threading.Thread(target=self._beat, args=(self._renew,), name="lease", daemon=True).start()
        threading.Thread(target=self._beat, args=(self._look,), name="status", daemon=True).start()

    def _beat(self, action: Any) -> None:
        while True:
            if action == self._look:
                self._changed.wait(PERIOD_S)
                self._changed.clear()
            else:
                time.sleep(PERIOD_S)
            try:
                action()
            except (ApiRefused, TemporaryError) as error:
                log.warning("heartbeat: %s", error)

    def _create(self) -> None:
        config = self._config
        labels = {
            "kubernetes.io/hostname": config.hostname,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": _architecture(),
            "node.kubernetes.io/instance-type": config.instance_type,
            "topology.kubernetes.io/zone": config.zone,
            "topology.kubernetes.io/region": config.region,
            **self._settings.labels,
        }
        if group := config.tags.get("eks:nodegroup-name"):
            labels["eks.amazonaws.com/nodegroup"] = group
        spec = {
            "providerID": f"aws:///{config.zone}/{config.instance_id}",
            "taints": [taint.document() for taint in self._settings.taints],
        }
        metadata = {"name": config.hostname, "labels": labels}
        try:
            self._api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
        except ApiRefused as error:
            if error.status != CONFLICT:
                raise
            self._api.patch(self._path, {"metadata": {"labels": labels}})

    def _renew(self) -> None:
        renewal = {
            "renewTime": micro_timestamp(),
            "holderIdentity": self._config.hostname,
            "leaseDurationSeconds": LEASE_S,
        }
        try:
            self._api.patch(self._lease_path, {"spec": renewal}, MERGE)
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise
            node = self._api.get(self._path)
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._config.hostname, "uid": node["metadata"]["uid"]}
            metadata = {"name": self._config.hostname, "ownerReferences": [owner]}
            lease = {"apiVersion": LEASE_GROUP, "kind": "Lease", "metadata": metadata, "spec": renewal}
            self._api.post(namespaced_path("leases", LEASE_NAMESPACE, group=LEASE_GROUP), lease)

    def _look(self) -> None:
        """Report a changed status: our resources, or what the node controller wrote while we were unreachable."""
        status = self._api.get(self._path, resourceVersion="0").get("status") or {}
        ready = next(
            (condition["status"] for condition in status.get("conditions") or [] if condition["type"] == "Ready"), ""
        )
        current = all((status.get("capacity") or {}).get(name) == count for name, count in self._resources().items())
        stale = self._offered - set(self._resources())
        if ready != "True" or not current or stale or time.monotonic() - self._reported > REPORT_S:
            self._report(status)

    def _report(self, previous: Object | None = None) -> None:
        now = timestamp()
        former = {condition["type"]: condition for condition in (previous or {}).get("conditions") or []}
        conditions = []
        for kind, (status, reason, message) in HEALTHY.items():
            changed_at = former[kind]["lastTransitionTime"] if former.get(kind, {}).get("status") == status else now
            conditions.append(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": changed_at,
                }
            )
        resources: dict[str, str | None] = dict(self._resources())
        # A strategic merge keeps every key that is not set to null.
        withdrawn: dict[str, str | None] = dict.fromkeys(self._offered - set(resources))
        status_document = {
            "addresses": [
                {"type": "InternalIP", "address": self._config.address},
                {"type": "InternalDNS", "address": self._config.hostname},
                {"type": "Hostname", "address": self._config.hostname},
            ],
            "capacity": resources | withdrawn,
            "allocatable": resources | withdrawn,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "nodeInfo": self._info(),
            "declaredFeatures": [FEATURE],
        }
        self._api.patch(self._path + "/status", {"status": status_document})
        self._offered, self._reported = set(resources), time.monotonic()

    def _resources(self) -> dict[str, str]:
        resources = {
            "cpu": str(os.cpu_count()),
            "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki",
            "ephemeral-storage": "100Gi",
            "pods": str(self._settings.max_pods or len(self._config.pod_addresses) + 2),
        }
        devices = {
            (item["metadata"].get("labels") or {}).get("name")
            for item in list(self._releases.values())
            if (item["metadata"].get("labels") or {}).get("status") == "deployed"
        }
        for name, count in self._config.capacity.items():
            if DEVICE_PLUGINS.get(name) in (None, *devices):
                resources[name] = count
        return resources

    def _info(self) -> dict[str, str]:
        return {
            "architecture": _architecture(),
            "bootID": self._boot_id,
            "containerRuntimeVersion": "nodelet://1",
            "kernelVersion": os.uname().release,
            "kubeProxyVersion": self._version,
            "kubeletVersion": self._version,
            "machineID": self._config.instance_id.removeprefix("i-"),
            "operatingSystem": "linux",
            "osImage": "Bivouac rehearsal",
            "systemUUID": self._config.instance_id,
        }

    def _on_releases(self, items: list[Object]) -> None:
        self._releases = {item["metadata"]["name"]: _without_data(item) for item in items}
        self._changed.set()

    def _on_release(self, kind: str, item: Object) -> None:
        if kind == "DELETED":
            self._releases.pop(item["metadata"]["name"], None)
        else:
            self._releases[item["metadata"]["name"]] = _without_data(item)
        self._changed.set()


def _without_data(item: Object) -> Object:
    return {"metadata": item["metadata"]}


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
