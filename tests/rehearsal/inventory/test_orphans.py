"""What dead campaigns left is found across the account, priced, and removed after a yes; the living keep theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from infra.cli.end.down import down_command
from infra.cli.end.orphans import orphans_command
from infra.cli.end.sweep import sweep_command
from infra.console.progress import Progress
from infra.errors import UserError
from infra.inventory import certify, orphans, sweep
from infra.kinds import Thing
from infra.record.events import Stage
from infra.record.holder import Holder
from infra.record.identity import claim_identity
from infra.record.payloads import payload_of
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.payloads.training import ArchiveVerified
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.spec.names import CAMPAIGN_ID_TAG, CAMPAIGN_TAG, EXPIRES_TAG
from tests.worlds.campaign_site import CampaignSite, camp

PAST, FUTURE = "2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp")) as one:
        yield one


@pytest.fixture
def living(camped: CampaignSite) -> Iterator[Context]:
    """The campaign `drilled`, with a driver at work."""
    with camped.opened() as context:
        yield context


@pytest.fixture
def keeper(camped: CampaignSite, living: Context) -> orphans.OrphanKeeper:
    return orphans.keeper(living.account, Progress(Console(file=StringIO())))


def volume(camped: CampaignSite, campaign: str, expires: str | None) -> str:
    tags = [{"Key": CAMPAIGN_TAG, "Value": campaign}]
    tags += [{"Key": EXPIRES_TAG, "Value": expires}] if expires else []
    marked = [{"ResourceType": "volume", "Tags": tags}]
    made = camped.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=marked)
    return str(made["VolumeId"])


def volumes(camped: CampaignSite) -> set[str]:
    return {one["VolumeId"] for one in camped.client("ec2").describe_volumes()["Volumes"]}


def record(camped: CampaignSite, context: Context, campaign: str) -> CampaignStore:
    return CampaignStore(camped.client("s3"), context.buckets.state, campaign, "test")


def begun(camped: CampaignSite, context: Context, campaign: str) -> CampaignStore:
    """The record of a campaign that never launched anything: there is nothing to lose."""
    store = record(camped, context, campaign)
    store.append(StageStarted(stage=Stage.BAKE))
    return store


def command(camped: CampaignSite, **more: Any) -> tuple[int, str]:
    out = StringIO()
    code = orphans_command(camped.world.region, more.get("yes", False), True, Console(file=out, width=200))
    return code, out.getvalue()


def by_name(camped: CampaignSite, campaign: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """`bivouac sweep NAME`."""
    out = StringIO()
    code = sweep_command(
        campaign,
        camped.world.region,
        more.get("yes", False),
        True,
        Console(file=out, width=200),
        more.get("abandon", False),
    )
    return code, json.loads(out.getvalue())


def test_only_dead_campaigns_are_swept_and_only_what_carries_their_tag(camped: CampaignSite, living: Context) -> None:
    store = record(camped, living, "ended")
    store.append(StageStarted(stage=Stage.TEARDOWN))
    store.append(StageFinished(stage=Stage.TEARDOWN, seconds=1.0, outputs={}))
    begun(camped, living, "forgotten")
    dead = {volume(camped, "ended", FUTURE), volume(camped, "forgotten", PAST)}
    kept = {volume(camped, "drilled", PAST), volume(camped, "elsewhere", FUTURE), volume(camped, "unknown", None)}
    volume_id = camped.client("ec2").create_volume(
        AvailabilityZone="us-east-1a",
        Size=1,
        TagSpecifications=[{"ResourceType": "volume", "Tags": [{"Key": "Name", "Value": "bivouac-forgotten-gpu"}]}],
    )["VolumeId"]
    code, text = command(camped)
    document = json.loads(text)
    assert code == 74 and {orphan["id"] for orphan in document["orphans"]} == dead and volumes(camped) >= dead | kept
    assert {orphan["campaign"]: orphan["why"] for orphan in document["orphans"]} == {
        "ended": "its record says that it was torn down",
        "forgotten": "its time ran out 2026-01-01 00:00 UTC and nobody looks after it",
    }
    assert set(document["left_alone"]) == {"drilled", "elsewhere", "unknown"}
    assert "its driver lives" in document["left_alone"]["drilled"], "whatever the clock says"
    code, text = command(camped, yes=True)
    assert code == 0 and len(json.loads(text)["removed"]) == 2
    assert not volumes(camped) & dead and volumes(camped) >= kept | {volume_id}


@pytest.mark.nightly
def test_a_driver_that_comes_back_keeps_its_own(
    camped: CampaignSite, living: Context, keeper: orphans.OrphanKeeper
) -> None:
    begun(camped, living, "returned")
    mine = volume(camped, "returned", PAST)
    seen = orphans.look(keeper)
    wanted = [orphan for orphan in seen.orphans if orphan.left.thing.id == mine]
    assert len(wanted) == 1
    other = Holder.this_process().model_copy(update={"host": "another-machine", "boot_id": "another", "pid": 1})
    lease = record(camped, living, "returned").lease("driver", timedelta(seconds=30), other)
    lease.acquire()
    try:
        swept = orphans.clear(keeper, wanted)
        assert not swept.removed and swept.stuck[0][1] == "campaign returned has a driver again"
    finally:
        lease.release()
    assert mine in volumes(camped)
    assert [one.thing.id for one in orphans.clear(keeper, wanted).removed] == [mine]
    assert not keeper.leases, "nothing is held any more"


def test_a_living_steward_looks_after_a_campaign_without_a_driver(
    camped: CampaignSite, living: Context, keeper: orphans.OrphanKeeper
) -> None:
    store = record(camped, living, "stewarded")
    lease = store.lease("steward", timedelta(seconds=30))
    lease.acquire()
    things = [Thing("vol-1", tags={EXPIRES_TAG: PAST})]
    try:
        owner = orphans.judge(keeper, store, "", things, datetime.now(UTC))
        assert not owner.over and "its steward lives" in owner.why
    finally:
        lease.release()
    assert orphans.judge(keeper, store, "", things, datetime.now(UTC)).over


def trained(camped: CampaignSite, context: Context, campaign: str) -> CampaignStore:
    """The record of a campaign whose driver and steward are gone, and whose only checkpoints are on the file system."""
    store = record(camped, context, campaign)
    store.append(AttemptLaunched(attempt=1, committed_step=-1))
    store.append(AttemptEnded(attempt=1, failure="node", detail="died", step=47, committed_at_end=40))
    return store


def lustre(camped: CampaignSite, campaign: str, expires: str, identity: str = "") -> str:
    """Its file system, and the subnet and group by which alone an archive could still be made."""
    ec2 = camped.client("ec2")
    tags = [{"Key": CAMPAIGN_TAG, "Value": campaign}, {"Key": EXPIRES_TAG, "Value": expires}]
    tags += [{"Key": CAMPAIGN_ID_TAG, "Value": identity}] if identity else []

    def marked(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": tags}]

    vpc = ec2.create_vpc(CidrBlock="10.77.0.0/16", TagSpecifications=marked("vpc"))["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(
        VpcId=vpc, CidrBlock="10.77.1.0/24", AvailabilityZone="us-east-1a", TagSpecifications=marked("subnet")
    )["Subnet"]["SubnetId"]
    group = ec2.create_security_group(
        GroupName=f"{campaign}-lustre", Description="l", VpcId=vpc, TagSpecifications=marked("security-group")
    )["GroupId"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    made = camped.client("fsx").create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet], SecurityGroupIds=[group], Tags=tags,
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    )  # fmt: skip
    return str(made["FileSystem"]["FileSystemId"])


def systems(camped: CampaignSite) -> dict[str, str]:
    file_systems = camped.client("fsx").describe_file_systems()["FileSystems"]
    return {one["FileSystemId"]: one["Lifecycle"] for one in file_systems if one["Lifecycle"] != "DELETING"}


def test_checkpoints_that_are_nowhere_else_are_shown_with_their_price_and_not_swept(
    camped: CampaignSite, living: Context
) -> None:
    store, kept = trained(camped, living, "unproven"), lustre(camped, "unproven", PAST)
    begun(camped, living, "long-gone")
    dead = volume(camped, "long-gone", PAST)
    code, text = command(camped, yes=True)
    rows = {orphan["id"]: orphan for orphan in json.loads(text)["orphans"]}
    assert code == 74 and rows[dead]["removable"] and dead not in volumes(camped)
    assert kept in systems(camped), "the only checkpoints"
    mine = [row for row in rows.values() if row["campaign"] == "unproven"]
    assert {one["kind"] for one in mine} == {"file system", "subnet", "VPC", "security group"}
    assert not any(one["removable"] for one in mine), "without its network nothing reads the file system any more"
    assert "step 40" in rows[kept]["holds"] and "`bivouac down unproven`" in rows[kept]["holds"]
    assert rows[kept]["usd_per_hour"] is not None, "what keeping it costs"
    store.append(ArchiveVerified(manifest="s3://a/m.json", step=40))
    _, text = command(camped, yes=True)
    rows = {orphan["id"]: orphan for orphan in json.loads(text)["orphans"]}
    assert rows[kept]["removable"] and rows[kept]["holds"] == "" and kept not in systems(camped)


def address(camped: CampaignSite, campaign: str, identity: str) -> str:
    tags = {CAMPAIGN_TAG: campaign, EXPIRES_TAG: PAST, CAMPAIGN_ID_TAG: identity}
    marked = [{"ResourceType": "elastic-ip", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]
    return str(camped.client("ec2").allocate_address(Domain="vpc", TagSpecifications=marked)["AllocationId"])


NETWORK = {"file system", "subnet", "VPC", "security group"}


def archive(camped: CampaignSite, context: Context, campaign: str, folder: str, **changes: Any) -> None:
    """An archive's manifest and its one object, as the archiver leaves them."""
    prefix, s3 = f"campaigns/{campaign}/{folder}", camped.client("s3")
    for bucket in {context.buckets.archive} - {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}:
        s3.create_bucket(Bucket=bucket)
    item = {"key": f"{prefix}/golden/step-00000040/manifest.json", "size_bytes": 3, "sha256": "0" * 64, "version": ""}
    told = {
        "campaign": campaign, "identity": folder, "step": 40, "tokens": 1, "proof": "recorded in training",
        "recorded_evaluation_loss": 1.0, "reference_evaluation_loss": 1.0, "restored_evaluation_loss": 1.0,
        "objects": [item], "refused": [],
    }  # fmt: skip
    s3.put_object(Bucket=context.buckets.archive, Key=item["key"], Body=b"abc")
    body = json.dumps(told | changes).encode()
    s3.put_object(Bucket=context.buckets.archive, Key=f"{prefix}/archive-manifest.json", Body=body)


