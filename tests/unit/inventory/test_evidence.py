"""What counts as proof that a thing is the campaign's: where it lies and what it carries, never what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from infra.inventory import Evidence, Knowledge
from infra.inventory.evidence import is_account_wide, unread_of
from infra.inventory.sweep import Leftover, beyond_doubt
from infra.kinds import Thing, thing
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG, REGION_TAG, Names

NAMES = Names("train")
VPC, SUBNET, ELSEWHERE = "vpc-0aaaaaaaaaaaaaaa1", "subnet-0aaaaaaaaaaaaaaa1", "vpc-0bbbbbbbbbbbbbbb2"
KNOWN = Knowledge(NAMES, frozenset({VPC, SUBNET}))
OWNED, SHARED = ([{"Key": f"kubernetes.io/cluster/{NAMES.cluster}", "Value": word}] for word in ("owned", "shared"))


def judged(kind: str, item: Mapping[str, Any], id: str, name: str = "", known: Knowledge = KNOWN) -> Leftover | None:
    found = known.judge({kind: [thing(item, id, name)]})[kind]
    return Leftover(kind, *found[0]) if found else None


SPEAKS = [
    ("security group", {"GroupId": "sg-0bbbbbbbbbbbbbbb2", "VpcId": ELSEWHERE, "Description": f"peers of {VPC}"}),
    ("alarm", {"AlarmName": "bytes", "Dimensions": [{"Name": "VpcId", "Value": VPC}]}),
    ("elastic address", {"AllocationId": "eipalloc-1", "Tags": [{"Key": "note", "Value": f"was peer of {VPC}"}]}),
    ("load balancer", {"VpcId": ELSEWHERE, "Tags": [{"Key": "SubnetId", "Value": SUBNET}]}),
    ("VPC peering", {"RequesterVpcInfo": {"VpcId": ELSEWHERE}, "AccepterVpcInfo": {"VpcId": VPC}}),
]


@pytest.mark.parametrize(("kind", "item"), SPEAKS, ids=[kind for kind, _ in SPEAKS])
def test_what_only_speaks_of_the_campaigns_network_is_named_and_never_removed(kind: str, item: dict[str, Any]) -> None:
    one = judged(kind, item, "one-of-theirs")
    assert one is not None and one.evidence is Evidence.KIN and not one.removable


LIES = [
    ("network interface", {"VpcId": VPC, "SubnetId": SUBNET}),
    ("security group", {"VpcId": VPC, "Description": "left"}),
    ("VPC endpoint", {"VpcId": VPC, "SubnetIds": [SUBNET]}),
    ("file system", {"SubnetIds": [SUBNET]}),
    ("load balancer", {"AvailabilityZones": [{"ZoneName": "us-east-1a", "SubnetId": SUBNET}]}),
    ("classic load balancer", {"VPCId": VPC, "Subnets": [SUBNET], "AvailabilityZones": ["us-east-1a"]}),
    ("Auto Scaling group", {"VPCZoneIdentifier": f"subnet-0ccccccccccccccc3,{SUBNET}", "AvailabilityZones": ["a"]}),
    ("internet gateway", {"Attachments": [{"VpcId": VPC, "State": "available"}]}),
    ("flow log", {"ResourceId": VPC}),
    ("spot request", {"LaunchSpecification": {"SubnetId": SUBNET, "ImageId": "ami-1"}}),
    ("cluster", {"resourcesVpcConfig": {"vpcId": VPC, "subnetIds": [SUBNET]}}),
    ("subnet", {"SubnetId": "subnet-0ddddddddddddddd4", "VpcId": VPC}),
]


@pytest.mark.parametrize(("kind", "item"), LIES, ids=[kind for kind, _ in LIES])
def test_what_lies_in_the_campaigns_network_is_its_own(kind: str, item: dict[str, Any]) -> None:
    one = judged(kind, item, "left-there")
    assert one is not None and one.evidence is Evidence.PLACE and one.removable


def test_a_volume_of_an_instance_in_the_network_is_kin_and_not_in_it() -> None:
    attached = {"Attachments": [{"InstanceId": "i-0aaaaaaaaaaaaaaa1", "State": "attached"}]}
    knowledge = Knowledge(NAMES, frozenset({VPC, "i-0aaaaaaaaaaaaaaa1"}))
    one = judged("volume", attached, "vol-1", known=knowledge)
    assert one is not None and one.evidence is Evidence.KIN and not one.removable


@pytest.mark.parametrize("kind", ["subnet", "security group"])
def test_what_a_cluster_only_shares_is_not_the_clusters(kind: str) -> None:
    assert judged(kind, {"VpcId": ELSEWHERE, "Tags": SHARED}, "theirs") is None
    one = judged(kind, {"VpcId": ELSEWHERE, "Tags": OWNED}, "ours")
    assert one is not None and one.evidence is Evidence.CLUSTER and beyond_doubt(one)


def test_what_was_there_before_the_campaign_is_not_its_clusters_whatever_its_tag_says() -> None:
    older = Knowledge(NAMES, frozenset({VPC}), before={"subnet": frozenset({"theirs"})})
    assert judged("subnet", {"VpcId": ELSEWHERE, "Tags": OWNED}, "theirs", known=older) is None
    joined = [{"Key": "eks:cluster-name", "Value": NAMES.cluster}]
    assert judged("subnet", {"VpcId": ELSEWHERE, "Tags": joined}, "theirs", known=older) is None


@pytest.mark.parametrize(("word", "suspect"), [("owned", False), ("shared", True)])
def test_a_cluster_that_only_uses_a_thing_is_not_its_owner(word: str, suspect: bool) -> None:
    fresh = Knowledge(NAMES, before={"subnet": frozenset()})
    tags = [{"Key": "kubernetes.io/cluster/web", "Value": word}]
    assert bool(fresh.suspects({"subnet": [thing({"Tags": tags}, "subnet-1")]})) is suspect


@pytest.mark.parametrize(
    ("kind", "name"), [("role", "bivouac-train-node"), ("topic", "bivouac-train-alarms"), ("cluster", "bivouac-train")]
)
def test_what_has_only_a_name_of_ours_is_shown_and_never_removed(kind: str, name: str) -> None:
    one = judged(kind, {}, name, name)
    assert one is not None and one.evidence is Evidence.NAME and not one.removable and not beyond_doubt(one)
    older = Knowledge(NAMES, before={kind: frozenset({name})})
    assert judged(kind, {}, name, name, older) is None


def test_the_log_group_that_eks_makes_again_is_removed_unless_it_was_there_before() -> None:
    name = NAMES.log_group
    one = judged("log group", {"logGroupName": name}, name, name)
    assert one is not None and one.removable and beyond_doubt(one)
    older = Knowledge(NAMES, before={"log group": frozenset({name})})
    assert judged("log group", {"logGroupName": name}, name, name, older) is None
    began = datetime(2026, 11, 1, tzinfo=UTC)
    knowledge = Knowledge(NAMES, began=began, before={"log group": frozenset({name})})
    again = judged("log group", {"creationTime": 1000 * (began.timestamp() + 3600)}, name, name, knowledge)
    assert again is not None and again.removable, "adopted by its name, destroyed, and made again by the dying cluster"
    assert judged("log group", {"creationTime": 1000 * (began.timestamp() - 3600)}, name, name, knowledge) is None
    other = judged("parameter", {"Name": name}, name, name)
    assert other is not None and not other.removable, "only the log group, by that name"


def test_a_network_with_the_campaigns_tag_proves_place_though_no_record_names_it() -> None:
    """A provision that failed recorded no place: what the cluster's network plugin left is removable all the same."""
    tags = [{"Key": CAMPAIGN_TAG, "Value": "train"}]
    nobody = Knowledge(NAMES)
    seen = {
        "VPC": [thing({"VpcId": VPC, "Tags": tags}, VPC), thing({"VpcId": ELSEWHERE}, ELSEWHERE)],
        "subnet": [thing({"SubnetId": SUBNET, "VpcId": VPC, "Tags": tags}, SUBNET)],
        "network interface": [
            thing({"VpcId": VPC, "SubnetId": SUBNET, "Description": "aws-K8S-i-0123456789abcdef0"}, "eni-1"),
            thing({"VpcId": ELSEWHERE, "Description": f"to {VPC}"}, "eni-2"),
        ],
        "volume": [thing({"Tags": tags}, "vol-0aaaaaaaaaaaaaaa1")],
        "snapshot": [thing({"VolumeId": "vol-0aaaaaaaaaaaaaaa1"}, "snap-1")],
    }
    found = {one.id: Leftover(kind, one, why) for kind, rows in nobody.judge(seen).items() for one, why in rows}
    assert found["eni-1"].evidence is Evidence.PLACE and found["eni-1"].removable
    assert not found["eni-2"].removable and not found["snap-1"].removable and ELSEWHERE not in found


