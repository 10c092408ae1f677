"""What an engine that was killed had made is found again; what failed, ends or is another's is not taken for it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.engine.adoption import Life, life
from infra.kinds import kind_of_type

TAGS = {"Name": "bivouac-train-shared", "bivouac:campaign": "train"}
LISTED = [{"Key": key, "Value": value} for key, value in TAGS.items()]
LUSTRE, LINK = (
    "aws:fsx/lustreFileSystem:LustreFileSystem",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
)
NAT, CLUSTER, LOGS = "aws:ec2/natGateway:NatGateway", "aws:eks/cluster:Cluster", "aws:cloudwatch/logGroup:LogGroup"
PLACEMENT, PEERING = "aws:ec2/placementGroup:PlacementGroup", "aws:ec2/vpcPeeringConnection:VpcPeeringConnection"


class Answers:
    """AWS, answering each operation with a page, or refusing it with a code; it keeps what it was asked."""

    region = "us-east-1"

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, dict[str, dict[str, Any]]()

    def client(self, service: str) -> Answers:
        return self

    def can_paginate(self, operation: str) -> bool:
        return True

    def get_paginator(self, operation: str) -> Any:
        answers = self

        class Pages:
            def paginate(self, **asked: Any) -> list[Any]:
                whole = getattr(answers, operation)(**asked)
                return [{key: [] for key in whole}, whole]  # AWS may leave the first page empty

        return Pages()

    def __getattr__(self, operation: str) -> Any:
        def call(**asked: Any) -> Any:
            self.asked[operation] = asked
            answer = self.answers[operation]
            if isinstance(answer, tuple):
                code, status = answer
                told: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
                raise ClientError(told, operation)
            return answer

        return call


def found_by(account: Any, kind: str, given: dict[str, Any]) -> list[str]:
    find = kind_of_type(kind).find
    assert find is not None
    return find(account, given)


def found(kind: str, given: dict[str, Any], **answers: Any) -> list[str]:
    return found_by(Answers(**answers), kind, given)


@pytest.mark.parametrize(
    ("state", "adopted"),
    [("CREATING", True), ("AVAILABLE", True), ("UPDATING", True), ("FAILED", False), ("DELETING", False)],
)
def test_a_file_system_that_failed_or_ends_is_not_adopted(state: str, adopted: bool) -> None:
    system = {"FileSystemId": "fs-1", "Lifecycle": state, "Tags": LISTED}
    assert found(LUSTRE, {"tags": TAGS}, describe_file_systems={"FileSystems": [system]}) == ["fs-1"] * adopted
    link = {"AssociationId": "dra-1", "Lifecycle": state, "FileSystemPath": "/data"}
    other = {"AssociationId": "dra-2", "Lifecycle": state, "FileSystemPath": "/mounts/corpus"}
    answer, given = {"Associations": [link, other]}, {"fileSystemId": "fs-1", "fileSystemPath": "/data"}
    assert found(LINK, given, describe_data_repository_associations=answer) == ["dra-1"] * adopted


def test_a_file_system_is_known_by_all_of_its_tags() -> None:
    several = [
        {"FileSystemId": "fs-none", "Lifecycle": "AVAILABLE"},
        {"FileSystemId": "fs-some", "Lifecycle": "AVAILABLE", "Tags": LISTED[:1]},
        {
            "FileSystemId": "fs-other",
            "Lifecycle": "AVAILABLE",
            "Tags": [{**LISTED[0]}, {**LISTED[1], "Value": "train-2"}],
        },
        {"FileSystemId": "fs-ours", "Lifecycle": "AVAILABLE", "Tags": [*LISTED, {"Key": "more", "Value": "1"}]},
    ]
    assert found(LUSTRE, {"tags": TAGS}, describe_file_systems={"FileSystems": several}) == ["fs-ours"]
    with pytest.raises(KeyError):
        found(LUSTRE, {"tags": {}}, describe_file_systems={"FileSystems": several})


def test_a_gateway_is_asked_for_by_tags_place_and_life() -> None:
    account = Answers(describe_nat_gateways={"NatGateways": [{"NatGatewayId": "nat-1"}]})
    assert found_by(account, NAT, {"tags": TAGS, "subnetId": "subnet-1"}) == ["nat-1"]
    assert {one["Name"]: one["Values"] for one in account.asked["describe_nat_gateways"]["Filters"]} == {
        "tag:Name": ["bivouac-train-shared"],
        "tag:bivouac:campaign": ["train"],
        "subnet-id": ["subnet-1"],
        "state": ["pending", "available"],
    }


def test_a_log_group_is_known_by_its_whole_name() -> None:
    rows = [{"logGroupName": f"/aws/eks/bivouac-train/cluster{more}"} for more in ("", "-2")]
    given = {"name": "/aws/eks/bivouac-train/cluster"}
    assert found(LOGS, given, describe_log_groups={"logGroups": rows}) == [given["name"]]
    assert found(LOGS, given, describe_log_groups={"logGroups": rows[1:]}) == []


@pytest.mark.parametrize("refusal", [("ResourceNotFoundException", 404), ("NotFound", 404)])
def test_what_aws_says_is_missing_was_not_made(refusal: tuple[str, int]) -> None:
    assert found(CLUSTER, {"name": "bivouac-train"}, describe_cluster=refusal) == []


@pytest.mark.parametrize("refusal", [("AccessDeniedException", 403), ("ServerException", 500)])
def test_a_refusal_is_no_word_that_it_is_missing(refusal: tuple[str, int]) -> None:
    with pytest.raises(ClientError):
        found(CLUSTER, {"name": "bivouac-train"}, describe_cluster=refusal)


@pytest.mark.parametrize(("state", "adopted"), [("available", True), ("pending", True), ("deleted", False)])
def test_a_placement_group_that_is_deleted_is_not_adopted(state: str, adopted: bool) -> None:
    answer = {"PlacementGroups": [{"GroupName": "g", "State": state}]}
    assert found(PLACEMENT, {"name": "g"}, describe_placement_groups=answer) == ["g"] * adopted


@pytest.mark.parametrize(
    ("code", "adopted"),
    [("active", True), ("pending-acceptance", True), ("failed", False), ("deleted", False), ("rejected", False)],
)
def test_a_peering_that_failed_or_ended_is_not_adopted(code: str, adopted: bool) -> None:
    answer = {"VpcPeeringConnections": [{"VpcPeeringConnectionId": "pcx-1", "Status": {"Code": code}}]}
    assert found(PEERING, {"tags": TAGS}, describe_vpc_peering_connections=answer) == ["pcx-1"] * adopted


@pytest.mark.parametrize(
    ("kind", "operation", "answer", "states"),
    [
        (
            LUSTRE,
            "describe_file_systems",
            lambda state: {"FileSystems": [{"Lifecycle": state}]},
            {"CREATING": Life.COMING, "AVAILABLE": Life.THERE, "FAILED": Life.FAILED, "MISCONFIGURED": Life.FAILED},
        ),
        (
            LINK,
            "describe_data_repository_associations",
            lambda state: {"Associations": [{"Lifecycle": state}]},
            {"CREATING": Life.COMING, "AVAILABLE": Life.THERE, "FAILED": Life.FAILED, "DELETING": Life.FAILED},
        ),
        (
            NAT,
            "describe_nat_gateways",
            lambda state: {"NatGateways": [{"State": state}]},
            {"pending": Life.COMING, "available": Life.THERE, "failed": Life.FAILED, "deleted": Life.FAILED},
        ),
    ],
    ids=["file system", "link", "gateway"],
)
def test_what_takes_its_time_is_what_aws_says_it_is(
    kind: str, operation: str, answer: Any, states: dict[str, Life]
) -> None:
    resource = {"type": kind, "id": "id-1"}
    told = {state: life(Answers(**{operation: answer(state)}), resource) for state in states}  # type: ignore[arg-type]
    assert told == states
    empty: Any = Answers(**{operation: {key: [] for key in answer("x")}})
    assert life(empty, resource) is Life.FAILED and life(empty, {"type": kind}) is Life.FAILED
    with pytest.raises(ClientError):
        life(Answers(**{operation: ("UnauthorizedOperation", 403)}), resource)  # type: ignore[arg-type]
