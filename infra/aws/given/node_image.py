"""AMIs of GPU nodes that no bake of ours made: EKS's own, from which a bake begins too, or somebody's. Read-only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from infra.aws.account import Account, every
from infra.errors import UserError
from infra.plan.catalogue import instance_type
from infra.plan.catalogue.reading import image_versions
from infra.plan.facts import BaseImage
from infra.spec.campaign import Spec

ROOT_DISK = "/dev/xvda"
"""Root device of EKS's Amazon Linux images, which the launch templates size and encrypt."""
_ARCHITECTURE = "x86_64"
_VARIANTS = {"nvidia": "nvidia", "neuron": "neuron", None: "standard"}


def image_parameter(kubernetes: str, maker: str | None) -> str:
    """Return the public SSM parameter with the newest EKS-optimized image; `maker` of the accelerator, or None.
    https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html"""
    variant = f"{_ARCHITECTURE}/{_VARIANTS[maker]}"
    return f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/{variant}/recommended/image_id"


def find_image(account: Account, spec: Spec) -> tuple[str, str]:
    """Return (AMI, name) of the spec's `image.nodes`, `eks` or an id. Raises `UserError` if nodes could not start from
    it. Whether its software suits is seen on the node, by preflight."""
    ami = spec.image.nodes
    if ami == "eks":
        parameter = image_parameter(spec.kubernetes, instance_type(spec.nodes.instance_type).maker)
        ami = str(account.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"])
    by_id = [{"Name": "image-id", "Values": [ami]}]
    images = list(every(account.client("ec2"), "describe_images", "Images", Filters=by_id))
    if not images:
        cure = f"name one of {spec.region} that is the account's, public or shared with it; or write nodes: eks"
        raise UserError("the account sees no such AMI", seen=f"{ami} in {spec.region}", cure=cure)
    image = images[0]
    requirements = {"State": "available", "Architecture": _ARCHITECTURE, "RootDeviceName": ROOT_DISK}
    wrong = [
        f"{key} is {image.get(key)}, not {value}" for key, value in requirements.items() if image.get(key) != value
    ]
    if wrong:
        cure = "derive one from EKS's Amazon Linux 2023 image for x86_64, or write nodes: eks"
        raise UserError("nodes cannot start from this AMI", seen=f"{ami}: {'; '.join(wrong)}", cure=cure)
    return ami, str(image.get("Name", ""))


def base_release() -> str:
    """Return the release of EKS's images from which a bake begins, such as `v20260101`."""
    return str(image_versions()["base"]["release"])


def eks_images(account: Account, variant: str, kubernetes: str = "*") -> dict[str, dict[str, Any]]:
    """Return EKS's images by name, the oldest release first. EC2 leaves out those that AWS has deprecated."""
    by_name = [{"Name": "name", "Values": [f"amazon-eks-node-al2023-{_ARCHITECTURE}-{variant}-{kubernetes}-v*"]}]
    images = every(account.client("ec2"), "describe_images", "Images", Owners=["amazon"], Filters=by_name)
    return {str(image["Name"]): image for image in sorted(images, key=lambda image: release_of(image["Name"]))}


def release_of(name: str) -> str:
    """Return the release of an EKS image; releases sort by their dates."""
    return name.rpartition("-")[2]


def find_base_image(account: Account, spec: Spec) -> BaseImage:
    """Return the image from which a bake of this spec begins. Raises `UserError` if AWS does not publish it."""
    variant = _VARIANTS[instance_type(spec.nodes.instance_type).maker]
    images, release = eks_images(account, variant, spec.kubernetes), base_release()
    newer = tuple(name for name in images if release_of(name) > release)
    name = f"amazon-eks-node-al2023-{_ARCHITECTURE}-{variant}-{spec.kubernetes}-{release}"
    if name not in images:
        raise UserError(
            "there is no such base image",
            seen=f"{name} in {spec.region}; newer ones: {', '.join(newer[-3:]) or 'none'}",
            cure="set base.release in images/versions.yaml to a release that AWS publishes for this Kubernetes version",
        )
    day = datetime.fromisoformat(images[name]["CreationDate"]).date()
    return BaseImage(ami=images[name]["ImageId"], name=name, published=day, newer=newer)