def test_a_campaign_whose_record_is_lost_keeps_its_file_system_and_a_network_for_it(
    camped: CampaignSite, living: Context
) -> None:
    kept, paid = lustre(camped, "recordless", PAST, "id-1"), address(camped, "recordless", "id-1")
    code, text = command(camped, yes=True)
    rows = [orphan for orphan in json.loads(text)["orphans"] if orphan["campaign"] == "recordless"]
    assert code == 74 and kept in systems(camped)
    assert {row["kind"] for row in rows if not row["removable"]} >= NETWORK
    told = {(row["kind"], row["identity"], row["holds"]) for row in rows}
    (holds,) = {words for _, identity, words in told if identity == "id-1"}
    assert {identity for _, identity, _ in told} == {"id-1"}, told
    assert "record is missing" in holds and "`bivouac sweep recordless --abandon`" in holds
    assert {row["kind"] for row in rows if row["removable"]} == {"elastic address"}, "it bills, and holds nothing"
    assert paid not in {one["AllocationId"] for one in camped.client("ec2").describe_addresses()["Addresses"]}
    # Shown by its name alone, it is held as well; another one's archive, or a damaged one, proves nothing.
    assert by_name(camped, "recordless", yes=True)[0] == 74 and kept in systems(camped)
    archive(camped, living, "recordless", "id-0")
    archive(camped, living, "recordless", "id-1", identity="id-0")
    assert command(camped, yes=True)[0] == 74 and kept in systems(camped)
    archive(camped, living, "recordless", "id-1")
    camped.client("s3").delete_object(
        Bucket=living.buckets.archive, Key="campaigns/recordless/id-1/golden/step-00000040/manifest.json"
    )
    assert command(camped, yes=True)[0] == 74 and kept in systems(camped), "a manifest of what is not there"
    archive(camped, living, "recordless", "id-1")
    command(camped, yes=True)
    assert kept not in systems(camped), "its archive is proven"