@pytest.mark.parametrize(
    "known",
    [
        Knowledge(NAMES, frozenset({"vpc-0eeeeeeeeeeeeeee5"})),
        Knowledge(NAMES, before={"VPC": frozenset({VPC}), "subnet": frozenset({SUBNET})}),
    ],
    ids=["the record names another", "it was there before"],
)
def test_a_tag_alone_makes_no_network_the_campaigns_where_more_is_known(known: Knowledge) -> None:
    """Tags get copied: the network that carries one is shown and may be removed, what others keep in it may not."""
    tags = [{"Key": CAMPAIGN_TAG, "Value": "train"}]
    seen = {
        "VPC": [thing({"VpcId": VPC, "Tags": tags}, VPC)],
        "network interface": [thing({"VpcId": VPC, "SubnetId": SUBNET}, "eni-1")],
    }
    rows = {one.id: why for several in known.judge(seen).values() for one, why in several}
    assert rows == {VPC: Evidence.TAG, "eni-1": Evidence.KIN}


def test_a_network_that_only_carries_a_cluster_tag_proves_no_place() -> None:
    seen = {
        "VPC": [thing({"VpcId": ELSEWHERE, "Tags": SHARED}, ELSEWHERE)],
        "network interface": [thing({"VpcId": ELSEWHERE}, "eni-2")],
    }
    assert not any(Knowledge(NAMES).judge(seen).values())


