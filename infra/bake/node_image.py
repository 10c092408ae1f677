"""The node image: an AMI that Ansible derives from the EKS-optimised one, unless the same inputs were baked before. It
belongs to the foundation: it outlives its campaign, and every campaign of the same inputs uses it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import every
from infra.aws.given.node_image import find_base_image, find_image
from infra.bake.builder import Builder, builder
from infra.bake.playbook import play
from infra.bake.sources import digest_of, sources
from infra.errors import PermanentError, UserError
from infra.folders import CODE
from infra.plan.catalogue import instance_type
from infra.plan.catalogue.reading import image_versions
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.spec import waits
from infra.spec.campaign import Spec
from infra.spec.names import INPUTS_TAG, MANIFEST_TAG, Names
from infra.stack.outputs import FoundationOutputs
from infra.stack.tags import tags
from trainer.contract.frozen import Frozen

RECORD = "node-image.json"
"""Key in the campaign's record of the image that it began with."""
PLAYED = ("images/versions.yaml", "playbooks")
_NO_PACKAGES = "no dnf"


class NodeImage(Frozen):
    """Content and inputs of an AMI; launch refuses nodes of any other."""

    ami: str
    snapshots: tuple[str, ...]
    inputs_digest: str
    """Empty for an AMI that no bake of ours made."""
    base_ami: str
    base: str
    """Name of the EKS-optimised image."""
    versions: dict[str, Any]
    """images/versions.yaml as it was."""
    applied: tuple[str, ...]
    """Roles."""
    not_applied: dict[str, str]
    """Role -> reason."""
    machine: dict[str, Any]
    """Content of the builder at the end: kernel, driver, packages."""
    baked_at: datetime

    @property
    def key(self) -> str:
        """Key of this manifest in the state bucket."""
        return manifest_key(self.inputs_digest, self.ami)


def manifest_key(inputs: str, ami: str = "") -> str:
    return f"images/nodes/{inputs}.json" if inputs else f"images/given/{ami}.json"


def ensure(
    context: Context, place: FoundationOutputs, own_image: NodeImage | None = None, force: bool = False
) -> tuple[NodeImage, float | None]:
    """Return the node image of this spec, and the seconds for which its builder stood, None if it was not baked now;
    `own_image` is used whatever the inputs are."""
    if own_image is not None and not force and _available(context, own_image.ami):
        return own_image, None
    if context.spec.image.nodes != "bake":
        return _as_given(context), None
    base_ami, base = find_base(context)
    inputs = inputs_digest(CODE, base_ami, context.spec)
    old_image = stored_image(context.store, inputs)
    if old_image is not None and not force and _available(context, old_image.ami):
        context.progress.note(f"node image of the same inputs exists, {inputs[:12]}: {old_image.ami}")
        return old_image, None
    _forget_unfinished(context, inputs)
    schedule, _ = context.names.builder_schedules
    try:
        with builder(context, place, base_ami, schedule) as machine:
            image = _bake(context, machine, base_ami, base, inputs)
    except KeyboardInterrupt:
        with suppress(ClientError, BotoCoreError):  # the next bake looks for it too
            _forget_unfinished(context, inputs)
        raise
    if old_image is not None:
        context.progress.note(f"{old_image.ami} of the same inputs stays: campaigns may run on it")
    context.progress.note(f"node image {image.ami}: {', '.join(image.applied)}")
    for reason in dict.fromkeys(image.not_applied.values()):
        roles = ", ".join(role for role, cause in image.not_applied.items() if cause == reason)
        context.progress.note(f"not applied, {reason}: {roles}")
    return image, machine.stood_s


def _as_given(context: Context) -> NodeImage:
    """Return and record the AMI that the spec names, as it is."""
    ami, name = find_image(context.account, context.spec)
    image = NodeImage(
        ami=ami,
        snapshots=(),
        inputs_digest="",
        base_ami=ami,
        base=name,
        versions={},
        applied=(),
        not_applied={"every role": f"image.nodes: {context.spec.image.nodes}"},
        machine={},
        baked_at=datetime.now(UTC),
    )
    context.guard()
    context.store.put(image.key, image.model_dump_json(indent=1).encode())
    context.progress.note(f"node image {ami} ({name}), which no bake of ours made: preflight judges it on the nodes")
    return image


