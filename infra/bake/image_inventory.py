"""The image inventory: baked images, their users and cost, and the removal of unused ones.

Images belong to the foundation and no teardown touches them, so they accumulate. An image is kept while a campaign that
is not torn down uses it, while an instance or launch template names it, while it is the newest of its base (which the
next campaign most likely takes), and while it is young (a bake ahead of its campaign leaves no other trace).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, TypeVar

from infra.aws.account import Account
from infra.aws.registry import Registry
from infra.bake.bake import ImageManifest
from infra.bake.node_image import RECORD, NodeImage
from infra.console.progress import Progress
from infra.plan.catalogue import service_prices
from infra.record.events import Stage
from infra.record.lease import Lease
from infra.record.store import CampaignStore
from infra.session.session import campaigns
from infra.spec import duration
from infra.spec.names import FOUNDATION_TAG, INPUTS_TAG, REPOSITORY, STEWARD_REPOSITORY

Kind = Literal["node image", "trainer image", "steward image", "snapshot"]
_CONTAINERS: dict[Kind, str] = {"trainer image": REPOSITORY, "steward image": STEWARD_REPOSITORY}
"""Kinds of images in the registry -> repository."""
_Manifest = TypeVar("_Manifest", NodeImage, ImageManifest)
_BAKING = timedelta(hours=3)
"""A younger image without a manifest may still be baked: no builder lives this long."""
_MANIFESTS, _NODE_MANIFESTS = "images/", "images/nodes/"
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_OURS = [{"Name": f"tag:{FOUNDATION_TAG}", "Values": ["true"]}, {"Name": "tag-key", "Values": [INPUTS_TAG]}]
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class BakedImage:
    """An image and the reasons to keep it."""

    kind: Kind
    """`snapshot`: its AMI is gone."""
    id: str
    """The AMI, the digest in the registry, or the snapshot."""
    base: str
    """Its base; empty without a manifest."""
    made_at: datetime
    gb: Decimal
    """Size of its snapshots' volumes or its layers. A bound: snapshots bill what is written, layers are shared."""
    snapshots: tuple[str, ...]
    manifest: str | None
    """Key in the state bucket; None if a killed bake left it."""
    kept_for: tuple[str, ...] = ()

    @property
    def usd_per_month(self) -> Decimal:
        """Upper bound."""
        prices = service_prices()
        rate = prices.ecr_usd_per_gb_month if self.kind in _CONTAINERS else prices.ebs_snapshot_usd_per_gb_month
        return self.gb * rate

    @property
    def removable(self) -> bool:
        return not self.kept_for