HERE = Knowledge(NAMES, region="us-west-2")


@pytest.mark.parametrize("kind", ["role", "instance profile", "policy", "bucket", "budget"])
@pytest.mark.parametrize(
    ("region", "evidence"), [("us-west-2", Evidence.TAG), (None, Evidence.UNPLACED), ("us-east-1", None)]
)
def test_of_what_all_regions_share_the_campaigns_tag_proves_beside_our_regions_only(
    kind: str, region: str | None, evidence: Evidence | None
) -> None:
    """A campaign of the same name may live in another region, and its roles stand in the same list."""
    tags = [{"Key": CAMPAIGN_TAG, "Value": "train"}, *([{"Key": REGION_TAG, "Value": region}] if region else [])]
    one = judged(kind, {"Tags": tags}, "bivouac-train-node", known=HERE)
    assert (one.evidence if one else None) is evidence
    assert (one is not None and beyond_doubt(one)) == (evidence is Evidence.TAG)
    older = replace(HERE, before={kind: frozenset({"bivouac-train-node"})})
    assert judged(kind, {"Tags": tags}, "bivouac-train-node", known=older) is None, "there before: another's"
    elsewhere = judged("volume", {"Tags": tags}, "vol-1", known=HERE)
    assert elsewhere is not None and beyond_doubt(elsewhere), "a volume of another region is not listed here"


def test_a_cluster_has_its_name_in_its_region_only() -> None:
    one = judged("role", {"Tags": OWNED}, "made-from-inside", known=HERE)
    assert one is not None and one.removable and not beyond_doubt(one), "after a yes"


@pytest.mark.parametrize("more", [{}, {"VpcId": VPC, "SubnetId": SUBNET}], ids=["elsewhere", "in the network"])
def test_what_carries_the_foundations_tag_is_never_a_campaigns(more: dict[str, str]) -> None:
    tags = [{"Key": FOUNDATION_TAG, "Value": "true"}, *OWNED]
    assert judged("network interface", {"Tags": tags, **more}, "bivouac-train-x", NAMES.cluster) is None
    assert judged("log group", {"Tags": tags}, NAMES.log_group) is None


@pytest.mark.parametrize("name", [f"{NAMES.log_group}-2", "/aws/eks/bivouac-other/cluster", "mine"])
def test_only_the_log_group_of_that_very_name_is_the_clusters(name: str) -> None:
    assert judged("log group", {"logGroupName": name}, name, name) is None


def test_of_many_things_whose_tags_could_not_be_read_five_are_named_and_all_counted() -> None:
    several = [Thing(f"b-{number}", unread="AccessDenied") for number in range(7)]
    shown = "b-0, b-1, b-2, b-3, b-4"
    assert unread_of(several[:5]) == f"AccessDenied: the tags of {shown}"
    assert unread_of([Thing("read"), *several]) == f"AccessDenied: the tags of {shown} and 2 more"
    assert unread_of([Thing("read")]) == ""


