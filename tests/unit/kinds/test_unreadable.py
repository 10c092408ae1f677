"""What cannot be read is told as such: only AWS's word that it is missing hides it, and a cut line ends the listing."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.kinds import kind_named
from tests.unit.kinds.aws_by_model import OTHER, TRAIN, ByModel, Refused, pairs

UNREACHED = EndpointConnectionError(endpoint_url="https://x")
DENIED, MISSING = Refused("AccessDeniedException", 403), Refused("ResourceNotFoundException", 404)
NAMES = ("one", "gone", "locked", "two")
TOPICS = [f"arn:aws:sns:us-east-1:123456789012:{name}" for name in NAMES]
SINGLE: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
    ("schedule", "scheduler.list_schedules", {"Schedules": [{"Name": name} for name in NAMES]},
     "scheduler.get_schedule", {}),
    ("cluster", "eks.list_clusters", {"clusters": list(NAMES)}, "eks.describe_cluster", {"cluster": {}}),
    ("topic", "sns.list_topics", {"Topics": [{"TopicArn": arn} for arn in TOPICS]},
     "sns.list_tags_for_resource", {"Tags": []}),
    ("parameter", "ssm.describe_parameters", {"Parameters": [{"Name": name} for name in NAMES]},
     "ssm.list_tags_for_resource", {"TagList": []}),
    ("bucket", "s3.list_buckets", {"Buckets": [{"Name": name} for name in NAMES]},
     "s3.get_bucket_tagging", {"TagSet": []}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "listing", "listed", "reading", "read"), SINGLE, ids=[case[0] for case in SINGLE]
)  # fmt: skip
def test_of_what_is_read_one_by_one_the_missing_is_hidden_and_the_denied_is_named(
    kind: str, listing: str, listed: dict[str, Any], reading: str, read: dict[str, Any]
) -> None:
    def answer(asked: dict[str, Any]) -> Any:
        text = str(asked)
        return MISSING if "gone" in text else DENIED if "locked" in text else read

    rows = list(kind_named(kind).things(ByModel({listing: listed, reading: answer})))
    seen = [(row.id.rpartition(":")[2], row.name, row.unread) for row in rows]
    denied = ("locked", "locked", "AccessDeniedException")
    assert seen == [("one", "one", ""), denied, ("two", "two", "")]
    with pytest.raises(EndpointConnectionError):
        list(kind_named(kind).things(ByModel({listing: listed, reading: UNREACHED})))


def test_a_bucket_without_tags_is_shown_as_read() -> None:
    listed = {"Buckets": [{"Name": "bare"}]}
    account = ByModel({"s3.list_buckets": listed, "s3.get_bucket_tagging": Refused("NoSuchTagSet", 404)})
    (one,) = kind_named("bucket").things(account)
    assert (one.id, one.tags, one.unread) == ("bare", {}, "")


def test_a_schedule_is_read_in_its_group_and_mentions_its_role() -> None:
    role = "arn:aws:iam::123456789012:role/bivouac-train-guard"
    listed = {"Schedules": [{"Name": "one"}, {"Name": "two", "GroupName": "night"}]}
    target = {"Target": {"Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "RoleArn": role}}
    account = ByModel({"scheduler.list_schedules": listed, "scheduler.get_schedule": target})
    assert [thing.mentions for thing in kind_named("schedule").things(account)] == [{role}, {role}]
    assert account.calls[1:] == [
        ("scheduler.get_schedule", {"Name": "one", "GroupName": "default"}),
        ("scheduler.get_schedule", {"Name": "two", "GroupName": "night"}),
    ]


STATE, DATA, ARCHIVE = (f"bivouac-{kind}-123456789012-us-east-1" for kind in ("state", "data", "archive"))


def test_uploads_of_all_pages_and_buckets_are_seen_with_their_campaign() -> None:
    uploads: dict[str, list[dict[str, str]]] = {
        STATE: [],
        DATA: [{"Key": "datasets/a", "UploadId": "u-1"}, {"Key": "campaigns/train", "UploadId": "u-2"}],
        ARCHIVE: [{"Key": "campaigns/train-2/x", "UploadId": "u-3"}, {"Key": "campaigns/", "UploadId": "u-4"}],
    }
    account = ByModel({"s3.list_multipart_uploads": lambda asked: {"Uploads": uploads[asked["Bucket"]]}})
    assert [(thing.id, thing.name, thing.tags) for thing in kind_named("incomplete upload").things(account)] == [
        (f"{DATA}/datasets/a#u-1", "datasets/a", {"bivouac:foundation": "true"}),
        (f"{DATA}/campaigns/train#u-2", "campaigns/train", TRAIN),
        (f"{ARCHIVE}/campaigns/train-2/x#u-3", "campaigns/train-2/x", OTHER),
        (f"{ARCHIVE}/campaigns/#u-4", "campaigns/", {"bivouac:foundation": "true"}),
    ]


def test_the_first_bucket_that_is_locked_is_told_after_the_others_and_a_cut_line_at_once() -> None:
    answers: dict[str, Any] = {
        STATE: Refused("AccessDenied", 403), DATA: Refused("InternalError", 500), ARCHIVE: {"Uploads": []},
    }  # fmt: skip
    account = ByModel({"s3.list_multipart_uploads": lambda asked: answers[asked["Bucket"]]})
    with pytest.raises(ClientError, match="AccessDenied"):
        list(kind_named("incomplete upload").things(account))
    assert [asked["Bucket"] for _, asked in account.calls] == [STATE, DATA, ARCHIVE]
    answers |= {STATE: Refused("NoSuchBucket", 404), DATA: Refused("NoSuchBucket", 404)}
    assert list(kind_named("incomplete upload").things(account)) == []
    answers[STATE] = UNREACHED
    with pytest.raises(EndpointConnectionError):
        list(kind_named("incomplete upload").things(account))


def test_tags_in_a_listing_need_no_request_of_their_own() -> None:
    subnets = {"Subnets": [{"SubnetId": "subnet-1", "Tags": pairs(TRAIN)}]}
    account = ByModel({"ec2.describe_subnets": subnets})
    assert [thing.tags for thing in kind_named("subnet").things(account)] == [TRAIN]
    assert len(account.calls) == 1
