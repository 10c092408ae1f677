"""EKS managed node groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady, Resource
from infra.rehearsal.plugins.aws.eks.clusters import await_update, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Conversion, Input, Naming
from infra.rehearsal.plugins.wire import Props

_NOT_SENT = ("clusterName", "forceUpdateVersion", "tags", "region", "nodeGroupName", "nodeGroupNamePrefix")


def create(call: Call) -> str:
    cluster, name = call.new["clusterName"], call.new["nodeGroupName"]
    request = call.request(*(prop for prop in call.resource.table() if prop not in _NOT_SENT))
    call.client().create_nodegroup(clusterName=cluster, nodegroupName=name, tags=call.tags, **request)
    call.id = f"{cluster}:{name}"
    call.wait(lambda: _is_active(call), f"node group {call.id} to become ACTIVE")
    return call.id


def _key(call: Call) -> dict[str, str]:
    cluster, name = call.id.split(":", 1)
    return {"clusterName": cluster, "nodegroupName": name}


def _describe(call: Call) -> dict[str, Any]:
    return dict(call.client().describe_nodegroup(**_key(call))["nodegroup"])


def _is_active(call: Call) -> bool:
    found = _describe(call)
    if found["status"] in ("CREATE_FAILED", "DELETE_FAILED"):
        raise NotReady(f"node group {call.id} {found['status']}: {_issues(found)}")
    return bool(found["status"] == "ACTIVE")


def _issues(found: dict[str, Any]) -> str:
    issues = (found.get("health") or {}).get("issues") or []
    return "; ".join(f"{issue.get('code')}: {issue.get('message')}" for issue in issues) or "no health issue given"


def read(call: Call) -> Props | None:
    found = call.or_none(lambda: _describe(call))
    if not found:
        return None
    resources = found.get("resources") or {}
    groups = [{"name": group["name"]} for group in resources.get("autoScalingGroups") or []]
    return {
        **call.observed(found),
        "nodeGroupName": found["nodegroupName"],
        "resources": [{"autoscalingGroups": groups}],
        "tags": found.get("tags") or {},
    }


def update(call: Call) -> None:
    client = call.client()
    config = call.request(*(n for n in ("scalingConfig", "updateConfig", "nodeRepairConfig") if call.changed(n)))
    if call.changed("labels"):
        old, new = call.old.get("labels") or {}, call.new.get("labels") or {}
        config["labels"] = {"addOrUpdateLabels": new, "removeLabels": sorted(set(old) - set(new))}
    if call.changed("taints"):
        old, new = call.old.get("taints") or [], call.new.get("taints") or []
        kept = {(taint["key"], taint["effect"]) for taint in new}
        stale = [taint for taint in old if (taint["key"], taint["effect"]) not in kept]
        config["taints"] = {"addOrUpdateTaints": new, "removeTaints": stale}
    if config:
        _await(call, client.update_nodegroup_config(**_key(call), **config))
    if call.changed("launchTemplate", "version", "releaseVersion"):
        changed = [name for name in ("launchTemplate", "version", "releaseVersion") if call.changed(name)]
        force = bool(call.new.get("forceUpdateVersion"))
        _await(call, client.update_nodegroup_version(**_key(call), **call.request(*changed), force=force))


def _await(call: Call, answer: dict[str, Any]) -> None:
    key = _key(call)
    await_update(call, answer, "node group", name=key["clusterName"], nodegroupName=key["nodegroupName"])


def delete(call: Call) -> None:
    client = call.client()
    call.destroy(lambda: client.delete_nodegroup(**_key(call)), "ResourceInUseException")

    def gone() -> bool:
        found = call.or_none(lambda: _describe(call))
        if found and found["status"] == "DELETE_FAILED":
            raise NotReady(f"node group {call.id} DELETE_FAILED: {_issues(found)}")
        return not found

    call.wait(gone, f"node group {call.id} to go")


RESOURCES = (
    Resource(
        token="aws:eks/nodeGroup:NodeGroup",
        service="eks",
        case=Case.CAMEL,
        inputs={
            "clusterName": Input(required=True, replaces=True),
            "nodeRoleArn": Input(api="nodeRole", required=True, replaces=True),
            "subnetIds": Input(api="subnets", required=True, replaces=True, kind=Conversion.SET),
            "scalingConfig": Input(
                required=True,
                fields={
                    "minSize": Input(required=True),
                    "maxSize": Input(required=True),
                    "desiredSize": Input(required=True),
                },
            ),
            "amiType": Input(replaces=True, computed=True),
            "capacityType": Input(replaces=True, computed=True),
            "diskSize": Input(replaces=True, computed=True),
            "instanceTypes": Input(replaces=True, computed=True),
            "labels": Input(kind=Conversion.MAP),
            "launchTemplate": Input(
                fields={
                    "id": Input(replaces=True, computed=True),
                    "name": Input(replaces=True, computed=True),
                    "version": Input(required=True),
                }
            ),
            "nodeRepairConfig": Input(fields={"enabled": Input()}, computed=True),
            "releaseVersion": Input(computed=True),
            "version": Input(computed=True),
            "taints": Input(fields={"key": Input(required=True), "value": Input(), "effect": Input(required=True)}),
            "updateConfig": Input(
                computed=True,
                fields={"maxUnavailable": Input(), "maxUnavailablePercentage": Input(), "updateStrategy": Input()},
            ),
            "forceUpdateVersion": Input(api=LOCAL),
        },
        outputs={"arn": "nodegroupArn", "status": None, "resources": LOCAL},
        naming=Naming("nodeGroupName", longest=63, prefix_property="nodeGroupNamePrefix"),
        identity=("clusterName", "nodeGroupName"),
        patience=timedelta(minutes=60),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