def find_base(context: Context) -> tuple[str, str]:
    """Return (AMI, name) of the EKS-optimised image of versions.yaml's release."""
    base = find_base_image(context.account, context.spec)
    return base.ami, base.name


def versions(root: Path) -> dict[str, Any]:
    """Return images/versions.yaml by role, with dates as text, as in JSON."""
    by_role: dict[str, Any] = json.loads(json.dumps(image_versions(root), default=str))
    return by_role


def inputs_digest(root: Path, base_ami: str, spec: Spec) -> str:
    """Return the digest of the node image's inputs: base, versions, playbooks, and the accelerator's maker."""
    maker = instance_type(spec.nodes.instance_type).maker
    return digest_of(sources(root, PLAYED, ("playbooks/roles/trainer_image",)), base_ami, str(maker))


def stored_image(store: CampaignStore, inputs: str) -> NodeImage | None:
    body = store.get(manifest_key(inputs))
    return None if body is None else NodeImage.model_validate_json(body)


def campaign_image(store: CampaignStore) -> NodeImage | None:
    """Return the image that this campaign began with; None before its bake or without its manifest."""
    record = store.get_json(RECORD)
    body = None if record is None else store.get(record["manifest"])
    return None if body is None else NodeImage.model_validate_json(body)


def known_image(context: Context) -> NodeImage | None:
    """Return the image that this campaign began with, else its spec's own if `bivouac bake` has made or recorded it."""
    if (own_image := campaign_image(context.store)) is not None:
        return own_image
    ami = "" if context.spec.image.nodes == "bake" else find_image(context.account, context.spec)[0]
    inputs = "" if ami else inputs_digest(CODE, find_base(context)[0], context.spec)
    image = context.store.model_at(manifest_key(inputs, ami), NodeImage)
    return image if image is not None and _available(context, image.ami) else None


