"""The GPU nodes: their number, their state and their replacement, for preflight and the steward."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError
from lightkube import Client
from lightkube.models.core_v1 import NodeCondition, Taint
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from infra.aws.account import Account, every, explained
from infra.cluster.cloud_notice import CloudNotice, scheduled
from infra.cluster.fitness import CONDITIONS, Ailment, NodeFacts, Sickness, is_cured_by_reboot, is_excused
from infra.cluster.kubernetes import or_none
from infra.errors import TemporaryError
from infra.spec.names import GPU_POOL, GPU_TAINT_KEY, POOL_LABEL, Names

QUARANTINE_LABEL = "bivouac.dev/quarantined"
_NO_LONGER_HELD = re.compile(r"not found|instance \S+ (is|was|has been)\b.*\bterminat", re.IGNORECASE)
SETTLES_S = 300.0
"""Longest wait for an earlier change of the node group, such as of its size."""
_SETTLE_PAUSE_S = 0.5
_ACTIVITIES = 20
_MOST_NAMED = 100
"""Most instances that a question may name: EC2's API reference, DescribeInstanceStatus."""
_INSTANCE = re.compile(r"\bi-\w+")
_TOLD_ELSEWHERE = re.compile(r"node\.kubernetes\.io/(unschedulable|not-ready|unreachable)")
"""Taints that follow from a cordon or the Ready condition, which are reported themselves."""
NETWORK_LABELS = tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in range(1, 5))
"""EKS user guide, "Place distributed AI/ML workloads with network topology labels": 1 is the top layer."""
Guard = Callable[[], None]
"""Raises when the lease is lost; called before every mutation."""


def instances_with(account: Account, *states: str, **tags: str) -> list[dict[str, Any]]:
    """Return EC2's instances in these states that carry all these tags."""
    filters = [{"Name": f"tag:{name}", "Values": [value]} for name, value in tags.items()]
    filters.append({"Name": "instance-state-name", "Values": list(states)})
    pages = account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [instance for page in pages for row in page["Reservations"] for instance in row["Instances"]]


@dataclass(frozen=True)
class Launched:
    """An instance that is not terminated yet."""

    instance: str
    state: str
    at: datetime

    @property
    def bills(self) -> bool:
        """EC2 bills neither an instance that is shutting down nor one that is stopped."""
        return self.state in ("pending", "running")


class InstanceStatus(NamedTuple):
    """EC2's word on an instance."""

    state: str = "unknown"
    notice: CloudNotice | None = None


class NodeGroup:
    """The size of a campaign's node group, by EKS's API alone."""

    def __init__(self, account: Account, names: Names, guard: Guard, group: str) -> None:
        self.account, self.names, self.guard, self.group = account, names, guard, group

    def desired(self) -> int:
        return int(self._group()["scalingConfig"]["desiredSize"])

    def set_desired(self, count: int) -> bool:
        """Set the desired size, the only place for the wanted number of nodes; return whether it was another.

        EKS refuses a change while another is under way, and botocore does not repeat it. So this repeats it, as after
        any temporary refusal, for `SETTLES_S`, and then raises `ClientError`.
        """
        end = time.monotonic() + SETTLES_S
        while True:
            try:
                return self._set_desired(count)
            except ClientError as error:
                busy = error.response["Error"]["Code"] == "ResourceInUseException"
                passes = busy or isinstance(explained(error), TemporaryError)
                if not passes or time.monotonic() > end:
                    raise
            time.sleep(_SETTLE_PAUSE_S)

    def _set_desired(self, count: int) -> bool:
        scaling = self._group()["scalingConfig"]
        if scaling["desiredSize"] == count:
            return False
        self.guard()
        self.account.client("eks").update_nodegroup_config(
            clusterName=self.names.cluster,
            nodegroupName=self.group,
            scalingConfig={"minSize": 0, "maxSize": max(scaling["maxSize"], count), "desiredSize": count},
        )
        return True

    def _group(self) -> dict[str, Any]:
        answer = self.account.client("eks").describe_nodegroup(clusterName=self.names.cluster, nodegroupName=self.group)
        return dict(answer["nodegroup"])


