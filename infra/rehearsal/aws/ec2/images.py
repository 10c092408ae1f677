"""AMIs for a bake: CreateImage takes time, tags snapshots and keeps the disk; launches need a known AMI."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moto.ec2.models.amis import AmiBackend

from infra.rehearsal.aws.operations import tag_dict, wrap
from infra.rehearsal.aws.world import InstanceLaunch, LaunchRefused, World

IMAGED_S = 1.0
ROOT_DISK = "root"
"""Folder of a machine with its root disk."""


class Images:
    """Replacement of moto's instantaneous images."""

    def __init__(self, world: World) -> None:
        self.world = world

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


def install(world: World) -> Images:
    images = Images(world)
    wrap(AmiBackend, "create_image", images.create)
    wrap(AmiBackend, "deregister_image", images.deregister)
    world.launch_hooks.append(images.check)
    return images
