"""Machines of node and builder instances: each starts and ends with its instance."""

from __future__ import annotations

import base64
import functools
import logging
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moto.ec2.models.amis import AmiBackend
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.responses import EC2Response

from infra.rehearsal.aws.ec2 import instances, interfaces
from infra.rehearsal.aws.ec2.instances import CLUSTER_TAG, NODE_GROUP_TAG, needs_machine, set_state, tags_of
from infra.rehearsal.aws.operations import Parameters, ServicePart, add_operations, tag_dict, wrap
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World

log = logging.getLogger(__name__)

POD_ADDRESSES = 12
PERIOD_S = 0.2
SETTLE_S = 0.15
"""A builder waits this long: RunInstances attaches the instance profile only after moto made the instance."""
KEPT_FOLDERS = {"logs"}
CONSOLE_BYTES = 64 * 1024


IMAGED_S = 1.0
ROOT_DISK = "root"
"""Folder of a machine with its root disk."""


class Images(ServicePart):
    """AMIs for a bake: CreateImage takes time, tags snapshots and keeps the disk; launches need a known AMI."""

    def disk(self, image_id: str) -> Path:
        """Return the folder with an image's root disk."""
        return self.world.work / "images" / image_id

    def create(
        self,
        original: Callable[..., Any],
        ec2: Any,
        instance_id: str,
        name: str,
        description: str,
        tag_specifications: list[dict[str, Any]],
    ) -> Any:
        tags = {specification["ResourceType"]: tag_dict(specification["Tags"]) for specification in tag_specifications}
        image_tags = [specification for specification in tag_specifications if specification["ResourceType"] == "image"]
        image = original(ec2, instance_id, name, description, tag_specifications=image_tags)
        image.root_device_type, image.root_device_name = "ebs", "/dev/xvda"
        image.ebs_snapshot.add_tags(tags.get("snapshot", {}))
        image.state = "pending"
        self.world.schedule_once(
            self.world.takes("image made", IMAGED_S), functools.partial(self._finish, image, instance_id)
        )
        return image

    def _finish(self, image: Any, instance_id: str) -> None:
        if self.world.troubles.find("image", image.name, "create"):
            image.state = "failed"
            return
        root = self.world.work / "machines" / instance_id / ROOT_DISK
        if root.is_dir():
            shutil.copytree(root, self.disk(image.id), symlinks=True, ignore_dangling_symlinks=True)
        image.state = "available"

    def deregister(self, original: Callable[..., Any], ec2: Any, ami_id: str) -> Any:
        answer = original(ec2, ami_id)
        shutil.rmtree(self.disk(ami_id), ignore_errors=True)
        return answer

    def check(self, launch: InstanceLaunch) -> None:
        """Check a launch's AMI. Node groups are exempt: EKS chooses theirs, and `/_site/capacity` refuses on demand."""
        if launch.node_group is not None:
            return
        image = self.world.backend("ec2").amis.get(launch.image_id)
        if image is None:
            message = f"The image id '[{launch.image_id}]' does not exist"
            raise LaunchRefused("InvalidAMIID.NotFound", message)
        if image.state != "available":
            raise LaunchRefused("InvalidAMIID.Unavailable", f"The image id '{launch.image_id}' is no longer available")

    def unpack(self, image_id: str, machine: Path) -> None:
        """Copy the image's disk to a new machine; a machine that ran before keeps its own."""
        source, root = self.disk(image_id), machine / ROOT_DISK
        if source.is_dir() and not root.exists():
            shutil.copytree(source, root, symlinks=True, ignore_dangling_symlinks=True)