@pytest.mark.nightly
def test_a_person_gives_up_by_name_what_no_record_tells_of(camped: CampaignSite, living: Context) -> None:
    mine, other = lustre(camped, "given-up", FUTURE, "id-2"), lustre(camped, "not-given-up", PAST, "id-3")
    code, shown = by_name(camped, "given-up", yes=True, abandon=True)
    assert code == 0 and {orphan["kind"] for orphan in shown["orphans"]} == NETWORK
    assert mine not in systems(camped) and other in systems(camped)
    with pytest.raises(UserError, match="no such campaign"):
        by_name(camped, "never-heard-of", yes=True, abandon=True)
    assert down_command("not-given-up", camped.world.region, True, Console(file=StringIO()), consent=True) == 0
    assert other not in systems(camped)


@pytest.mark.nightly
def test_an_earlier_campaigns_file_system_is_not_judged_by_the_record_of_its_namesake(
    camped: CampaignSite, living: Context
) -> None:
    store = record(camped, living, "twice")
    own = claim_identity(store, is_adopted=False).identity
    for kind in ("stage.started", "stage.finished"):
        store.append(payload_of(kind, dict(stage=Stage.TEARDOWN, seconds=1.0, outputs={})))
    earlier, later = lustre(camped, "twice", PAST, "20200101T000000Z-00000000"), lustre(camped, "twice", PAST, own)
    _, text = command(camped, yes=True)
    why = {orphan["id"]: orphan["holds"] for orphan in json.loads(text)["orphans"]}
    assert "is not of campaign 20200101T000000Z-00000000" in why[earlier] and why[later] == ""
    assert earlier in systems(camped) and later not in systems(camped)
    by_name(camped, "twice", yes=True, abandon=True)
    assert earlier not in systems(camped)


