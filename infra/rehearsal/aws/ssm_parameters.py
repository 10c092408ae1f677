"""The public parameters that name EKS-optimised AMIs, and those AMIs in EC2."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from moto.core.utils import utcnow
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter

from infra.plan.catalogue.reading import image_versions
from infra.rehearsal.aws.world import World

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 37))
VARIANTS = (("x86_64", "standard"), ("x86_64", "nvidia"), ("x86_64", "neuron"), ("arm64", "standard"))
NEWEST = "20261020"
OWNER = "602401143452"
"""The account that publishes EKS AMIs."""


def publish(world: World) -> None:
    """Publish the newest release with its parameters, and the node image's older base release as an AMI only."""
    release = image_versions()["base"]["release"]
    for version in VERSIONS:
        for architecture, variant in VARIANTS:
            family = f"amazon-eks-node-al2023-{architecture}-{variant}-{version}"
            name = f"{family}-v{NEWEST}"
            image_id = _register(world, name, architecture)
            _register(world, f"{family}-{release}", architecture)
            root = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{architecture}/{variant}/recommended"
            facts = {"image_id": image_id, "image_name": name, "release_version": f"{version}.0-{NEWEST}"}
            for leaf, value in facts.items():
                _put_parameter(world, f"{root}/{leaf}", value)
            _put_parameter(world, root, json.dumps({"schema_version": "2", **facts}))


def recommended_image(version: str, ami_type: str) -> str:
    """Return the AMI ID of a node group without its own, for an AMI type such as AL2023_x86_64_STANDARD."""
    architecture = "arm64" if "ARM" in ami_type else "x86_64"
    variant = "nvidia" if "NVIDIA" in ami_type else "standard"
    return _id_of(f"amazon-eks-node-al2023-{architecture}-{variant}-{version}-v{NEWEST}")


def _id_of(name: str) -> str:
    return f"ami-{hashlib.sha256(name.encode()).hexdigest()[:17]}"


def _register(world: World, name: str, architecture: str) -> str:
    """Register an AMI with an ID derived from its name, so that it is the same in every rehearsal."""
    ec2 = world.backend("ec2")
    image_id = _id_of(name)
    ec2.amis[image_id] = Ami(
        ec2,
        image_id,
        name=name,
        description="EKS-optimized AL2023 AMI",
        owner_id=OWNER,
        owner_alias="amazon",
        public=True,
        virtualization_type="hvm",
        architecture=architecture,
        image_location=f"amazon/{name}",
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name="/dev/xvda",
        creation_date=datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC),
        region_name=world.region,
    )
    return image_id


def _put_parameter(world: World, name: str, value: str) -> None:
    versions = world.backend("ssm")._parameters[name]
    if not versions:
        data_type = "aws:ec2:image" if name.endswith("/image_id") else "text"
        versions.append(
            Parameter(  # type: ignore[abstract]
                account_id=world.account,
                name=name,
                value=value,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=utcnow(),
                version=1,
                data_type=data_type,
            )
        )
