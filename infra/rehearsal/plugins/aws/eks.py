"""What rows cannot say about EKS: it accepts one kind of change at a time, and each is an update to wait for."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady
from infra.rehearsal.plugins.aws.resource import Resource

_LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
_NETWORK_PARTS = (
    ("endpointPrivateAccess", "endpointPublicAccess", "publicAccessCidrs"),
    ("subnetIds", "securityGroupIds"),
)


def _logging(call: Call) -> dict[str, Any] | None:
    """Return the logging of a new cluster, whose default is none."""
    return _every_log_type(call) if call.new.get("enabledClusterLogTypes") else None


def _every_log_type(call: Call) -> dict[str, Any]:
    enabled = sorted(call.new.get("enabledClusterLogTypes") or [])
    disabled = sorted(set(_LOG_TYPES) - set(enabled))
    sides = ((enabled, True), (disabled, False))
    return {"clusterLogging": [{"types": types, "enabled": switch} for types, switch in sides if types]}


class Cluster(Resource):
    names = {"logging": _logging}

    def update(self, call: Call) -> None:
        client = call.client()
        if call.changed("version"):
            self._await(call, client.update_cluster_version(name=call.id, version=call.new["version"]))
        for change in self._config_changes(call):
            self._await(call, client.update_cluster_config(name=call.id, **change))

    def _config_changes(self, call: Call) -> list[dict[str, Any]]:
        wanted, before = call.request("vpcConfig")["resourcesVpcConfig"], call.old.get("vpcConfig") or {}
        changes = [
            {"resourcesVpcConfig": {name: wanted[name] for name in names if name in wanted}}
            for names in _NETWORK_PARTS
            if any(wanted.get(name) != before.get(name) for name in names)
        ]
        if call.changed("enabledClusterLogTypes"):
            changes.append({"logging": _every_log_type(call)})
        for name in ("accessConfig", "upgradePolicy", "deletionProtection"):
            if call.changed(name) and call.new.get(name) is not None:
                changes.append(call.request(name))
        for change in changes:
            change.get("accessConfig", {}).pop("bootstrapClusterCreatorAdminPermissions", None)
        return changes

    def _await(self, call: Call, answer: dict[str, Any]) -> None:
        _await_update(call, answer, name=call.id)


class NodeGroup(Resource):
    def update(self, call: Call) -> None:
        cluster, name = call.id.split(":", 1)
        key, client = {"clusterName": cluster, "nodegroupName": name}, call.client()
        parts = ("scalingConfig", "updateConfig", "nodeRepairConfig")
        config = call.request(*(part for part in parts if call.changed(part)))
        if call.changed("labels"):
            old, new = call.old.get("labels") or {}, call.new.get("labels") or {}
            config["labels"] = {"addOrUpdateLabels": new, "removeLabels": sorted(set(old) - set(new))}
        if call.changed("taints"):
            old, new = call.old.get("taints") or [], call.new.get("taints") or []
            kept = {(taint["key"], taint["effect"]) for taint in new}
            stale = [taint for taint in old if (taint["key"], taint["effect"]) not in kept]
            config["taints"] = {"addOrUpdateTaints": new, "removeTaints": stale}
        if config:
            answer = client.update_nodegroup_config(**key, **config)
            _await_update(call, answer, name=cluster, nodegroupName=name)
        versions = [part for part in ("launchTemplate", "version", "releaseVersion") if call.changed(part)]
        if versions:
            force = bool(call.new.get("forceUpdateVersion"))
            answer = client.update_nodegroup_version(**key, **call.request(*versions), force=force)
            _await_update(call, answer, name=cluster, nodegroupName=name)


def _await_update(call: Call, answer: dict[str, Any], **target: str) -> None:
    """Wait for an update of a cluster, or of a part of it. Raises `NotReady` for one that fails."""
    update_id = answer["update"]["id"]
    title = f"update {update_id} of {call.row.title} {call.id}"

    def done() -> bool:
        update = call.client().describe_update(**target, updateId=update_id)["update"]
        if update["status"] in ("Failed", "Cancelled"):
            raise NotReady(f"{title} {update['status']}: {update.get('errors')}")
        return bool(update["status"] == "Successful")

    call.wait(done, title)


CLASSES: dict[str, type[Resource]] = {"aws:eks/cluster:Cluster": Cluster, "aws:eks/nodeGroup:NodeGroup": NodeGroup}