@pytest.mark.nightly
def test_a_campaign_that_trained_meanwhile_keeps_its_own(
    camped: CampaignSite, living: Context, keeper: orphans.OrphanKeeper
) -> None:
    """Between what was shown and the yes, a driver came, trained and died."""
    begun(camped, living, "revived")
    mine = volume(camped, "revived", PAST)
    wanted = [orphan for orphan in orphans.look(keeper).orphans if orphan.left.thing.id == mine]
    assert wanted[0].removable
    trained(camped, living, "revived")
    swept = orphans.clear(keeper, wanted)
    assert mine in volumes(camped) and not swept.removed and "not archived" in swept.stuck[0][1]
    camped.client("ec2").delete_volume(VolumeId=mine)


@pytest.mark.nightly
def test_a_steward_that_came_back_keeps_its_own(
    camped: CampaignSite, living: Context, keeper: orphans.OrphanKeeper
) -> None:
    begun(camped, living, "restarted")
    mine = volume(camped, "restarted", PAST)
    wanted = [orphan for orphan in orphans.look(keeper).orphans if orphan.left.thing.id == mine]
    lease = record(camped, living, "restarted").lease("steward", timedelta(seconds=30))
    lease.acquire()
    try:
        swept = orphans.clear(keeper, wanted)
    finally:
        lease.release()
    assert mine in volumes(camped) and not swept.removed and "its steward lives" in swept.stuck[0][1]
    camped.client("ec2").delete_volume(VolumeId=mine)


def test_a_left_topic_is_found_and_swept(camped: CampaignSite, living: Context) -> None:
    tags = [{"Key": CAMPAIGN_TAG, "Value": "drilled"}]
    topic = camped.client("sns").create_topic(Name="bivouac-drilled-alarms", Tags=tags)["TopicArn"]
    known = certify.knowledge(living.store, living.names)
    certificate = certify.look_through(living.account, living.names, "", living.spec.account, (), known)
    assert "topic bivouac-drilled-alarms" in certificate.found
    mine = [one for one in sweep.look(living).left if one.kind == "topic"]
    assert [one.thing.id for one in sweep.remove(living, mine).removed] == [topic]
    assert not camped.client("sns").list_topics()["Topics"]