class GpuNodes(NodeGroup):
    """The GPU node group of one campaign, or another `group` of it by its number of nodes."""

    def __init__(self, account: Account, client: Client, names: Names, guard: Guard, group: str | None = None) -> None:
        super().__init__(account, names, guard, group or names.gpu_group)
        self.client = client
        self.left_out: tuple[str, ...] = ()
        """Always empty: a node that is given up is quarantined and its instance ended."""
        self.not_told: Exception | None = None
        """EC2's error when it was last asked for instance states; None when it answered."""

    def facts(self, ask_ec2: bool = True) -> tuple[NodeFacts, ...]:
        """Return the nodes in Kubernetes; their instance state is unknown unless EC2 is asked."""
        nodes = [node for node in self.client.list(Node, labels={POOL_LABEL: GPU_POOL})]
        instances = {str((node.spec and node.spec.providerID) or "").rpartition("/")[2]: node for node in nodes}
        states = self._instance_states([name for name in instances if name]) if ask_ec2 else {}
        unknown = InstanceStatus()
        return tuple(_facts(node, instance, *states.get(instance, unknown)) for instance, node in instances.items())

    def launched(self) -> tuple[Launched, ...]:
        """Return the group's instances that are not terminated, joined or not."""
        tag = {"eks:nodegroup-name": self.names.gpu_group}
        states = ("pending", "running", "stopping", "stopped", "shutting-down")
        instances = instances_with(self.account, *states, **tag)
        return tuple(Launched(i["InstanceId"], i["State"]["Name"], i["LaunchTime"]) for i in instances)

    def refusals(self, start: datetime) -> tuple[str, ...]:
        """Return AWS's reasons for missing nodes: the group's health, then its last launch to fail since `start`."""
        group = self._group()
        reasons = [f"{issue['code']}: {issue['message']}" for issue in group.get("health", {}).get("issues", ())]
        for scaling in (group.get("resources") or {}).get("autoScalingGroups", ()):
            client = self.account.client("autoscaling")
            newest = every(client, "describe_scaling_activities", "Activities", AutoScalingGroupName=scaling["name"])
            activities = itertools.islice(newest, _ACTIVITIES)
            failures = [row for row in activities if row["StatusCode"] == "Failed" and row["StartTime"] >= start]
            messages = [str(row["StatusMessage"]) for row in failures[:1]]
            reasons += [message for message in messages if not any(message in text for text in reasons)]
        return tuple(reasons)

    def console(self, instance: str, lines: int = 4) -> str:
        """Return the last lines of an instance's console, or why there are none. On AWS they are minutes late."""
        client = self.account.client("ec2")
        try:
            text = client.get_console_output(InstanceId=instance).get("Output", "")
        except ClientError as error:
            return f"no console: {error.response['Error']['Code']}"
        words = [line.strip() for line in str(text).splitlines() if line.strip()][-lines:]
        return " | ".join(words)[-500:] or "nothing on its console yet"

    def quarantine(self, node: str, reason: str, died_at: datetime | None = None) -> None:
        """Keep new pods off this node and label it as quarantined until its instance is gone, also if it has died."""
        self._patch(node, {"metadata": {"labels": {QUARANTINE_LABEL: reason}}, "spec": {"unschedulable": True}})

    def restore(self, deaths: Mapping[str, datetime | None]) -> None:
        """Do nothing: Kubernetes' label and the instance's end keep a quarantined node off."""

    def cordon(self, node: str, on: bool) -> None:
        self._patch(node, {"spec": {"unschedulable": on}})

    def _patch(self, node: str, change: dict[str, Any]) -> None:
        self.guard()
        or_none(lambda: self.client.patch(Node, node, change, patch_type=PatchType.MERGE))

    def replace(self, instance: str) -> bool:
        """Give the instance back; the group starts another, since its desired size stays. Idempotent.

        Return False when the group does not hold the instance (any more): then this call brings no replacement. Raises
        `ClientError` for every other refusal: the instance still runs and bills.
        """
        return self._end(instance, fewer=False)

    def release(self, instance: str) -> bool:
        """Give the instance back for good and lower the group's desired size by one, as Cluster Autoscaler does on EKS.

        With a smaller desired size alone, Auto Scaling would choose the instance. Only for an instance of `held`: one
        that is already ending would lower the size again. Otherwise like `replace`.
        """
        return self._end(instance, fewer=True)

    def reboot(self, instance: str) -> None:
        """Have EC2 reboot an instance, whose disks stay. Raises `ClientError` for a refusal."""
        self.guard()
        self.account.client("ec2").reboot_instances(InstanceIds=[instance])

    def held(self) -> frozenset[str]:
        """Return the instances that the group has or starts and is not ending."""
        client, instances = self.account.client("autoscaling"), set[str]()
        for scaling in (self._group().get("resources") or {}).get("autoScalingGroups", ()):
            answer = client.describe_auto_scaling_groups(AutoScalingGroupNames=[scaling["name"]])
            for group in answer["AutoScalingGroups"]:
                instances |= {
                    row["InstanceId"]
                    for row in group["Instances"]
                    if row["LifecycleState"].partition(":")[0] in ("Pending", "InService")
                }
        return frozenset(instances)

    def _end(self, instance: str, *, fewer: bool) -> bool:
        self.guard()
        client = self.account.client("autoscaling")
        try:
            client.terminate_instance_in_auto_scaling_group(InstanceId=instance, ShouldDecrementDesiredCapacity=fewer)
        except ClientError as error:
            refusal = error.response["Error"]
            # Search the message only: the error's full text always names the operation, "Terminate...".
            if refusal["Code"] != "ValidationError" or not _NO_LONGER_HELD.search(refusal["Message"]):
                raise
            return False
        return True

    def _instance_states(self, instances: list[str]) -> dict[str, InstanceStatus]:
        """Return EC2's state of each instance: unknown if EC2 does not list it; an empty dict after an error."""
        states = dict[str, InstanceStatus]()
        try:
            for start in range(0, len(instances), _MOST_NAMED):
                states |= self._named_states(instances[start : start + _MOST_NAMED])
        except (ClientError, BotoCoreError) as error:
            self.not_told = error
            return {}
        self.not_told = None
        return {instance: states.get(instance, InstanceStatus()) for instance in instances}

    def _named_states(self, instances: Sequence[str]) -> dict[str, InstanceStatus]:
        """EC2 refuses a whole question for one instance that it does not know (any more); ask again without those."""
        client, names = self.account.client("ec2"), list(instances)
        while names:
            try:
                answer = client.describe_instance_status(InstanceIds=names, IncludeAllInstances=True)
            except ClientError as error:
                if error.response["Error"]["Code"] != "InvalidInstanceID.NotFound":
                    raise
                unknown = set(_INSTANCE.findall(error.response["Error"]["Message"]))
                if not unknown & set(names):
                    raise
                names = [name for name in names if name not in unknown]
            else:
                statuses = answer["InstanceStatuses"]
                return {item["InstanceId"]: InstanceStatus(_state(item), scheduled(item)) for item in statuses}
        return {}


