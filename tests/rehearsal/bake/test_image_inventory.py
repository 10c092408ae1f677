"""Images that bakes left, on an emulated account: who uses them, and the removal of those that nobody uses."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import urlopen

import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.aws.given.node_image import base_release
from infra.aws.registry import Registry
from infra.bake.bake import ImageManifest, StewardImage, manifest_key
from infra.bake.node_image import RECORD, NodeImage
from infra.bake.node_image import manifest_key as node_manifest_key
from infra.cli.prepare.images import images_command
from infra.errors import LeaseHeld, UserError
from infra.record.events import Stage
from infra.record.holder import Holder
from infra.record.payloads.stages import StageFinished
from infra.record.store import CampaignStore
from infra.rehearsal.aws.ecr import HOST_TAG, SLIM_TAG
from infra.rehearsal.aws.ecr import REPOSITORY as BASES_REPOSITORY
from infra.rehearsal.aws.ssm_parameters import NEWEST
from infra.session import session
from infra.spec.names import FOUNDATION_TAG, INPUTS_TAG, MANIFEST_TAG, REPOSITORY, STEWARD_REPOSITORY, buckets
from tests.rehearsal.aws_account import World, signed_in, until

NOW = datetime.now(UTC)
BASES = ("amazon-eks-node-al2023-x86_64-nvidia-1.36-v1", "amazon-eks-node-al2023-x86_64-nvidia-1.36-v2")


class Bakery:
    """Leaves images as bakes leave them."""

    def __init__(self, world: World) -> None:
        self.world, self.account = world, Account(world.region)
        self.bucket = buckets(world.account, world.region).state
        self.stewards = dict[str, str]()
        """Digest of a trainer image -> that of the steward image of the same bake."""
        self.s3, self.ec2 = self.account.client("s3"), self.account.client("ec2")
        self.s3.create_bucket(Bucket=self.bucket)
        for repository in (REPOSITORY, STEWARD_REPOSITORY):
            self.account.client("ecr").create_repository(repositoryName=repository)
        self.source = self.ec2.run_instances(
            ImageId=next(ami for ami in world.backend("ec2").amis if ami.startswith("ami-")), MinCount=1, MaxCount=1,
            InstanceType="m5.large",
        )["Instances"][0]["InstanceId"]  # fmt: skip

    def record(self, campaign: str) -> CampaignStore:
        return CampaignStore(self.s3, self.bucket, campaign, "test")

    def node(self, inputs: str, days: float, base: str = BASES[0], whole: bool = True) -> NodeImage:
        marks = {FOUNDATION_TAG: "true", INPUTS_TAG: inputs} | ({MANIFEST_TAG: "x"} if whole else {})
        tags = [{"Key": key, "Value": value} for key, value in marks.items()]
        kinds = [{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")]
        ami = self.ec2.create_image(InstanceId=self.source, Name=f"node-{inputs}", TagSpecifications=kinds)["ImageId"]
        find = {"Filters": [{"Name": "image-id", "Values": [ami]}, {"Name": "state", "Values": ["available"]}]}
        found = until(lambda: self.ec2.describe_images(**find)["Images"])[0]
        image = NodeImage(
            ami=ami, snapshots=tuple(row["Ebs"]["SnapshotId"] for row in found["BlockDeviceMappings"]),
            inputs_digest=inputs, base_ami="ami-0", base=base, versions={}, applied=(), not_applied={}, machine={},
            baked_at=NOW - timedelta(days=days),
        )  # fmt: skip
        if whole:
            self.s3.put_object(Bucket=self.bucket, Key=node_manifest_key(inputs), Body=image.model_dump_json())
        return image

    def pushed(self, tag: str, inputs: str, repository: str) -> str:
        base, given = (BASES_REPOSITORY, tag), {"INPUTS": inputs}
        return Registry(self.account).push_image(base, inputs.encode(), given, inputs, repository)[0].digest

    def trainer(self, inputs: str, base: str = HOST_TAG) -> str:
        """Leave a trainer image and the steward image beside it; return the first one's digest."""
        digest = self.pushed(HOST_TAG, inputs, REPOSITORY)
        self.stewards[digest] = steward = self.pushed(SLIM_TAG, inputs, STEWARD_REPOSITORY)
        image_manifest = ImageManifest(
            image=f"{REPOSITORY}@{digest}", inputs_digest=inputs, base=f"{BASES_REPOSITORY}:{base}",
            base_digest="sha256:0", base_packages={}, layer_packages={},
            steward=StewardImage(
                image=f"{STEWARD_REPOSITORY}@{steward}", base=f"{BASES_REPOSITORY}:{SLIM_TAG}", base_digest="sha256:1",
                bytes=1,
            ),
        )  # fmt: skip
        self.s3.put_object(Bucket=self.bucket, Key=manifest_key(inputs), Body=image_manifest.model_dump_json())
        return digest

    def campaign(self, name: str, image: NodeImage, trainer: str, over: bool) -> None:
        record = self.record(name)
        record.put_json("spec.json", {"campaign": name})
        record.put_json(RECORD, {"manifest": node_manifest_key(image.inputs_digest)})
        outputs = {
            "image": f"{REPOSITORY}@{trainer}",
            "steward_image": f"{STEWARD_REPOSITORY}@{self.stewards[trainer]}",
        }
        record.append(StageFinished(stage=Stage.BAKE, seconds=1, outputs=outputs))
        if over:
            record.append(StageFinished(stage=Stage.TEARDOWN, seconds=1, outputs={}))

    def amis(self) -> set[str]:
        return {image["ImageId"] for image in self.ec2.describe_images(Owners=["self"])["Images"]}

    def snapshots(self) -> set[str]:
        tagged = [{"Name": "tag-key", "Values": [INPUTS_TAG]}]
        return {snapshot["SnapshotId"] for snapshot in self.ec2.describe_snapshots(Filters=tagged)["Snapshots"]}

    def digests(self) -> set[str]:
        registry = Registry(self.account)
        return {image["imageDigest"] for name in (REPOSITORY, STEWARD_REPOSITORY) for image in registry.images(name)}

    def images(self, *, remove: bool = False, older_than: timedelta = timedelta(days=7)) -> dict[str, dict[str, Any]]:
        stream = io.StringIO()
        code = images_command(self.world.region, 1, older_than, remove, True, True, Console(file=stream, width=200))
        assert code == 0
        return {row["id"]: row for row in json.loads(stream.getvalue())}

    def site(self, route: str, **asked: Any) -> dict[str, Any]:
        with urlopen(f"{self.world.endpoint_url}/_site/{route}", data=json.dumps(asked).encode()) as answer:
            return dict(json.loads(answer.read()))


