"""A listed item becomes a thing: when it was made, where it lies, whether it is leaving, and whom it mentions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from infra.kinds import Thing, tags_of, thing
from tests.tables import Table

TABLE = Table(__file__)

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def test_a_bare_thing_is_there_unowned_and_readable() -> None:
    one = Thing("x")
    assert (one.name, one.tags, one.created, one.mentions, one.inside) == ("", {}, None, frozenset(), frozenset())
    assert (one.leaving, one.unread, one.doubt, one.traits) == (False, "", "", {})


@pytest.mark.parametrize(
    ("id", "name", "label"),
    [
        ("vpc-0aaaaaaaaaaaaaaa1", "bivouac-train", "bivouac-train (vpc-0aaaaaaaaaaaaaaa1)"),
        ("vpc-0aaaaaaaaaaaaaaa1", "", "vpc-0aaaaaaaaaaaaaaa1"),
        ("arn:aws:sns:us-east-1:1:alarms", "alarms", "alarms"),
        ("bucket-with-vpc-0aaaaaaaaaaaaaaa1", "bucket", "bucket"),
        ("alarms", "", "alarms"),
    ],
)
def test_people_read_a_name_and_an_id_that_says_more(id: str, name: str, label: str) -> None:
    assert Thing(id, name).label == label


@pytest.mark.parametrize(
    ("item", "born"),
    [
        ({"CreateTime": NOON}, NOON),
        ({"CreateTime": datetime(2026, 11, 1, 12)}, NOON),
        ({"CreateTime": datetime(2026, 11, 1, 14, tzinfo=timezone(timedelta(hours=2)))}, NOON),
        ({"creationTime": 1793534400000}, NOON),
        ({"creationTime": 1793534400}, NOON),
        ({"creationTime": 1793534400.0}, NOON),
        ({"creationTime": 99999999999}, datetime(5138, 11, 16, 9, 46, 39, tzinfo=UTC)),
        ({"creationTime": 100000000001}, datetime(1973, 3, 3, 9, 46, 40, 1000, tzinfo=UTC)),
        ({"creationTime": 1}, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ({"creationTime": 0}, None),
        ({"creationTime": -5}, None),
        ({"CreationDate": "2026-11-01T12:00:00.000Z"}, NOON),
        ({"CreationDate": "2026-11-01T12:00:00"}, NOON),
        ({"CreationDate": "2026-11-01T14:00:00+02:00"}, NOON),
        ({"CreationDate": "yesterday"}, None),
        ({"CreateTime": "yesterday", "LaunchTime": NOON}, NOON),
        ({"CreateTime": 0, "LaunchTime": NOON}, NOON),
        ({"CreateTime": None, "LaunchTime": NOON}, NOON),
        ({"LastModifiedDate": NOON + timedelta(days=1), "CreatedTime": NOON}, NOON),
        ({"Initiated": NOON}, NOON),
        ({"When": NOON}, None),
        ({}, None),
    ],
)
def test_the_time_of_birth_is_read_in_each_spelling(item: dict[str, Any], born: datetime | None) -> None:
    created = thing(item, "x").created
    assert created == born and (created is None or created.tzinfo is not None)


@TABLE.cases
def test_what_aws_is_deleting_is_leaving(item: dict[str, Any], leaving: bool) -> None:
    assert thing(item, "x").leaving is leaving


@pytest.mark.parametrize(
    "item",
    [
        {"Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]},
        {"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]},
        {"TagList": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]},
        {"tags": {"a": "1", "b": "2"}},
        {"Tags": [], "tags": {"a": "1", "b": "2"}},
        {"Tags": [{"key": "a", "value": "1"}, {"TagKey": "b", "TagValue": "2"}]},
    ],
)
def test_tags_are_read_in_each_spelling_unless_they_are_given(item: dict[str, Any]) -> None:
    assert thing(item, "x").tags == {"a": "1", "b": "2"}
    assert thing(item, "x", "", {}).tags == {} and thing(item, "x", "", {"c": "3"}).tags == {"c": "3"}


def test_no_tags_are_an_empty_dictionary() -> None:
    assert tags_of(None) == tags_of([]) == thing({}, "x").tags == {}
    assert tags_of([{}]) == {"": ""}, "a tag without a key names nothing"


A, B, C, ME = (f"subnet-0aaaaaaaaaaaaaaa{number}" for number in range(4))


@pytest.mark.parametrize(
    ("item", "inside"),
    [
        ({"VpcId": "vpc-1", "SubnetId": ME}, {"vpc-1"}),
        ({"VPCId": "vpc-1", "Subnets": [A, B]}, {"vpc-1", A, B}),
        ({"SubnetIds": [A, ME, B]}, {A, B}),
        ({"VPCZoneIdentifier": f"{A}, {B},{C}"}, {A, B, C}),
        ({"ResourceId": "eni-1"}, set()),
        ({"AvailabilityZones": [{"SubnetId": A}, {"SubnetId": B}]}, {A, B}),
        ({"AvailabilityZones": ["us-east-1a"]}, set()),
        ({"Attachments": [{"VpcId": "vpc-1"}, {"InstanceId": "i-1"}, {"VpcId": "vpc-2"}]}, {"vpc-1", "vpc-2"}),
        ({"LaunchSpecification": {"SubnetId": A, "ImageId": "ami-1"}}, {A}),
        ({"resourcesVpcConfig": {"vpcId": "vpc-1", "subnetIds": [A, B]}}, {"vpc-1", A, B}),
        ({"Attachments": None, "SubnetIds": None, "VpcId": ""}, set()),
        ({"Description": "in vpc-1", "Tags": [{"Key": "VpcId", "Value": "vpc-1"}]}, set()),
    ],
)
def test_a_thing_lies_where_aws_own_fields_say(item: dict[str, Any], inside: set[str]) -> None:
    assert thing(item, ME).inside == inside


def test_a_thing_mentions_ids_and_roles_anywhere_but_in_rules_that_admit_others() -> None:
    role = "arn:aws:iam::123456789012:role/path/bivouac-train-node"
    item = {
        "GroupId": "sg-0aaaaaaaaaaaaaaa1", "VpcId": "vpc-0aaaaaaaaaaaaaaa1", "When": NOON,
        "Description": f"of i-0aaaaaaaaaaaaaaa1, made by {role}",
        "IpPermissions": [{"UserIdGroupPairs": [{"GroupId": "sg-0bbbbbbbbbbbbbbb2"}]}],
        "IpPermissionsEgress": [{"UserIdGroupPairs": [{"GroupId": "sg-0bbbbbbbbbbbbbbb2"}]}],
    }  # fmt: skip
    one = thing(item, "sg-0aaaaaaaaaaaaaaa1", "nodes")
    assert one.mentions == {"vpc-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa1", role}
    assert (one.id, one.name) == ("sg-0aaaaaaaaaaaaaaa1", "nodes")
