"""The GPU nodes: how many, which are fit, and how one is replaced. Used by preflight and by the steward alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType
from pydantic import BaseModel, ConfigDict

from infra.account import Account
from infra.actions.cluster import is_gone
from infra.names import GPU_POOL, GPU_TAINT_KEY, POOL_LABEL, Names

QUARANTINE_LABEL = "bivouac.dev/quarantined"
Guard = Callable[[], None]
"""Raises when the lease is lost; called before every mutation."""


class NodeFacts(BaseModel):
    """A GPU node as Kubernetes and EC2 see it."""

    model_config = ConfigDict(frozen=True)

    name: str
    instance: str
    ready: bool | None
    quarantined: bool
    instance_state: Literal["running", "impaired", "gone", "unknown"]
    accelerators: int

    @property
    def fit(self) -> bool:
        return self.ready is True and not self.quarantined and self.instance_state in ("running", "unknown")


@dataclass(frozen=True)
class Launched:
    """An instance that EC2 bills, or is about to end."""

    instance: str
    state: str
    at: datetime


class GpuNodes:
    """The GPU node group of one campaign."""

    def __init__(self, account: Account, client: Client, names: Names, guard: Guard) -> None:
        self.account, self.client, self.names, self.guard = account, client, names, guard

    def desired(self) -> int:
        return int(self._group()["scalingConfig"]["desiredSize"])

    def set_desired(self, count: int) -> None:
        """The node group itself is the only truth about the wanted number of nodes."""
        scaling = self._group()["scalingConfig"]
        if scaling["desiredSize"] == count:
            return
        self.guard()
        self.account.client("eks").update_nodegroup_config(
            clusterName=self.names.cluster,
            nodegroupName=self.names.gpu_group,
            scalingConfig={"minSize": 0, "maxSize": max(scaling["maxSize"], count), "desiredSize": count},
        )

    def facts(self) -> tuple[NodeFacts, ...]:
        nodes = [node for node in self.client.list(Node, labels={POOL_LABEL: GPU_POOL})]
        instances = {_instance_of(node): node for node in nodes}
        states = self._instance_states([name for name in instances if name])
        return tuple(_facts(node, instance, states.get(instance, "unknown")) for instance, node in instances.items())

    def launched(self) -> tuple[Launched, ...]:
        """Instances of the group that are not terminated, whether or not they have joined."""
        filters = [
            {"Name": "tag:eks:nodegroup-name", "Values": [self.names.gpu_group]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped", "shutting-down"]},
        ]
        pages = self.account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
        found = [item for page in pages for r in page["Reservations"] for item in r["Instances"]]
        return tuple(Launched(i["InstanceId"], i["State"]["Name"], i["LaunchTime"]) for i in found)

    def refusals(self, since: datetime) -> tuple[str, ...]:
        """AWS's own words on why nodes are missing: the group's health, then its last launch that failed `since`."""
        group = self._group()
        said = [f"{issue['code']}: {issue['message']}" for issue in group.get("health", {}).get("issues", ())]
        for scaling in (group.get("resources") or {}).get("autoScalingGroups", ()):
            ask = self.account.client("autoscaling").describe_scaling_activities
            activities = ask(AutoScalingGroupName=scaling["name"], MaxRecords=20)["Activities"]
            failed = [one for one in activities if one["StatusCode"] == "Failed" and one["StartTime"] >= since]
            said += [
                one["StatusMessage"] for one in failed[:1] if not any(one["StatusMessage"] in known for known in said)
            ]
        return tuple(said)

    def console(self, instance: str, lines: int = 4) -> str:
        """The last words on an instance's console, or why there are none; on AWS they come minutes late."""
        client = self.account.client("ec2")
        try:
            text = client.get_console_output(InstanceId=instance).get("Output", "")
        except client.exceptions.ClientError as error:
            return f"no console: {error.response['Error']['Code']}"
        words = [line.strip() for line in str(text).splitlines() if line.strip()][-lines:]
        return " | ".join(words)[-500:] or "nothing on its console yet"

    def quarantine(self, node: str, reason: str) -> None:
        """No new pod comes to this node; it stays visible as quarantined until its instance is gone."""
        self.guard()
        change = {"metadata": {"labels": {QUARANTINE_LABEL: reason}}, "spec": {"unschedulable": True}}
        try:
            self.client.patch(Node, node, change, patch_type=PatchType.MERGE)
        except ApiError as error:
            if not is_gone(error):
                raise

    def replace(self, instance: str) -> bool:
        """Give the instance back; the group starts another since its desired size stays. Done twice is done once.

        False when the group does not hold this instance (any more): then nobody comes in its place by this call.
        """
        self.guard()
        client = self.account.client("autoscaling")
        try:
            client.terminate_instance_in_auto_scaling_group(InstanceId=instance, ShouldDecrementDesiredCapacity=False)
        except client.exceptions.ClientError as error:
            if "not found" not in str(error).lower() and "terminat" not in str(error).lower():
                raise
            return False
        return True

    def _group(self) -> dict[str, Any]:
        answer = self.account.client("eks").describe_nodegroup(
            clusterName=self.names.cluster, nodegroupName=self.names.gpu_group
        )
        return dict(answer["nodegroup"])

    def _instance_states(self, instances: list[str]) -> dict[str, str]:
        """EC2's word on each instance; one that it does not list, or all when it will not say, is unknown."""
        if not instances:
            return {}
        client = self.account.client("ec2")
        try:
            pages = list(client.get_paginator("describe_instance_status").paginate(IncludeAllInstances=True))
        except client.exceptions.ClientError:
            return {}
        seen = {item["InstanceId"]: _state(item) for page in pages for item in page["InstanceStatuses"]}
        return {instance: seen.get(instance, "unknown") for instance in instances}


def _state(item: dict[str, Any]) -> str:
    if item["InstanceState"]["Name"] not in ("pending", "running"):
        return "gone"
    checks = (item.get("SystemStatus", {}).get("Status"), item.get("InstanceStatus", {}).get("Status"))
    return "impaired" if "impaired" in checks else "running"


def _instance_of(node: Node) -> str:
    provider_id = (node.spec.providerID if node.spec else None) or ""
    return provider_id.rpartition("/")[2]


def _facts(node: Node, instance: str, state: Any) -> NodeFacts:
    conditions = (node.status.conditions if node.status else None) or []
    ready = next((c.status for c in conditions if c.type == "Ready"), "Unknown")
    allocatable = (node.status.allocatable if node.status else None) or {}
    labels = (node.metadata.labels if node.metadata else None) or {}
    return NodeFacts(
        name=str(node.metadata.name if node.metadata else ""),
        instance=instance,
        ready={"True": True, "False": False}.get(ready),
        quarantined=QUARANTINE_LABEL in labels,
        instance_state=state,
        accelerators=int(allocatable.get(GPU_TAINT_KEY, "0")),
    )