@dataclass(frozen=True)
class ImageInventory:
    """The images of one account and region."""

    account: Account
    store: CampaignStore
    progress: Progress

    def images(self, *, keep: int, older_than: timedelta) -> tuple[BakedImage, ...]:
        """Return all images, oldest first; the `keep` newest of each base stay. Raises if AWS refuses a look: an image
        that cannot be proven unused is used."""
        nodes = list(self._nodes())
        inventory = [*nodes, *self._containers(), *self._snapshots({row for image in nodes for row in image.snapshots})]
        inventory.sort(key=lambda row: row.made_at)
        users = self._users(inventory)
        newest = _newest(inventory, keep)
        now = datetime.now(UTC)
        rows = [_with_reasons(row, users[row.id], row.id in newest, now - row.made_at, older_than) for row in inventory]
        return _keep_siblings(rows)

    def remove(self, images: Iterable[BakedImage], lease: Lease) -> Iterator[BakedImage]:
        """Remove images and yield each. The manifest goes first, so that no bake uses the image again."""
        ec2, s3 = self.account.client("ec2"), self.store.s3
        for image in images:
            self.progress.step(f"removing {image.kind} {image.id}")
            lease.check()
            if image.manifest is not None:
                s3.delete_object(Bucket=self.store.bucket, Key=image.manifest)
            if image.kind in _CONTAINERS:
                Registry(self.account).delete_image(_CONTAINERS[image.kind], image.id)
            if image.kind == "node image":
                ec2.deregister_image(ImageId=image.id)
            for snapshot in image.snapshots:
                lease.check()
                ec2.delete_snapshot(SnapshotId=snapshot)
            yield image

    def _nodes(self) -> Iterator[BakedImage]:
        """Yield the AMIs that bear a bake's tags."""
        self.progress.step("node images")
        manifests = {
            node_image.ami: (key, node_image) for key, node_image in self._manifests(_NODE_MANIFESTS, NodeImage)
        }
        pages = self.account.client("ec2").get_paginator("describe_images").paginate(Owners=["self"], Filters=_OURS)
        for image in (image for page in pages for image in page["Images"]):
            key, manifest = manifests.get(image["ImageId"], (None, None))
            made_at = datetime.fromisoformat(image["CreationDate"]) if image.get("CreationDate") else _NEVER
            disks = [row["Ebs"] for row in image.get("BlockDeviceMappings", ()) if row.get("Ebs", {}).get("SnapshotId")]
            yield BakedImage(
                kind="node image",
                id=image["ImageId"],
                base="" if manifest is None else manifest.base,
                made_at=made_at if manifest is None else manifest.baked_at,
                gb=Decimal(sum(int(disk.get("VolumeSize") or 0) for disk in disks)),
                snapshots=tuple(disk["SnapshotId"] for disk in disks),
                manifest=key,
            )

    def _snapshots(self, excluded_ids: set[str]) -> Iterator[BakedImage]:
        """Yield baked snapshots without an AMI: a removal was interrupted, or somebody deregistered the AMI."""
        ec2 = self.account.client("ec2")
        for page in ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=_OURS):
            for snapshot in (snapshot for snapshot in page["Snapshots"] if snapshot["SnapshotId"] not in excluded_ids):
                yield BakedImage(
                    kind="snapshot",
                    id=snapshot["SnapshotId"],
                    base="",
                    made_at=snapshot["StartTime"],
                    gb=Decimal(int(snapshot["VolumeSize"])),
                    snapshots=(snapshot["SnapshotId"],),
                    manifest=None,
                )

    def _containers(self) -> Iterator[BakedImage]:
        """Yield images that a bake pushed to one of our repositories: they have a manifest, or a digest as tag."""
        self.progress.step("trainer images and steward images")
        no_manifest: tuple[str | None, str] = (None, "")
        manifests = dict[str, tuple[str | None, str]]()
        for place, row in self._manifests(_MANIFESTS, ImageManifest):
            manifests[row.image.rpartition("@")[2]] = place, row.base
            if row.steward is not None:
                manifests[row.steward.image.rpartition("@")[2]] = place, row.steward.base
        for kind, repository in _CONTAINERS.items():
            for image in Registry(self.account).images(repository):
                key, base = manifests.get(image["imageDigest"], no_manifest)
                if key is None and not any(_DIGEST.match(tag) for tag in image.get("imageTags", ())):
                    continue
                yield BakedImage(
                    kind=kind,
                    id=image["imageDigest"],
                    base=base,
                    made_at=image["imagePushedAt"],
                    gb=Decimal(int(image["imageSizeInBytes"])) / 10**9,
                    snapshots=(),
                    manifest=key,
                )

    def _manifests(self, prefix: str, model: type[_Manifest]) -> Iterator[tuple[str, _Manifest]]:
        pages = self.store.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.store.bucket, Prefix=prefix, Delimiter="/"
        )
        for key in (item["Key"] for page in pages for item in page.get("Contents", ())):
            manifest = self.store.model_at(key, model)
            if manifest is not None:
                yield key, manifest

    def _users(self, baked_images: Iterable[BakedImage]) -> dict[str, list[str]]:
        """Return image -> users."""
        users = defaultdict[str, list[str]](list)
        images = list(baked_images)
        by_manifest = {row.manifest: row.id for row in images if row.manifest is not None}
        for name in campaigns(self.account, self.store.bucket):
            self.progress.step(f"what campaign {name} uses")
            record = CampaignStore(self.store.s3, self.store.bucket, name, self.store.writer)
            events = record.events()
            state = record.state()
            if Stage.TEARDOWN in state.finished_stages:
                continue
            # Every image in its record: a relaunch may go back to an earlier one.
            text = "".join(event.model_dump_json() for event in events)
            in_use = {row.id for row in images if row.id in text or state.unreadable}
            record_key = str((record.get_json(RECORD) or {}).get("manifest"))
            in_use |= {by_manifest[record_key]} if record_key in by_manifest else set()
            for image in in_use:
                users[image].append(f"campaign {name}")
        for image, user in self._running_users({row.id for row in images if row.kind == "node image"}):
            users[image].append(user)
        return users

    def _running_users(self, amis: set[str]) -> Iterator[tuple[str, str]]:
        if not amis:
            return
        self.progress.step("instances and launch templates")
        ec2 = self.account.client("ec2")
        filters = [
            {"Name": "image-id", "Values": sorted(amis)},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped", "shutting-down"]},
        ]
        for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
            for instance in (instance for group in page["Reservations"] for instance in group["Instances"]):
                yield instance["ImageId"], f"instance {instance['InstanceId']}"
        for page in ec2.get_paginator("describe_launch_templates").paginate():
            for template in page["LaunchTemplates"]:
                versions = ec2.get_paginator("describe_launch_template_versions").paginate(
                    LaunchTemplateId=template["LaunchTemplateId"]
                )
                ids = {v["LaunchTemplateData"].get("ImageId") for p in versions for v in p["LaunchTemplateVersions"]}
                for ami in sorted(ids & amis):
                    yield ami, f"launch template {template['LaunchTemplateName']}"


def _newest(images: Iterable[BakedImage], keep: int) -> set[str]:
    """Return the newest images of each base; without a manifest no bake would use one."""
    bases = defaultdict[tuple[str, str], list[str]](list)
    for row in images:
        if row.manifest is not None:
            bases[(row.kind, row.base)].append(row.id)
    return {image for group in bases.values() for image in group[len(group) - min(keep, len(group)) :]}


def _with_reasons(row: BakedImage, users: list[str], newest: bool, age: timedelta, older_than: timedelta) -> BakedImage:
    reasons = list(users)
    if newest:
        reasons.append("newest of its base")
    if row.manifest is None and age < _BAKING:
        reasons.append("perhaps being baked now")
    if age < older_than:
        reasons.append(f"younger than {duration.text(older_than)}")
    return replace(row, kept_for=tuple(reasons))


def _keep_siblings(images: list[BakedImage]) -> tuple[BakedImage, ...]:
    """Keep an image for another of the same bake: they have one manifest, which goes with the first."""
    kept_keys = {row.manifest for row in images if row.manifest is not None and row.kept_for}
    reasons = ("baked with an image that is kept",)
    return tuple(
        replace(row, kept_for=reasons) if row.removable and row.manifest in kept_keys else row for row in images
    )