def _state(item: dict[str, Any]) -> str:
    if item["InstanceState"]["Name"] not in ("pending", "running"):
        return "gone"
    checks = (item.get("SystemStatus", {}).get("Status"), item.get("InstanceStatus", {}).get("Status"))
    return "impaired" if "impaired" in checks else "running"


def _facts(node: Node, instance: str, state: Any, notice: CloudNotice | None = None) -> NodeFacts:
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
        cordoned=bool(node.spec and node.spec.unschedulable),
        network=tuple(labels[name] for name in NETWORK_LABELS if name in labels),
        cloud_notice=notice,
        ailments=tuple(_ailments(node, conditions, QUARANTINE_LABEL in labels, state)),
    )


def _ailments(node: Node, conditions: Sequence[NodeCondition], is_quarantined: bool, state: str) -> Iterator[Ailment]:
    if state in ("gone", "impaired"):
        words = "its instance is gone" if state == "gone" else "EC2 calls its instance impaired"
        yield Ailment(words=words, sickness=Sickness.HELD)
    if is_quarantined:
        yield Ailment(words="quarantined by us", sickness=Sickness.HELD)
    by_type = {condition.type: condition for condition in conditions}
    ready = by_type.get("Ready")
    if ready is None or ready.status != "True":
        yield Ailment(words=f"not Ready{_condition_text(ready)}", sickness=Sickness.LATE, since=_start_of(ready))
    for kind, sickness in CONDITIONS.items():
        fault = by_type.get(kind)
        if fault is not None and fault.status == "False" and not is_excused(fault.reason or "", fault.message or ""):
            words = f"{kind} is False{_condition_text(fault)}"
            cure = is_cured_by_reboot(fault.reason or "", fault.message or "")
            yield Ailment(words=words, sickness=sickness, since=_start_of(fault), bars=False, reboot_cures=cure)
    if node.spec and node.spec.unschedulable and not is_quarantined:
        yield Ailment(words="cordoned by somebody else", sickness=Sickness.HELD)
    for taint in (node.spec.taints if node.spec else None) or ():
        if _keeps_off(taint):
            yield Ailment(words=f"tainted {taint.key}:{taint.effect}", sickness=Sickness.HELD)


def _keeps_off(taint: Taint) -> bool:
    """Return whether a taint keeps off our pods, which tolerate only our own taint. Taints of a start are temporary."""
    if taint.effect not in ("NoSchedule", "NoExecute") or _TOLD_ELSEWHERE.match(taint.key):
        return False
    return (taint.key, taint.effect) != (GPU_TAINT_KEY, "NoSchedule")


def _start_of(condition: NodeCondition | None) -> datetime | None:
    return condition.lastTransitionTime if condition else None


def _condition_text(condition: NodeCondition | None) -> str:
    """Return the condition's date, reason and message, none of which changes while it lasts."""
    start = _start_of(condition)
    date = f" since {start.isoformat(timespec='seconds')}" if start else ""
    parts = [part for part in ((condition.reason, condition.message) if condition else ()) if part]
    return f"{date} ({': '.join(parts)[:160]})" if parts else date
