"""EC2 instances with their states (pending, running, shutting-down, terminated), status checks and launch rules."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, InstanceBackend

from infra.rehearsal.aws.ec2 import interfaces
from infra.rehearsal.aws.operations import ServicePart, tag_dict, wrap
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World

NODE_GROUP_TAG, CLUSTER_TAG = "eks:nodegroup-name", "eks:cluster-name"
ROLE_TAG, BUILDER = "bivouac:role", "builder"
SHUTDOWN_S = 0.2
STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
LIVE = ("pending", "running", "stopping", "stopped")


def tags_of(instance: Any) -> dict[str, str]:
    return tag_dict(instance.get_tags(), "key", "value")


def needs_machine(instance: Any) -> bool:
    tags = tags_of(instance)
    return NODE_GROUP_TAG in tags or tags.get(ROLE_TAG) == BUILDER


def gpus(instance_type: str) -> int:
    """Return the number of NVIDIA GPUs of an instance type."""
    devices = INSTANCE_TYPES.get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    return sum(gpu["Count"] for gpu in devices if gpu["Manufacturer"] == "NVIDIA")


def set_state(instance: Any, name: str) -> None:
    instance._state.name, instance._state.code = name, STATES[name]


def template_version(world: World, argument: dict[str, Any] | None) -> dict[str, Any]:
    """Return the LaunchTemplateData of a `LaunchTemplate` argument, or an empty dict."""
    return dict(world.backend("ec2")._get_template_from_args(argument).data) if argument else {}


def describe_launch(data: dict[str, Any], arguments: dict[str, Any], image_id: str, zone: str) -> InstanceLaunch:
    """Describe a launch from the launch template's `data` and the `arguments` of moto's run_instances."""
    reservation = data.get("CapacityReservationSpecification") or {}
    target = reservation.get("CapacityReservationTarget") or {}
    tags = (arguments.get("tags") or {}).get("instance", {})
    requested_type = None if arguments.get("is_instance_type_default") else arguments.get("instance_type")
    return InstanceLaunch(
        instance_type=requested_type or data.get("InstanceType") or "m1.small",
        zone=zone,
        image_id=image_id or data.get("ImageId", ""),
        market=arguments.get("instance_market_options") or (data.get("InstanceMarketOptions") or {}).get("MarketType"),
        capacity_reservation_id=target.get("CapacityReservationId"),
        capacity_reservation_group=target.get("CapacityReservationResourceGroupArn"),
        reservations_only=reservation.get("CapacityReservationPreference") == "capacity-reservations-only",
        placement_group=(data.get("Placement") or {}).get("GroupName"),
        node_group=tags.get(NODE_GROUP_TAG),
    )


class Instances(ServicePart):
    """Replacement of moto's instantaneous instances."""

    def run(
        self, original: Callable[..., Any], ec2: Any, image_id: str, count: int, *positional: Any, **kwargs: Any
    ) -> Any:
        data = template_version(self.world, kwargs.get("launch_template"))
        if not kwargs.get("nics") and data.get("NetworkInterfaces"):
            kwargs["nics"] = [dict(nic) for nic in data["NetworkInterfaces"]]
        kwargs["nics"] = self._nics(kwargs)
        subnet = kwargs.get("subnet_id") or next((nic["SubnetId"] for nic in kwargs["nics"] if "SubnetId" in nic), None)
        zone = ec2.get_subnet(subnet).availability_zone if subnet else kwargs.get("placement") or f"{ec2.region_name}a"
        launch = describe_launch(data, kwargs, image_id, zone)
        try:
            interfaces.check(launch.instance_type, kwargs["nics"])
            for _ in range(count):
                for hook in self.world.launch_hooks:
                    hook(launch)
        except LaunchRefused as refused:
            raise EC2ClientError(refused.code, refused.message) from refused
        reservation = original(ec2, image_id, count, *positional, **kwargs)
        for instance in reservation.instances:
            self._finish(ec2, instance, data, launch)
        return reservation

    @staticmethod
    def _nics(kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        nics = [dict(nic) for nic in kwargs.get("nics") or []]
        if nics and kwargs.get("subnet_id"):
            nics = [{"SubnetId": kwargs["subnet_id"], **nic} for nic in nics]
        return nics

    def _finish(self, ec2: Any, instance: Any, data: dict[str, Any], launch: InstanceLaunch) -> None:
        if instance.kernel_id == "None":  # moto does not know the image: assume a current one
            instance.kernel_id, instance.virtualization_type, instance.root_device_name = None, "hvm", "/dev/xvda"
        instance.lifecycle = launch.market if launch.market in ("spot", "capacity-block") else None
        profile = data.get("IamInstanceProfile") or {}
        if profile and instance.id not in ec2.iam_instance_profile_associations:
            ec2.associate_iam_instance_profile(
                instance_id=instance.id,
                iam_instance_profile_name=profile.get("Name"),
                iam_instance_profile_arn=profile.get("Arn"),
            )
        for specification in data.get("TagSpecifications") or []:
            tags = tag_dict(specification.get("Tags"))
            if specification.get("ResourceType") == "network-interface":
                for nic in instance.nics.values():
                    nic.add_tags(tags)
            elif specification.get("ResourceType") == "volume":
                for _, device in instance.get_block_device_mapping:
                    ec2.volumes[device.volume_id].add_tags(tags)
        if needs_machine(instance):
            set_state(instance, "pending")

    def terminate(self, original: Callable[..., Any], ec2: Any, instance_ids: list[str]) -> list[tuple[Any, Any]]:
        """Set shutting-down at once; interfaces and volumes go a moment later, with the machine."""
        instances = [] if not instance_ids else ec2.get_multi_instances_by_id(instance_ids)
        if not instances or any(machine.disable_api_termination is True for machine in instances):
            return original(ec2, instance_ids)  # type: ignore[no-any-return]
        changes = []
        for instance in instances:
            changes.append((instance, copy.copy(instance._state)))
            if instance.state in LIVE:
                set_state(instance, "shutting-down")
                instance._reason = f"User initiated ({datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)"
                ends = "GPU instance ends" if gpus(instance.instance_type) else "instance ends"
                delay = self.world.takes(ends, SHUTDOWN_S)
                self.world.schedule_once(delay, functools.partial(self._end, original, ec2, instance.id))
        return changes

    def _end(self, original: Callable[..., Any], ec2: Any, instance_id: str) -> None:
        with self.world.lock:
            instance = ec2.get_instance_by_id(instance_id)
            if instance is None or instance.state != "shutting-down":
                return
            if self.world.troubles.find("instance", instance_id, "delete"):
                self.world.schedule_once(SHUTDOWN_S, functools.partial(self._end, original, ec2, instance_id))
                return
            original(ec2, [instance_id])

    def status(self, instance: Any) -> dict[str, Any]:
        if instance.state != "running":
            return {"Status": "not-applicable"}
        machine = self.world.machines.get(instance.id)
        if machine is None or machine.alive():
            return {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
        return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed"}]}


def install(world: World) -> None:
    interfaces.install(world)
    instances = Instances(world)
    wrap(InstanceBackend, "run_instances", instances.run)
    wrap(InstanceBackend, "terminate_instances", instances.terminate)
    Instance.instance_status = property(instances.status)  # type: ignore[assignment, arg-type]
    Instance.events = property(lambda instance: world.scheduled_events.get(instance.id, []))  # type: ignore[attr-defined]
