"""What a listing shows of each kind, over AWS's answers: only what is no more is hidden, and no thing hides another."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.inventory import Knowledge
from infra.kinds import kind_named
from infra.spec.names import Names

ARN = "arn:aws:elasticloadbalancing:us-east-1:1:loadbalancer/net/a/1"
STATES: list[tuple[str, dict[str, Any], bool]] = [
    ("load balancer", {"LoadBalancerArn": ARN, "State": {"Code": "failed"}}, True),
    ("VPC endpoint", {"VpcEndpointId": "vpce-1", "State": "failed"}, True),
    ("VPC endpoint", {"VpcEndpointId": "vpce-1", "State": "Expired"}, True),
    ("VPC endpoint", {"VpcEndpointId": "vpce-1", "State": "deleted"}, False),
    ("image", {"ImageId": "ami-1", "State": "failed"}, True),
    ("image", {"ImageId": "ami-1", "State": "deregistered"}, False),
    ("volume", {"VolumeId": "vol-1", "State": "error"}, True),
    ("NAT gateway", {"NatGatewayId": "nat-1", "State": "failed"}, False),
    ("NAT gateway", {"NatGatewayId": "nat-1", "State": "deleting"}, True),
    ("VPC peering", {"VpcPeeringConnectionId": "pcx-1", "Status": {"Code": "failed"}}, False),
    ("VPC peering", {"VpcPeeringConnectionId": "pcx-1", "Status": {"Code": "rejected"}}, False),
    ("VPC peering", {"VpcPeeringConnectionId": "pcx-1", "Status": {"Code": "pending-acceptance"}}, True),
    ("capacity reservation", {"CapacityReservationId": "cr-1", "State": "failed"}, False),
    ("capacity reservation", {"CapacityReservationId": "cr-1", "State": "payment-failed"}, False),
    ("capacity reservation", {"CapacityReservationId": "cr-1", "State": "scheduled"}, True),
    ("spot request", {"SpotInstanceRequestId": "sir-1", "State": "failed"}, False),
    ("spot request", {"SpotInstanceRequestId": "sir-1", "State": "disabled"}, True),
    ("instance", {"InstanceId": "i-1", "State": {"Name": "terminated"}}, False),
    ("instance", {"InstanceId": "i-1", "State": {"Name": "stopped"}}, True),
]
RESULTS = {
    "describe_load_balancers": "LoadBalancers",
    "describe_vpc_endpoints": "VpcEndpoints",
    "describe_images": "Images",
    "describe_volumes": "Volumes",
    "describe_nat_gateways": "NatGateways",
    "describe_vpc_peering_connections": "VpcPeeringConnections",
    "describe_capacity_reservations": "CapacityReservations",
    "describe_spot_instance_requests": "SpotInstanceRequests",
}


class Answers:
    """AWS, as far as a listing asks it: an operation answers what it is told to, or refuses with a code."""

    region = "us-east-1"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def client(self, service: str) -> Answers:
        return self

    def identity(self) -> dict[str, str]:
        return {"Account": "123456789012"}

    def can_paginate(self, operation: str) -> bool:
        return False

    def __getattr__(self, operation: str) -> Any:
        def call(**asked: Any) -> Any:
            answer = self.answers[operation]
            answer = answer(asked) if callable(answer) else answer
            if isinstance(answer, str):
                raise ClientError({"Error": {"Code": answer, "Message": "no"}}, operation)
            return answer

        return call


def listed(kind: str, account: Any) -> list[Any]:
    return list(kind_named(kind).things(account))


@pytest.mark.parametrize(("kind", "item", "shown"), STATES, ids=[f"{k} {tuple(i.values())[1]}" for k, i, _ in STATES])
def test_only_what_is_no_more_is_hidden(kind: str, item: dict[str, Any], shown: bool) -> None:
    answers: dict[str, Any] = {operation: {result: [item]} for operation, result in RESULTS.items()}
    answers |= {"describe_instances": {"Reservations": [{"Instances": [item]}]}}
    answers |= {"describe_tags": {"TagDescriptions": []}}
    assert bool(listed(kind, Answers(**answers))) is shown


def test_one_bucket_whose_tags_are_denied_hides_no_other() -> None:
    def tags(asked: dict[str, str]) -> Any:
        mine = {"TagSet": [{"Key": "bivouac:campaign", "Value": "train"}]}
        return {"locked": "AccessDenied", "gone": "NoSuchBucket", "bare": "NoSuchTagSet"}.get(asked["Bucket"], mine)

    buckets = [{"Name": name} for name in ("locked", "gone", "bare", "ours")]
    seen = {"bucket": listed("bucket", Answers(list_buckets={"Buckets": buckets}, get_bucket_tagging=tags))}
    knowledge = Knowledge(Names("train"))
    assert [one.id for one in seen["bucket"]] == ["locked", "bare", "ours"]
    assert [one.id for one, _ in knowledge.judge(seen)["bucket"]] == ["ours"]
    assert knowledge.unread(seen) == {"bucket": "AccessDenied: the tags of locked"}
    assert not Knowledge(Names("train"), before={"bucket": frozenset({"locked"})}).unread(seen), "not made since"


@pytest.mark.parametrize(
    ("kind", "listing", "describe", "of"),
    [
        ("cluster", {"list_clusters": {"clusters": ["one", "two"]}}, "describe_cluster", "name"),
        ("schedule", {"list_schedules": {"Schedules": [{"Name": "one"}, {"Name": "two"}]}}, "get_schedule", "Name"),
    ],
)
def test_what_went_away_between_list_and_description_blinds_nothing(
    kind: str, listing: dict[str, Any], describe: str, of: str
) -> None:
    def answer(code: str) -> Any:
        return lambda asked: code if asked[of] == "one" else {"cluster": {"name": "two"}}

    rows = listed(kind, Answers(**listing, **{describe: answer("ResourceNotFoundException")}))
    assert [row.id for row in rows] == ["two"]
    rows = listed(kind, Answers(**listing, **{describe: answer("AccessDeniedException")}))
    assert [(row.id, bool(row.unread)) for row in rows] == [("one", True), ("two", False)]


UPLOAD = {"Key": "campaigns/train/x", "UploadId": "u"}


def uploads_of(answers: dict[str, Any]) -> tuple[Answers, list[str]]:
    """An account whose buckets answer so to the question for their uploads, and the buckets that were asked."""
    buckets: list[str] = []

    def uploads(told: dict[str, str]) -> Any:
        buckets.append(told["Bucket"])
        return answers.get(told["Bucket"], {"Uploads": [UPLOAD]})

    return Answers(list_multipart_uploads=uploads), buckets


def test_a_locked_bucket_does_not_hide_another_ones_uploads() -> None:
    state, data, archive = (f"bivouac-{kind}-123456789012-us-east-1" for kind in ("state", "data", "archive"))
    account, _ = uploads_of({state: "AccessDenied", data: "NoSuchBucket"})
    rows = kind_named("incomplete upload").things(account)  # type: ignore[arg-type]
    assert next(rows).id == f"{archive}/campaigns/train/x#u"
    with pytest.raises(ClientError, match="AccessDenied"):  # what it holds is unknown, whenever it was made
        next(rows)


def test_uploads_are_looked_for_in_the_buckets_of_the_regions_own_foundation_only() -> None:
    """A campaign of the same name may be archiving in another region, whose certificate looks there; and a bucket that
    only begins as ours do is somebody's own."""
    account, asked = uploads_of({})
    account.region = "us-west-2"
    names = [f"bivouac-{kind}-123456789012-us-west-2" for kind in ("state", "data", "archive")]
    assert [one.id for one in listed("incomplete upload", account)] == [f"{name}/campaigns/train/x#u" for name in names]
    assert asked == names


@pytest.mark.parametrize(
    ("key", "campaign"),
    [
        ("campaigns/train/x", "train"),
        ("campaigns/train-gpu/x", "train-gpu"),
        ("datasets/train/x", None),
        ("train", None),
    ],
)
def test_an_upload_is_of_the_campaign_whose_folder_it_goes_into(key: str, campaign: str | None) -> None:
    answer = {"Uploads": [{"Key": key, "UploadId": "u"}]}
    account, _ = uploads_of({"bivouac-archive-123456789012-us-east-1": answer})
    one = listed("incomplete upload", account)[-1]
    assert one.tags == ({"bivouac:campaign": campaign} if campaign else {"bivouac:foundation": "true"})