def insist(store: CampaignStore, names: Names, ec2: Any) -> NodeImage:
    """Return the recorded image. Raises `UserError` without a manifest, or if a GPU node runs another AMI."""
    image = campaign_image(store)
    if image is None:
        raise UserError(
            "the node image has no manifest",
            seen=f"{RECORD} of the campaign: {store.get_json(RECORD)}",
            cure="bake it again: `bivouac bake SPEC`",
        )
    filters = [
        {"Name": "tag:eks:nodegroup-name", "Values": [names.gpu_group]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    nodes = {i["InstanceId"]: i["ImageId"] for page in pages for r in page["Reservations"] for i in r["Instances"]}
    strangers = {node: ami for node, ami in nodes.items() if ami != image.ami}
    if strangers:
        raise UserError(
            "nodes run another image than the one that was baked for them",
            seen=f"{', '.join(f'{node}: {ami}' for node, ami in strangers.items())}; baked: {image.ami}",
            cure=f"set the launch template back (`bivouac repair {names.campaign}`) and end these nodes",
        )
    return image


def _bake(context: Context, machine_builder: Builder, base_ami: str, base: str, inputs: str) -> NodeImage:
    import tempfile

    maker = instance_type(context.spec.nodes.instance_type).maker or ""
    variables = {"node_image_inputs": inputs, "node_image_base": base, "node_image_accelerator": maker}
    with tempfile.TemporaryDirectory() as work:
        facts = play(context, machine_builder, "node_image", variables, Path(work))
    refuse_incomplete(context.spec, facts["not_applied"])
    ami, snapshots = take(context, machine_builder.id, inputs, base)
    image = NodeImage(
        ami=ami,
        snapshots=snapshots,
        inputs_digest=inputs,
        base_ami=base_ami,
        base=base,
        versions=versions(CODE),
        applied=tuple(facts["applied"]),
        not_applied=facts["not_applied"],
        machine=facts["machine"],
        baked_at=datetime.now(UTC),
    )
    context.guard()
    context.store.put(manifest_key(inputs), image.model_dump_json(indent=1).encode())
    mark = [{"Key": MANIFEST_TAG, "Value": manifest_key(inputs)}]
    context.account.client("ec2").create_tags(Resources=[ami, *snapshots], Tags=mark)
    return image


def refuse_incomplete(spec: Spec, not_applied: dict[str, str]) -> None:
    """Raise if roles are missing and the nodes will be checked by their instance type's profile, which needs every
    role."""
    lacking = [role for role, reason in not_applied.items() if reason.startswith(_NO_PACKAGES)]
    if lacking and spec.profile == spec.nodes.instance_type:
        raise PermanentError(
            "the node image would be incomplete",
            seen=f"{not_applied[lacking[0]]}: {', '.join(lacking)}",
            cure="take an Amazon Linux 2023 image as base: see base.release in images/versions.yaml",
        )


def take(context: Context, instance: str, inputs: str, base: str) -> tuple[str, tuple[str, ...]]:
    """Stop the builder, so that its disk is at rest, and make an image of it; return (AMI, snapshots)."""
    ec2 = context.account.client("ec2")
    context.guard()
    ec2.stop_instances(InstanceIds=[instance])
    for _ in context.turns(waits.BUILDER_STOP.seconds, 0.5):
        state = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["State"]["Name"]
        if state == "stopped":
            break
        context.progress.step(f"builder {instance} is {state}")
    marks = {**tags(None, None), INPUTS_TAG: inputs, "Name": f"bivouac {base}"}
    pairs = [{"Key": key, "Value": value} for key, value in marks.items()]
    context.guard()
    ami = ec2.create_image(
        InstanceId=instance,
        Name=f"bivouac-node-{inputs[:12]}-{int(time.time())}",
        Description=f"Bivouac node image on {base}"[:255],
        TagSpecifications=[{"ResourceType": kind, "Tags": pairs} for kind in ("image", "snapshot")],
    )["ImageId"]
    for _ in context.turns(waits.IMAGE.seconds, 0.5):
        # A filter instead of the id, which may not be known for a new image yet.
        by_id = [{"Name": "image-id", "Values": [ami]}]
        images = list(every(ec2, "describe_images", "Images", Filters=by_id))
        image: dict[str, Any] = images[0] if images else {"State": "pending"}
        if image["State"] == "available":
            disks = [row.get("Ebs", {}).get("SnapshotId") for row in image.get("BlockDeviceMappings", ())]
            return ami, tuple(disk for disk in disks if disk)
        if image["State"] in ("failed", "error", "invalid"):
            reason = image.get("StateReason", {}).get("Message", "no reason given")
            raise PermanentError(
                "the image could not be made", seen=f"{ami}: {image['State']}: {reason}", cure="bake again"
            )
        context.progress.step(f"image {ami} is {image['State']}")
    raise PermanentError(
        "the image is not available in time",
        seen=f"{ami} after {waits.IMAGE.seconds / 60:.0f} min",
        cure="look at its snapshot in the console; the same command bakes again",
    )


def _forget_unfinished(context: Context, inputs: str) -> None:
    """Remove images that a killed driver, or a halted bake, made but did not record: nobody uses them, and their
    snapshots bill."""
    ec2 = context.account.client("ec2")
    filters = [{"Name": f"tag:{INPUTS_TAG}", "Values": [inputs]}]
    for image in list(every(ec2, "describe_images", "Images", Owners=["self"], Filters=filters)):
        if MANIFEST_TAG in {tag["Key"] for tag in image.get("Tags", ())}:
            continue
        context.guard()
        ec2.deregister_image(ImageId=image["ImageId"])
        for row in image.get("BlockDeviceMappings", ()):
            if disk := row.get("Ebs", {}).get("SnapshotId"):
                ec2.delete_snapshot(SnapshotId=disk)
        context.progress.note(f"{image['ImageId']} was never finished: removed")


def _available(context: Context, ami: str) -> bool:
    by_id = [{"Name": "image-id", "Values": [ami]}]
    images = list(every(context.account.client("ec2"), "describe_images", "Images", Filters=by_id))
    return any(image["State"] == "available" for image in images)
