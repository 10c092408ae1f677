"""EKS add-ons: ACTIVE once their needs are met, else CREATING and, after a while, DEGRADED."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from infra.rehearsal.aws.eks.clusters import Cluster, EksResponse, find, find_active
from infra.rehearsal.aws.eks.entries import eks_arn
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend
from infra.rehearsal.aws.world import World

DEGRADED_AFTER_S = 15.0
DAEMON_STARTS_S, DEPLOYMENT_STARTS_S = 0.3, 0.5
DELETION_S = 0.3


@dataclass(frozen=True)
class AddonKind:
    version: str
    needs_node: bool
    """True for a Deployment, which has no replicas until a node is Ready; False for a DaemonSet."""
    type: str = "networking"


KINDS = {
    "vpc-cni": AddonKind("v1.22.4-eksbuild.3", False),
    "kube-proxy": AddonKind("v1.36.0-eksbuild.21", False),
    "coredns": AddonKind("v1.14.3-eksbuild.16", True),
    "eks-pod-identity-agent": AddonKind("v1.3.10-eksbuild.3", False, "security"),
    "eks-node-monitoring-agent": AddonKind("v1.5.1-eksbuild.1", False, "observability"),
    "aws-fsx-csi-driver": AddonKind("v1.9.0-eksbuild.1", True, "storage"),
    "aws-ebs-csi-driver": AddonKind("v1.56.0-eksbuild.1", True, "storage"),
    "aws-mountpoint-s3-csi-driver": AddonKind("v2.9.0-eksbuild.1", True, "storage"),
    "metrics-server": AddonKind("v0.8.1-eksbuild.1", True, "observability"),
    "amazon-cloudwatch-observability": AddonKind("v5.3.1-eksbuild.1", True, "observability"),
}


class AddonCalls:
    def __init__(self, world: World) -> None:
        self.world = world
        self._since: dict[str, float] = {}
        """ARN -> time at which the present change began."""
        self._updates: dict[str, dict[str, Any]] = {}
        """ARN -> the update in progress."""

    def _find(self, params: Parameters) -> tuple[Cluster, dict[str, Any]]:
        cluster = find(self.world, params["clusterName"])
        if params["addonName"] not in cluster.addons:
            message = f"No addon: {params['addonName']} found in cluster: {cluster.name}"
            raise AwsError("ResourceNotFoundException", message)
        return cluster, cluster.addons[params["addonName"]]

    def create_addon(self, params: Parameters) -> dict[str, Any]:
        cluster, name = find_active(self.world, params["clusterName"]), params["addonName"]
        if name not in KINDS:
            names = ", ".join(sorted(KINDS))
            raise AwsError("InvalidParameterException", f"Addon {name} is not supported; the emulated EKS has: {names}")
        if name in cluster.addons:
            raise AwsError("ResourceInUseException", f"Addon already exists: {name}")
        self._refuse_unknown(params)
        addon = {
            "addonName": name,
            "clusterName": cluster.name,
            "status": "CREATING",
            "addonVersion": params.get("addonVersion") or KINDS[name].version,
            "health": {"issues": []},
            "addonArn": eks_arn(self.world, "addon", cluster.name, name, str(uuid.uuid4())),
            "createdAt": datetime.now(UTC),
            "modifiedAt": datetime.now(UTC),
            "tags": dict(params.get("tags") or {}),
        } | {key: params[key] for key in ("serviceAccountRoleArn", "configurationValues") if params.get(key)}
        cluster.addons[name] = addon
        self._since[addon["addonArn"]] = time.monotonic()
        return {"addon": addon}

    @staticmethod
    def _refuse_unknown(params: Parameters) -> None:
        supported_version = KINDS[params["addonName"]].version
        if params.get("addonVersion", supported_version) != supported_version:
            raise AwsError(
                "InvalidParameterException", f"Addon version specified is not supported; offered: {supported_version}"
            )
        try:
            json.loads(params.get("configurationValues") or "{}")
        except ValueError as error:
            # EKS accepts YAML too. JSON is checked; YAML is refused.
            raise AwsError("InvalidParameterException", f"ConfigurationValue is not JSON: {error}") from error

    def describe_addon(self, params: Parameters) -> dict[str, Any]:
        return {"addon": self._find(params)[1]}

    def list_addons(self, params: Parameters) -> dict[str, Any]:
        return {"addons": sorted(find(self.world, params["clusterName"]).addons)}

    def update_addon(self, params: Parameters) -> dict[str, Any]:
        cluster, addon = self._find(params)
        if self.world.strictness.on and addon["status"] in ("CREATING", "UPDATING", "DELETING"):
            message = f"Cannot update add-on {addon['addonName']} while it is {addon['status']}"
            raise AwsError("ResourceInUseException", message)
        self._refuse_unknown(params)
        keys = ("addonVersion", "serviceAccountRoleArn", "configurationValues")
        addon |= {key: params[key] for key in keys if params.get(key)}
        addon |= {"modifiedAt": datetime.now(UTC), "status": "UPDATING"}
        self._since[addon["addonArn"]] = time.monotonic()
        update = cluster.record("AddonUpdate", addonName=addon["addonName"])
        if self.world.strictness.on:
            update["status"], self._updates[addon["addonArn"]] = "InProgress", update
        return {"update": update}

    def delete_addon(self, params: Parameters) -> dict[str, Any]:
        cluster, addon = self._find(params)
        addon["status"] = "DELETING"

        def gone() -> None:
            trouble = self.world.troubles.find("add-on", addon["addonName"], "delete")
            if trouble is not None and trouble.outcome == "hang":
                self.world.schedule_once(DELETION_S, gone)
                return
            with self.world.lock:
                if trouble is not None:
                    addon["status"] = "DELETE_FAILED"
                elif cluster.addons.get(addon["addonName"]) is addon:
                    del cluster.addons[addon["addonName"]]

        self.world.schedule_once(self.world.takes("add-on deleted", DELETION_S), gone)
        return {"addon": addon}

    def describe_addon_versions(self, params: Parameters) -> dict[str, Any]:
        version = params.get("kubernetesVersion", "1.36")
        addon_name = params.get("addonName")
        return {
            "addons": [
                {
                    "addonName": name,
                    "type": kind.type,
                    "publisher": "eks",
                    "owner": "aws",
                    "addonVersions": [
                        {
                            "addonVersion": kind.version,
                            "architecture": ["amd64", "arm64"],
                            "compatibilities": [
                                {"clusterVersion": version, "defaultVersion": True, "platformVersions": ["*"]}
                            ],
                        }
                    ],
                }
                for name, kind in KINDS.items()
                if addon_name in (None, name)
            ]
        }

    def _reconcile(self) -> None:
        for cluster in list(self.world.clusters.values()):
            waiting = [candidate for candidate in list(cluster.addons.values()) if candidate["status"] in PENDING]
            nodes: bool | None = None
            for addon in waiting:
                if KINDS[addon["addonName"]].needs_node and nodes is None:
                    nodes = self._has_node(cluster)
                with self.world.lock:
                    self._settle(addon, bool(nodes))
                    if addon["status"] != "UPDATING" and (update := self._updates.pop(addon["addonArn"], None)):
                        update["status"] = "Successful" if addon["status"] == "ACTIVE" else "Failed"

    def _has_node(self, cluster: Cluster) -> bool:
        plane = self.world.control_planes.get(cluster.name)
        return plane is not None and bool(self.world.ready_nodes(plane))

    def _settle(self, addon: dict[str, Any], has_node: bool) -> None:
        kind, age = KINDS[addon["addonName"]], time.monotonic() - self._since[addon["addonArn"]]
        if addon["status"] not in PENDING or age < (DEPLOYMENT_STARTS_S if kind.needs_node else DAEMON_STARTS_S):
            return
        if trouble := self.world.troubles.find("add-on", addon["addonName"], "create"):
            issue = {"code": "ConfigurationConflict", "message": trouble.message, "resourceIds": []}
            status = "CREATE_FAILED" if trouble.outcome == "fail" else "DEGRADED"
            addon |= {"status": status, "health": {"issues": [issue]}}
            return
        if has_node or not kind.needs_node:
            addon |= {"status": "ACTIVE", "health": {"issues": []}, "modifiedAt": datetime.now(UTC)}
        elif age > DEGRADED_AFTER_S and addon["status"] != "DEGRADED":
            message = "The add-on is unhealthy because it doesn't have the desired number of replicas."
            issue = {"code": "InsufficientNumberOfReplicas", "message": message, "resourceIds": []}
            addon |= {"status": "DEGRADED", "health": {"issues": [issue]}}


PENDING = ("CREATING", "UPDATING", "DEGRADED")


def install(world: World) -> None:
    addons = AddonCalls(world)
    add_backend(world, EksResponse, addons)
    world.schedule_every(0.25, addons._reconcile, apart=True)
