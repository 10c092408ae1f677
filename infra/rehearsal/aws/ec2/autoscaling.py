"""Auto Scaling groups that reconcile: launch missing instances, replace lost ones, terminate surplus ones."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import (
    ASG_NAME_TAG,
    AutoScalingBackend,
    FakeAutoScalingGroup,
    InstanceState,
    TerminateInstanceActivity,
)
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.exceptions import ServiceException
from moto.core.types import Base64EncodedString

from infra.rehearsal.aws.ec2.instances import LIVE
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend, tag_dict, wrap
from infra.rehearsal.aws.world import World

log = logging.getLogger(__name__)

PERIOD_S = 0.3
RETRY_S = 3.0
"""Delay after a refused launch; a real group backs off for minutes."""
CAPACITY = ("Pending", "InService")
ACTIVITIES_KEPT = 100
ROOT_DEVICE = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}}


@dataclass
class NodeGroupLaunch:
    """An EKS node group's additions to its launch template."""

    instance_types: list[str] = field(default_factory=list)
    security_groups: list[str] = field(default_factory=list)
    user_data: str | None = None
    profile_arn: str | None = None
    market: str | None = None
    image: str = ""
    """The AMI if the launch template names none."""
    tags: dict[str, str] = field(default_factory=dict)


class AutoScaling:
    """`world.auto_scaling`; node groups register their launches here."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.recipes: dict[str, NodeGroupLaunch] = {}
        self.activities: dict[str, list[dict[str, Any]]] = {}
        self._not_before: dict[str, float] = {}
        self._impaired_since: dict[str, float] = {}

    @property
    def groups(self) -> dict[str, FakeAutoScalingGroup]:
        return self.world.backend("autoscaling").autoscaling_groups  # type: ignore[no-any-return]

    def wake(self) -> None:
        self.world.schedule_once(0.0, self.reconcile)

    def reconcile(self) -> None:
        with self.world.lock:
            self._run_scheduled()
            for group in list(self.groups.values()):
                self._observe(group)
                self._scale(group)

    def _observe(self, group: FakeAutoScalingGroup) -> None:
        states = []
        for state in group.instance_states:
            instance = state.instance
            if instance.state == "terminated":
                self._impaired_since.pop(instance.id, None)
                continue
            if instance.state not in LIVE or instance.state == "stopped":
                state.lifecycle_state = "Terminating"
            elif state.lifecycle_state == "Pending" and instance.state == "running":
                state.lifecycle_state = "InService"
            elif state.lifecycle_state == "InService" and self._unhealthy(state):
                self._terminate(group, state, "was taken out of service in response to an EC2 health check")
            states.append(state)
        group.instance_states = states

    def _unhealthy(self, state: InstanceState) -> bool:
        instance_id = state.instance.id
        if state.instance.instance_status["Status"] == "impaired":
            impaired_since = self._impaired_since.setdefault(instance_id, time.monotonic())
            if time.monotonic() - impaired_since > self.world.replace_impaired_after_s:
                state.health_status = "Unhealthy"
        else:
            self._impaired_since.pop(instance_id, None)
        return state.health_status == "Unhealthy"

    def _scale(self, group: FakeAutoScalingGroup) -> None:
        active = [state for state in group.instance_states if state.lifecycle_state in CAPACITY]
        missing = (group.desired_capacity or 0) - len(active)
        pauses = {process["ProcessName"] for process in group.suspended_processes}
        if missing < 0 and "Terminate" not in pauses:
            removable = [state for state in active if not state.protected_from_scale_in]
            for state in removable[:-missing]:
                self._terminate(group, state, "was selected for termination while the group shrank")
        elif missing > 0 and "Launch" not in pauses and time.monotonic() >= self._not_before.get(group.name, 0.0):
            for _ in range(missing):
                if not self._launch(group):
                    break

    def _terminate(self, group: FakeAutoScalingGroup, state: InstanceState, cause: str) -> None:
        state.lifecycle_state = "Terminating"
        instance_id = state.instance.id
        self.record(group.name, f"Terminating EC2 instance: {instance_id}", f"instance {instance_id} {cause}")
        self.world.backend("ec2").terminate_instances([instance_id])

    def _launch(self, group: FakeAutoScalingGroup) -> bool:
        try:
            instance = self._run(group)
        except ServiceException as error:
            self._not_before[group.name] = time.monotonic() + RETRY_S
            message = f"{error.code} - {error.message}. Launching EC2 instance failed."
            self.record(group.name, "Launching a new EC2 instance", "capacity was missing", "Failed", message)
            log.warning("%s: %s", group.name, message)
            return False
        instance.autoscaling_group = group
        state = InstanceState(instance, "Pending", protected_from_scale_in=group.new_instances_protected_from_scale_in)
        group.instance_states.append(state)
        self.record(group.name, f"Launching a new EC2 instance: {instance.id}", "capacity was missing")
        return True

    def _run(self, group: FakeAutoScalingGroup) -> Any:
        ec2, recipe = self.world.backend("ec2"), self.recipes.get(group.name, NodeGroupLaunch())
        if group.ec2_launch_template is None:
            raise AwsError("ValidationError", f"the emulated group {group.name} needs a launch template")
        version = group.ec2_launch_template.get_version(group.launch_template_version)
        data = version.data
        nics = data.get("NetworkInterfaces") or []
        nics = [{**nic, "Groups": nic.get("Groups") or recipe.security_groups} for nic in nics]
        arguments: dict[str, Any] = {
            "instance_type": data.get("InstanceType") or next(iter(recipe.instance_types), "t3.medium"),
            "is_instance_type_default": False,
            "region_name": self.world.region,
            "subnet_id": self._subnet(group),
            "nics": nics,
            "instance_market_options": recipe.market,
            "launch_template": {"LaunchTemplateId": version.template.id, "Version": str(version.number)},
            "block_device_mappings": _disks(data.get("BlockDeviceMappings") or [ROOT_DEVICE]),
            "metadata_options": data.get("MetadataOptions") or {},
            "tags": self._tags(group, data, recipe),
        }
        if not nics:
            arguments["security_group_ids"] = data.get("SecurityGroupIds") or recipe.security_groups
        user_data = data.get("UserData")
        if recipe.user_data is not None:
            user_data = Base64EncodedString.from_raw_string(recipe.user_data)
        instance = ec2.run_instances(data.get("ImageId") or recipe.image, 1, user_data, [], **arguments).instances[0]
        if recipe.profile_arn:
            ec2.associate_iam_instance_profile(instance_id=instance.id, iam_instance_profile_arn=recipe.profile_arn)
        return instance

    @staticmethod
    def _subnet(group: FakeAutoScalingGroup) -> str | None:
        """Return the subnet with the fewest instances of the group, to balance the zones."""
        subnets = group.vpc_zone_identifier.split(",") if group.vpc_zone_identifier else []
        counts = Counter(state.instance.subnet_id for state in group.instance_states)
        return min(subnets, key=lambda subnet: counts[subnet]) if subnets else None

    @staticmethod
    def _tags(group: FakeAutoScalingGroup, data: dict[str, Any], recipe: NodeGroupLaunch) -> dict[str, dict[str, str]]:
        by_kind: dict[str, dict[str, str]] = {}
        for specification in data.get("TagSpecifications") or []:
            by_kind.setdefault(specification["ResourceType"], {}).update(tag_dict(specification.get("Tags")))
        propagated_tags = group.get_propagated_tags()
        by_kind["instance"] = {
            **propagated_tags,
            ASG_NAME_TAG: group.name,
            **recipe.tags,
            **by_kind.get("instance", {}),
        }
        return by_kind

    def _run_scheduled(self) -> None:
        backend, now = self.world.backend("autoscaling"), datetime.now(UTC)
        for name, action in list(backend.scheduled_actions.items()):
            start = action.start_time
            if isinstance(start, str):
                start = datetime.fromisoformat(start.replace("Z", "+00:00"))
            group = self.groups.get(action.auto_scaling_group_name)
            if start is None or group is None or start.replace(tzinfo=start.tzinfo or UTC) > now:
                continue
            del backend.scheduled_actions[name]
            group.min_size = group.min_size if action.min_size is None else action.min_size
            group.max_size = group.max_size if action.max_size is None else action.max_size
            if action.desired_capacity is not None:
                group.desired_capacity = action.desired_capacity
            self.record(group.name, f"Executing scheduled action {name}", "it was due")

    def record(self, group: str, description: str, cause: str, status: str = "Successful", message: str = "") -> None:
        now = datetime.now(UTC)
        activity = {
            "ActivityId": str(uuid.uuid4()),
            "AutoScalingGroupName": group,
            "Description": description,
            "Cause": f"At {now:%Y-%m-%dT%H:%M:%SZ} {cause}.",
            "StartTime": now,
            "EndTime": now,
            "StatusCode": status,
            "StatusMessage": message or None,
            "Progress": 100,
            "Details": "{}",
        }
        history = self.activities.setdefault(group, [])
        history.insert(0, activity)
        del history[ACTIVITIES_KEPT:]

    def describe_scaling_activities(self, params: Parameters) -> dict[str, Any]:
        name = params.get("AutoScalingGroupName")
        chosen_activities = [
            activity
            for group, group_activities in self.activities.items()
            if name in (None, group)
            for activity in group_activities
        ]
        return {"Activities": chosen_activities}

    def set_desired(self, original: Callable[..., None], backend: Any, name: str, count: int | None) -> None:
        group = self.find(name)
        if count is not None and count > (group.max_size or 0):
            raise ValidationError(f"New SetDesiredCapacity value {count} is above max value {group.max_size}.")
        if count is not None and count < (group.min_size or 0):
            raise ValidationError(f"New SetDesiredCapacity value {count} is below min value {group.min_size}.")
        original(backend, name, count)

    def find(self, name: str) -> FakeAutoScalingGroup:
        if name not in self.groups:
            raise ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
        return self.groups[name]

    def terminate(self, original: Callable[..., Any], backend: Any, instance_id: str, decrement: bool) -> Any:
        with self.world.lock:
            pairs = [(group, state) for group in self.groups.values() for state in group.instance_states]
            match = next((pair for pair in pairs if pair[1].instance.id == instance_id), None)
            if match is None:
                message = f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
                raise ValidationError(message)
            group, state = match
            previous = group.desired_capacity or 0
            if decrement and previous <= (group.min_size or 0):
                raise ValidationError(
                    f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without "
                    "replacement will violate group's min size constraint. Either set shouldDecrementDesiredCapacity "
                    "flag to false or lower group's min size."
                )
            if decrement:
                group.desired_capacity = previous - 1
            self._terminate(group, state, "was taken out of service in response to a user request")
            self.wake()
            return TerminateInstanceActivity(state.instance, previous)

    def delete_auto_scaling_group(self, params: Parameters) -> None:
        group = self.find(params["AutoScalingGroupName"])
        if group.instance_states and not params.get("ForceDelete"):
            message = "You cannot delete an AutoScalingGroup while there are instances in the group."
            raise AwsError("ResourceInUse", message)
        self.remove(group)

    def remove(self, group: FakeAutoScalingGroup) -> None:
        """Terminate the group's remaining instances and delete it."""
        live = [state.instance.id for state in group.instance_states if state.instance.state in LIVE]
        if live:
            self.world.backend("ec2").terminate_instances(live)
        self.groups.pop(group.name, None)
        self.recipes.pop(group.name, None)


def _disks(mappings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Apply EC2's default: disks are deleted with the instance unless the template says otherwise."""
    return [
        {**mapping, "Ebs": {"DeleteOnTermination": True, **mapping.get("Ebs", {})}}
        for mapping in mappings
        if "Ebs" in mapping
    ]


def install(world: World) -> None:
    scaling = world.auto_scaling = AutoScaling(world)

    def set_number(original: Callable[..., None], group: FakeAutoScalingGroup, count: int | None) -> None:
        group.desired_capacity = group.min_size if count is None else count
        scaling.wake()

    wrap(FakeAutoScalingGroup, "set_desired_capacity", set_number)
    wrap(AutoScalingBackend, "set_desired_capacity", scaling.set_desired)
    wrap(AutoScalingBackend, "terminate_instance", scaling.terminate)
    wrap(AutoScalingBackend, "notify_terminate_instances", lambda original, backend, instance_ids: scaling.wake())
    add_backend(world, AutoScalingResponse, scaling)
    world.schedule_every(PERIOD_S, scaling.reconcile)