@pytest.fixture(scope="module")
def bakery(world: World) -> Iterator[Bakery]:
    with pytest.MonkeyPatch.context() as patch:
        signed_in(patch, world)
        yield Bakery(world)


@pytest.fixture(scope="module")
def inventory(bakery: Bakery) -> dict[str, Any]:
    """Name of each image's part -> the image."""
    node, trainer = bakery.node, bakery.trainer
    found: dict[str, Any] = {
        "of a living campaign": node("living", 40),
        "of a dead campaign": node("dead", 50),
        "in a launch template": node("template", 60),
        "of an instance": node("instance", 70),
        "newest of its base": node("newest", 30),
        "newest of another base": node("other", 90, BASES[1]),
        "young": node("young", 3),
        "perhaps being baked": node("baking", 0, whole=False),
        "trainer of a living campaign": trainer("1" * 64),
        "trainer of a dead campaign": trainer("2" * 64),
        "trainer newest": trainer("3" * 64),
        # Its base is another one, but all stewards have the same: the newest of those is of "trainer newest".
        "trainer newest of another base": trainer("0" * 64, "elsewhere"),
    }
    found |= {f"steward of {name}": bakery.stewards[one] for name, one in found.items() if name.startswith("trainer")}
    ec2 = bakery.ec2
    ec2.create_launch_template(
        LaunchTemplateName="theirs", LaunchTemplateData={"ImageId": found["in a launch template"].ami}
    )
    ec2.run_instances(ImageId=found["of an instance"].ami, MinCount=1, MaxCount=1, InstanceType="m5.large")
    old, new = found["trainer of a living campaign"], found["trainer of a dead campaign"]
    bakery.campaign("living", found["of a living campaign"], old, over=False)
    bakery.campaign("dead", found["of a dead campaign"], new, over=True)
    return found


def test_every_image_says_what_it_is_kept_for_and_what_it_costs(bakery: Bakery, inventory: dict[str, Any]) -> None:
    rows = bakery.images()
    kept = {name: rows[getattr(one, "ami", one)]["kept_for"] for name, one in inventory.items()}
    assert kept["of a living campaign"] == ["campaign living"]
    assert kept["of a dead campaign"] == []
    assert kept["in a launch template"] == ["launch template theirs"]
    assert len(kept["of an instance"]) == 1 and kept["of an instance"][0].startswith("instance i-")
    assert kept["newest of another base"] == ["newest of its base"]
    assert "younger than 7d" in kept["young"] and "newest of its base" in kept["young"]
    assert kept["perhaps being baked"] == ["perhaps being baked now", "younger than 7d"]
    assert kept["trainer of a living campaign"] == ["campaign living", "younger than 7d"]
    assert kept["trainer of a dead campaign"] == ["younger than 7d"]
    assert rows[inventory["steward of trainer newest"]]["kind"] == "steward image"
    assert kept["steward of trainer of a living campaign"] == ["campaign living", "younger than 7d"]
    one = rows[inventory["of a dead campaign"].ami]
    assert float(one["usd_per_month_at_most"]) == pytest.approx(float(one["gb"]) * 0.05) and float(one["gb"]) > 0
    assert float(rows[inventory["trainer newest"]]["usd_per_month_at_most"]) > 0