def test_the_record_s_network_is_the_campaign_s_wherever_it_stands_among_its_places() -> None:
    places = frozenset({VPC, *(f"subnet-{number:017x}" for number in range(100))})
    tagged = [thing({"VpcId": ELSEWHERE, "Tags": [{"Key": CAMPAIGN_TAG, "Value": "train"}]}, ELSEWHERE)]
    assert Knowledge(NAMES, places).network({"VPC": tagged}) == places
    assert Knowledge(NAMES, places - {VPC}).network({"VPC": tagged}) == places - {VPC} | {ELSEWHERE}


@pytest.mark.parametrize("kind", ["VPC", "subnet"])
def test_each_kind_of_network_proves_a_place_by_the_campaign_s_tag(kind: str) -> None:
    tags = [{"Key": CAMPAIGN_TAG, "Value": "train"}]
    several = [thing({"Tags": tags}, "one"), thing({}, "untagged"), thing({"Tags": tags}, "two")]
    assert Knowledge(NAMES).network({kind: several, "volume": several}) == {"one", "two"}


def test_an_arn_without_a_region_is_of_the_whole_account() -> None:
    assert is_account_wide("anything tagged", Thing("arn:aws:iam::123456789012:role/x"))
    assert not is_account_wide("anything tagged", Thing("arn:aws:ecr:us-east-1:123456789012:repository/x"))
    assert not is_account_wide("volume", Thing("vol-1")) and is_account_wide("role", Thing("r"))


NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def suspects(*things: Thing, before: Mapping[str, frozenset[str]] | None = None, **known: Any) -> list[str]:
    knowledge = Knowledge(NAMES, frozenset({VPC, SUBNET}), before=before or {}, **known)
    return [str(suspect) for suspect in knowledge.suspects({"network interface": things})]


def test_nothing_of_the_campaign_s_own_is_a_suspect() -> None:
    inside = [Thing(f"eni-{number}", inside=frozenset({VPC}), created=NOON) for number in range(3)]
    fresh = Thing("eni-9", created=NOON)
    assert [suspect.partition(":")[0] for suspect in suspects(*inside, fresh, began=NOON)] == [
        "network interface eni-9"
    ]


@pytest.mark.parametrize("owner", [CAMPAIGN_TAG, FOUNDATION_TAG, "eks:cluster-name", "aws:cloudformation:stack-id"])
def test_an_owner_is_named_wherever_its_tag_stands(owner: str) -> None:
    for tags in ({"a": "1", owner: "x"}, {owner: "x", "z": "1"}):
        assert suspects(Thing("eni-1", tags=tags, created=NOON), began=NOON) == []
    (one,) = suspects(Thing("eni-1", tags={"b": "2", "Name": "x", "a": "1"}, created=NOON), began=NOON)
    assert one.endswith("with no tag that names an owner: Name=x, a=1, b=2")


def test_a_suspect_is_told_with_the_time_it_was_made_and_what_is_known_of_its_tags() -> None:
    said = "made 2026-11-01 13:30 UTC, since the campaign began, without a tag"
    late = NOON.replace(hour=13, minute=30)
    assert suspects(Thing("eni-1", created=late), began=NOON) == [f"network interface eni-1: {said}"]
    baseline = {"network interface": frozenset({"eni-0"})}
    assert suspects(Thing("eni-0"), Thing("eni-1", unread="AccessDenied"), before=baseline) == [
        "network interface eni-1: new since the campaign began, its tags could not be read (AccessDenied)"
    ]


def test_without_a_baseline_only_what_was_surely_made_after_the_begin_is_a_suspect() -> None:
    """A minute is allowed for clocks that differ."""
    just, before = NOON.replace(hour=11, minute=59), NOON.replace(hour=11, minute=58, second=59)
    assert len(suspects(Thing("eni-1", created=just), began=NOON)) == 1
    for one, began in ((Thing("x", created=before), NOON), (Thing("x"), NOON), (Thing("x", created=NOON), None)):
        assert suspects(one, began=began) == []
    assert len(suspects(Thing("x", created=before), began=NOON, before={"network interface": frozenset()})) == 1