class Machines:
    def __init__(self, world: World, images: Images) -> None:
        self.world, self.images = world, images
        self._boots: dict[str, float] = {}
        """Instance -> seconds from its launch until its machine starts."""

    def reconcile(self) -> None:
        with self.world.lock:
            for instance in self.world.backend("ec2").all_instances():
                if instance.state == "pending" and needs_machine(instance) and self._is_settled(instance):
                    self._start(instance)
                elif instance.state in ("shutting-down", "terminated", "stopped"):
                    self._end(instance)

    def _is_settled(self, instance: Any) -> bool:
        age = datetime.now(UTC) - instance.launch_time.replace(tzinfo=UTC)
        if instance.id not in self._boots:
            boots = "GPU instance boots" if instances.gpus(instance.instance_type) else "instance boots"
            quick = 0.0 if NODE_GROUP_TAG in tags_of(instance) else SETTLE_S
            self._boots[instance.id] = self.world.takes(boots, quick)
        return age.total_seconds() >= self._boots[instance.id]

    def _start(self, instance: Any) -> None:
        world = self.world
        try:
            settings = self._settings(instance)
            self.images.unpack(instance.image_id, Path(settings["work"]))
            world.machines[instance.id] = world.machine_factory(settings)
        except Exception as error:
            log.exception("the machine of %s did not start", instance.id)
            instance.state_reason.code = "Server.InternalError"
            instance.state_reason.message = f"Server.InternalError: {error}"
            world.backend("ec2").terminate_instances([instance.id])
            return
        set_state(instance, "running")
        log.info("%s runs as pid %s", instance.id, world.machines[instance.id].pid)

    def _end(self, instance: Any) -> None:
        machine = self.world.machines.pop(instance.id, None)
        if machine is None:
            return
        machine.kill()
        log.info("%s is %s: its machine was ended", instance.id, instance.state)
        if instance.state == "stopped":
            return
        folder = self.world.work / "machines" / instance.id
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and path.name not in KEPT_FOLDERS:
                self.world.spawn(functools.partial(shutil.rmtree, path, True))
        plane = self.world.control_planes.get(tags_of(instance).get(CLUSTER_TAG, ""))
        if plane is not None:
            provider_id = f"aws:///{instance.placement.zone}/{instance.id}"
            self.world.spawn(functools.partial(plane.delete_node, provider_id))

    def _settings(self, instance: Any) -> dict[str, Any]:
        world, tags = self.world, tags_of(instance)
        data = instance.user_data
        return dict(
            instance_id=instance.id,
            hostname=instance.private_dns_name,
            address=instance.private_ip,
            pod_addresses=pod_addresses(instance),
            kind="node" if NODE_GROUP_TAG in tags else "builder",
            instance_type=instance.instance_type,
            zone=instance.placement.zone,
            lifecycle=instance.lifecycle or "on-demand",
            region=world.region,
            account=world.account,
            endpoint_url=world.endpoint_url,
            role_arn=role_of(world, instance.id),
            agent_key=world.agent_key,
            user_data=self._user_data(instance.id, data.decode() if data is not None else "", tags),
            capacity=capacity(instance),
            tags=tags,
            fsx_root=str(world.fsx_root),
            tools=str(world.tools),
            work=str(world.work / "machines" / instance.id),
        )

    def _user_data(self, instance_id: str, text: str, tags: dict[str, str]) -> str:
        """Return the user data; the trouble `node` changes the NodeConfig to another cluster."""
        cluster = tags.get(CLUSTER_TAG)
        if cluster is None or not self.world.troubles.find("node", tags.get(NODE_GROUP_TAG, instance_id), "create"):
            return text
        return re.sub(rf'(\bname"?: *"?){re.escape(cluster)}\b(?!-)', rf"\g<1>{cluster}-of-yesterday", text)

    def get_console_output(self, params: Parameters) -> dict[str, Any]:
        """Return the machine's console output, complete and at once, unlike EC2."""
        instance = self.world.backend("ec2").get_instance(params["InstanceId"])
        console = self.world.work / "machines" / instance.id / "logs" / "console.log"
        text = console.read_bytes()[-CONSOLE_BYTES:] if console.exists() else b""
        output = base64.b64encode(text).decode()
        return {"InstanceId": instance.id, "Timestamp": datetime.now(UTC), "Output": output}

    def start(self, original: Callable[..., Any], ec2: Any, instance_ids: list[str]) -> Any:
        """StartInstances: start a new machine on the old disk."""
        changes = original(ec2, instance_ids)
        for instance, previous_state in changes:
            if needs_machine(instance) and previous_state.name == "stopped":
                set_state(instance, "pending")
        return changes

    def reboot(self, original: Callable[..., Any], ec2: Any, instance_ids: list[str]) -> Any:
        """RebootInstances: switch the machine off and on; succeed for an instance without one."""
        instances = original(ec2, instance_ids)
        with self.world.lock:
            for instance in instances:
                if machine := self.world.machines.pop(instance.id, None):
                    machine.kill()
                    set_state(instance, "pending")
        return instances


def capacity(instance: Any) -> dict[str, str]:
    """Return the extended resources of the hardware: GPUs of the type, requested EFA interfaces."""
    counts = {
        "nvidia.com/gpu": instances.gpus(instance.instance_type),
        "vpc.amazonaws.com/efa": interfaces.requested_efas(instance),
    }
    resources = {name: str(count) for name, count in counts.items() if count}
    # A script in the user data may reserve huge pages. The nodelet runs no scripts, but a kubelet would count them.
    text = instance.user_data.decode() if instance.user_data is not None else ""
    if pages := re.search(r"^echo 'vm\.nr_hugepages = (\d+)'", text, re.MULTILINE):
        resources["hugepages-2Mi"] = f"{2 * int(pages[1])}Mi"
    return resources


def pod_addresses(instance: Any) -> tuple[str, ...]:
    """Return secondary addresses of the primary interface, as the VPC CNI takes them; a reboot keeps them."""
    primary = instance.nics[0]
    while len(primary.private_ip_addresses) <= POD_ADDRESSES:
        try:
            address = primary.subnet.get_available_subnet_ip(instance)
        except StopIteration:
            break
        primary.private_ip_addresses.append({"Primary": False, "PrivateIpAddress": address})
    return tuple(entry["PrivateIpAddress"] for entry in primary.private_ip_addresses if not entry.get("Primary"))


def role_of(world: World, instance_id: str) -> str:
    """Return the role of the instance's profile, or an empty string."""
    association = world.backend("ec2").iam_instance_profile_associations.get(instance_id)
    roles = association.iam_instance_profile.roles if association else []
    return str(roles[0].arn) if roles else ""


def install(world: World) -> None:
    instances.install(world)
    images = Images(world)
    wrap(AmiBackend, "create_image", images.create)
    wrap(AmiBackend, "deregister_image", images.deregister)
    world.launch_hooks.append(images.check)
    machines = Machines(world, images)
    wrap(InstanceBackend, "start_instances", machines.start)
    wrap(InstanceBackend, "reboot_instances", machines.reboot)
    add_operations(world, EC2Response, {"get_console_output": machines.get_console_output})
    world.schedule_every(PERIOD_S, machines.reconcile)
