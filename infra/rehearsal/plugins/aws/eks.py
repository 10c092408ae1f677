"""What rows cannot say about EKS: it accepts one kind of change at a time, and each is an update to wait for."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import NotReady, ResourceCall
from infra.rehearsal.plugins.aws.resource import ResourceType

_LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
_NETWORK_PARTS = (
    ("endpointPrivateAccess", "endpointPublicAccess", "publicAccessCidrs"),
    ("subnetIds", "securityGroupIds"),
)


def _logging(call: ResourceCall) -> dict[str, Any] | None:
    """Return the logging of a new cluster, whose default is none."""
    return _every_log_type(call) if call.new.get("enabledClusterLogTypes") else None


def _every_log_type(call: ResourceCall) -> dict[str, Any]:
    chosen_types = sorted(call.new.get("enabledClusterLogTypes") or [])
    other_types = sorted(set(_LOG_TYPES) - set(chosen_types))
    sides = ((chosen_types, True), (other_types, False))
    return {"clusterLogging": [{"types": types, "enabled": switch} for types, switch in sides if types]}


class ClusterType(ResourceType):
    names = {"logging": _logging}

    def update(self, call: ResourceCall) -> None:
        client = call.client()
        if call.differs("version"):
            self._await(call, client.update_cluster_version(name=call.id, version=call.new["version"]))
        for change in self._config_changes(call):
            self._await(call, client.update_cluster_config(name=call.id, **change))

    def _config_changes(self, call: ResourceCall) -> list[dict[str, Any]]:
        parts, previous = call.request("vpcConfig")["resourcesVpcConfig"], call.old.get("vpcConfig") or {}
        changes = [
            {"resourcesVpcConfig": {name: parts[name] for name in names if name in parts}}
            for names in _NETWORK_PARTS
            if any(parts.get(name) != previous.get(name) for name in names)
        ]
        if call.differs("enabledClusterLogTypes"):
            changes.append({"logging": _every_log_type(call)})
        for name in ("accessConfig", "upgradePolicy", "deletionProtection"):
            if call.differs(name) and call.new.get(name) is not None:
                changes.append(call.request(name))
        for change in changes:
            change.get("accessConfig", {}).pop("bootstrapClusterCreatorAdminPermissions", None)
        return changes

    def _await(self, call: ResourceCall, answer: dict[str, Any]) -> None:
        _await_update(call, answer, name=call.id)


class NodeGroupType(ResourceType):
    def update(self, call: ResourceCall) -> None:
        cluster, name = call.id.split(":", 1)
        key, client = {"clusterName": cluster, "nodegroupName": name}, call.client()
        parts = ("scalingConfig", "updateConfig", "nodeRepairConfig")
        config = call.request(*(part for part in parts if call.differs(part)))
        if call.differs("labels"):
            old, new = call.old.get("labels") or {}, call.new.get("labels") or {}
            config["labels"] = {"addOrUpdateLabels": new, "removeLabels": sorted(set(old) - set(new))}
        if call.differs("taints"):
            old, new = call.old.get("taints") or [], call.new.get("taints") or []
            places = {(taint["key"], taint["effect"]) for taint in new}
            stale = [taint for taint in old if (taint["key"], taint["effect"]) not in places]
            config["taints"] = {"addOrUpdateTaints": new, "removeTaints": stale}
        if config:
            answer = client.update_nodegroup_config(**key, **config)
            _await_update(call, answer, name=cluster, nodegroupName=name)
        versions = [part for part in ("launchTemplate", "version", "releaseVersion") if call.differs(part)]
        if versions:
            force = bool(call.new.get("forceUpdateVersion"))
            answer = client.update_nodegroup_version(**key, **call.request(*versions), force=force)
            _await_update(call, answer, name=cluster, nodegroupName=name)


def _await_update(call: ResourceCall, answer: dict[str, Any], **target: str) -> None:
    """Wait for an update of a cluster, or of a part of it. Raises `NotReady` for one that fails."""
    update_id = answer["update"]["id"]
    title = f"update {update_id} of {call.row.title} {call.id}"

    def done() -> bool:
        update = call.client().describe_update(**target, updateId=update_id)["update"]
        if update["status"] in ("Failed", "Cancelled"):
            raise NotReady(f"{title} {update['status']}: {update.get('errors')}")
        return bool(update["status"] == "Successful")

    call.wait(done, title)


CLASSES: dict[str, type[ResourceType]] = {
    "aws:eks/cluster:Cluster": ClusterType,
    "aws:eks/nodeGroup:NodeGroup": NodeGroupType,
}