def test_the_releases_that_aws_has_published_since_the_pinned_one_are_told(
    bakery: Bakery, inventory: dict[str, Any]
) -> None:
    stream = io.StringIO()
    images_command(bakery.world.region, 1, timedelta(days=7), False, False, False, Console(file=stream, width=300))
    pinned = f"{base_release()} (base.release in images/versions.yaml)"
    assert f"EKS's release {pinned}; newer ones: v{NEWEST}\n" in stream.getvalue()
    assert all(row["newer_releases"] == [f"v{NEWEST}"] for row in bakery.images().values())


def test_without_a_yes_and_while_another_holds_the_foundation_nothing_is_removed(
    bakery: Bakery, inventory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bakery.amis()
    quiet = Console(file=io.StringIO())
    monkeypatch.setattr(Console, "input", lambda self, question, markup: "n")
    with pytest.raises(UserError, match="nothing was removed"):
        images_command(bakery.world.region, 1, timedelta(days=7), True, False, False, quiet)
    monkeypatch.setattr(session, "_FOUNDATION_WAIT_S", 0.0)
    other = CampaignStore(bakery.s3, bakery.bucket, "foundation", "other", folder="foundation")
    elsewhere = Holder.this_process().model_copy(update={"host": "elsewhere", "boot_id": "another", "pid": 1})
    lease = other.lease(session.DRIVER_LEASE, timedelta(seconds=30), elsewhere)
    lease.acquire()
    try:
        with pytest.raises(LeaseHeld):
            images_command(bakery.world.region, 1, timedelta(days=7), True, True, True, quiet)
    finally:
        lease.release()
    assert bakery.amis() == before


def test_what_cannot_be_seen_to_be_unused_is_not_removed(bakery: Bakery, inventory: dict[str, Any]) -> None:
    before, digests = bakery.amis(), bakery.digests()
    for service, action in (("ec2", "DescribeLaunchTemplateVersions"), ("ec2", "DescribeInstances"), ("s3", "Get*")):
        rule = {"service": service, "action": action, "code": "AccessDenied", "status": 403, "times": None}
        (number,) = bakery.site("faults", add=[rule])["added"]
        try:
            with pytest.raises(Exception, match=r"AccessDenied|UnauthorizedOperation"):
                bakery.images(remove=True)
        finally:
            bakery.site("faults", clear=[number])
    assert bakery.amis() == before and bakery.digests() == digests


def test_only_what_nobody_uses_goes_and_what_a_broken_removal_left_goes_the_next_time(
    bakery: Bakery, inventory: dict[str, Any]
) -> None:
    before, dead = bakery.amis(), inventory["of a dead campaign"]
    (number,) = bakery.site(
        "faults", add=[{"service": "ec2", "action": "DeleteSnapshot", "code": "AccessDenied", "status": 403,
                        "times": None}],
    )["added"]  # fmt: skip
    try:
        with pytest.raises(Exception, match="DeleteSnapshot"):
            bakery.images(remove=True)
    finally:
        bakery.site("faults", clear=[number])
    assert before - bakery.amis() == {dead.ami}, "its manifest and itself are gone, its snapshot is not"
    assert set(dead.snapshots) < bakery.snapshots()
    # Snapshots have the time of their making: only with no age asked for is this one old enough.
    rows = bakery.images()
    assert rows[dead.snapshots[0]]["kind"] == "snapshot"
    assert rows[dead.snapshots[0]]["kept_for"] == ["perhaps being baked now", "younger than 7d"]


def test_no_age_asked_for_leaves_what_is_used_newest_or_being_baked(bakery: Bakery, inventory: dict[str, Any]) -> None:
    bakery.images(remove=True, older_than=timedelta(0))
    names = {name for name, one in inventory.items() if getattr(one, "ami", one) in bakery.amis() | bakery.digests()}
    gone = {"of a dead campaign", "newest of its base", "trainer of a dead campaign"}
    assert names == set(inventory) - {*gone, "steward of trainer of a dead campaign"}
    assert bakery.record("x").get(manifest_key("3" * 64)) is not None, (
        "a steward image takes no trainer's manifest along"
    )
    assert bakery.record("x").get(manifest_key("0" * 64)) is not None
    assert bakery.record("x").get(node_manifest_key("newest")) is None
    assert bakery.record("x").get(node_manifest_key("young")) is not None
    assert (
        not {snapshot for name in ("newest of its base",) for snapshot in inventory[name].snapshots}
        & bakery.snapshots()
    )
    assert all(not row["removed"] for row in bakery.images().values())
