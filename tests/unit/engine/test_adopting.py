"""What becomes of creations whose end nobody saw: adopted once, refused, or counted as never made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.engine import adoption
from infra.engine.adoption import (
    Pending,
    adoptable,
    passes,
    pending_creates,
    refuse,
    remove_rules,
    resolve_pending,
    still_creating,
)
from infra.errors import LeaseLost, PermanentError
from infra.kinds import BY_TYPE, ResourceKind
from tests.fake_cluster import answer
from tests.tables import Table
from tests.unit.engine.test_finding_again import CLUSTER, LINK, LUSTRE, NAT, TAGS, Answers, found, found_by

TABLE = Table(__file__)

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"
ROUTE, RULE = "aws:ec2/route:Route", "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
SECRET = "kubernetes:core/v1:Secret"
ACCOUNT: Any = object()


def urn(kind: str, name: str) -> str:
    return f"urn:pulumi:campaign-train::bivouac::{kind}::{name}"


def operation(kind: str, name: str, what: str = "creating", **inputs: Any) -> dict[str, Any]:
    return {"type": what, "resource": {"urn": urn(kind, name), "type": kind, "inputs": inputs}}


def refusal(code: str, status: int = 400) -> ClientError:
    told: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "Describe")


PENDING = Pending(urn(VPC, "network"), VPC, {})


def test_only_creations_may_have_been_carried_out_unseen() -> None:
    deployment = {
        "pending_operations": [
            operation(SUBNET, "gpu", "updating"),
            operation(VPC, "network", tags={"a": "b", "__defaults": []}, __defaults=["x"]),
            operation(SUBNET, "system", "deleting"),
            {"type": "creating", "resource": {"urn": urn(SUBNET, "gpu"), "type": SUBNET}},
        ]
    }
    first, second = pending_creates(deployment)
    assert (first.urn, first.type, first.inputs) == (urn(VPC, "network"), VPC, {"tags": {"a": "b"}})
    assert first.title == "Vpc network" and second.inputs == {}
    assert pending_creates({}) == pending_creates({"pending_operations": None}) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (refusal("Throttling"), True),
        (refusal("InternalError"), True),
        (refusal("ExpiredToken"), True),
        (EndpointConnectionError(endpoint_url="https://ec2"), True),
        (refusal("UnauthorizedOperation"), False),
        (refusal("InvalidParameterValue"), False),
        (httpx2.ConnectError("connection refused"), True),
        (answer(403, "Forbidden"), False),
        (LeaseLost("another driver", seen="it", cure="wait"), True),
        (KeyError("tags"), False),
    ],
)
def test_what_another_time_may_answer_stops_here_as_it_is_and_all_else_is_refused(error: Exception, told: bool) -> None:
    assert passes(error) is told
    with pytest.raises(type(error) if told else PermanentError) as refused:
        refuse(PENDING, error)
    if not told:
        assert "whether AWS made Vpc network" in str(refused.value) and type(error).__name__ in str(refused.value)


def finders(patch: pytest.MonkeyPatch, **answers: Any) -> None:
    """By the type's short name: the ids that are found, or what the look ends with."""

    def finder(told: Any) -> Any:
        def find(account: Any, given: Any) -> list[str]:
            if isinstance(told, Exception):
                raise told
            return list(told)

        return find

    types = {"vpc": VPC, "subnet": SUBNET, "nat": NAT}
    for name, told in answers.items():
        patch.setitem(BY_TYPE, types[name], ResourceKind(name, find=finder(told)))


def test_what_the_state_has_already_or_another_creation_took_is_not_adopted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finders(monkeypatch, vpc=[], subnet=["subnet-1", "subnet-2", "subnet-3"])
    deployment = {
        "resources": [{"urn": "a", "type": SUBNET, "id": "subnet-1"}, {"urn": "b", "type": "component"}],
        "pending_operations": [
            operation(VPC, "network"), operation(SUBNET, "gpu"), operation(SUBNET, "system"), operation(SUBNET, "more"),
            operation(SECRET, "password"),
        ],
    }  # fmt: skip
    assert adoptable(ACCOUNT, "c", deployment) == {urn(SUBNET, "gpu"): "subnet-2", urn(SUBNET, "system"): "subnet-3"}


def test_an_id_that_the_state_has_of_another_type_is_another_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    finders(monkeypatch, vpc=["train"])
    deployment = {"resources": [{"type": CLUSTER, "id": "train"}], "pending_operations": [operation(VPC, "network")]}
    assert adoptable(ACCOUNT, "c", deployment) == {urn(VPC, "network"): "train"}


def test_one_look_that_fails_is_told_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = refusal("UnauthorizedOperation")
    finders(monkeypatch, vpc=denied, subnet=["subnet-1"], nat=KeyError("tags"))
    deployment = {"pending_operations": [operation(VPC, "v"), operation(NAT, "n"), operation(SUBNET, "gpu")]}
    told = list[tuple[str, Exception]]()
    adopted = adoptable(ACCOUNT, "c", deployment, lambda pending, error: told.append((pending.type, error)))
    assert adopted == {urn(SUBNET, "gpu"): "subnet-1"}
    assert [kind for kind, _ in told] == [VPC, NAT] and told[0][1] is denied
    with pytest.raises(PermanentError):
        adoptable(ACCOUNT, "c", deployment)


@pytest.mark.parametrize("there", [True, False])
def test_a_release_is_known_by_the_secrets_of_its_revisions(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    asked = list[Any]()

    def listed(kind: Any, **more: Any) -> list[Any]:
        asked.append(more)
        return [object()] * 2 if there else []

    monkeypatch.setattr(adoption, "from_outside", lambda account, cluster: SimpleNamespace(list=listed))
    inputs = {"name": "jobset", "namespace": "kube"}
    resource = {"urn": urn(adoption.RELEASE, "jobset"), "type": adoption.RELEASE, "inputs": inputs}
    deployment = {"pending_operations": [{"type": "creating", "resource": resource}]}
    expected = {urn(adoption.RELEASE, "jobset"): "kube/jobset"} if there else {}
    assert adoptable(ACCOUNT, "c", deployment) == expected
    assert asked == [{"namespace": "kube", "labels": {"owner": "helm", "name": "jobset"}}]


def test_adopted_creations_come_last_and_what_was_touched_is_looked_at_anew() -> None:
    identity = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    kept = {"urn": urn(SUBNET, "gpu"), "type": SUBNET, "id": "subnet-1"}
    deployment = {
        "version": 3,
        "resources": [kept],
        "pending_operations": [
            operation(VPC, "network", cidrBlock="10.0.0.0/16", __defaults=[]), operation(VPC, "never"),
            operation(identity, "trainer", clusterName="c"), operation(SECRET, "password", data={}),
            operation(SUBNET, "gpu", "updating"), operation(SUBNET, "gone", "deleting"),
            operation(SUBNET, "read", "importing"),
        ],
    }  # fmt: skip
    adopted = {urn(VPC, "network"): "vpc-1", urn(identity, "trainer"): "a-1", urn(SECRET, "password"): "kube/p"}
    anew, look = resolve_pending(deployment, adopted)
    assert anew["version"] == 3 and anew["pending_operations"] == []
    first, network, trainer, password = anew["resources"]
    assert first == kept and [network["id"], trainer["id"], password["id"]] == ["vpc-1", "a-1", "kube/p"]
    assert network["outputs"] == {"cidrBlock": "10.0.0.0/16", "id": "vpc-1"}
    assert trainer["outputs"] == {"clusterName": "c", "id": "a-1", "associationId": "a-1"}
    assert password["outputs"] == {}, "Kubernetes' own plugin reads all"
    assert look == [*adopted, urn(SUBNET, "gpu")]
    empty, look = resolve_pending({"resources": [kept]}, {})
    assert empty["resources"] == [kept] and look == []


def test_rules_that_a_killed_engine_left_go_and_are_made_anew_each_under_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[Any]()

    def remover(answer: bool | Exception) -> Any:
        def remove(account: Any, given: Any) -> bool:
            seen.append(given)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return remove

    denied = refusal("UnauthorizedOperation")
    for kind, ending in ((ROUTE, True), (RULE, denied), (NAT, False)):
        monkeypatch.setitem(BY_TYPE, kind, ResourceKind(kind, remake=remover(ending)))
    deployment = {
        "pending_operations": [
            operation(VPC, "v"), operation(RULE, "in", a=1), operation(ROUTE, "out", b=2), operation(NAT, "n", c=3),
        ]
    }  # fmt: skip
    errors = list[Exception]()
    removed = remove_rules(
        ACCOUNT, deployment, lambda: seen.append("guard"), lambda pending, error: errors.append(error)
    )
    assert removed == ["Route"] and errors == [denied]
    assert seen == ["guard", {"a": 1}, "guard", {"b": 2}, "guard", {"c": 3}]


@TABLE.cases
def test_what_has_a_name_is_asked_for_by_it_and_adopted_under_the_providers_id(
    monkeypatch: pytest.MonkeyPatch, kind: str, given: dict[str, Any], operation: str, asked: dict[str, Any], id: str
) -> None:
    monkeypatch.setattr(Answers, "identity", lambda self: {"Account": "123456789012"}, raising=False)
    account = Answers(**{operation: {}})
    assert found_by(account, kind, given) == [id]
    assert account.asked == {operation: asked}
    assert found(kind, given, **{operation: ("404", 404)}) == []
    with pytest.raises(ClientError):
        found(kind, given, **{operation: ("403", 403)})


EC2 = [
    (VPC, "describe_vpcs", "Vpcs", "VpcId", {}),
    (SUBNET, "describe_subnets", "Subnets", "SubnetId", {"vpc-id": "vpcId"}),
    ("aws:ec2/routeTable:RouteTable", "describe_route_tables", "RouteTables", "RouteTableId", {"vpc-id": "vpcId"}),
    (
        "aws:ec2/internetGateway:InternetGateway", "describe_internet_gateways", "InternetGateways",
        "InternetGatewayId", {},
    ),
    (
        "aws:ec2/securityGroup:SecurityGroup", "describe_security_groups", "SecurityGroups", "GroupId",
        {"vpc-id": "vpcId", "group-name": "name"},
    ),
    (
        "aws:ec2/vpcEndpoint:VpcEndpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId",
        {"vpc-id": "vpcId", "service-name": "serviceName"},
    ),
    (
        "aws:ec2/launchTemplate:LaunchTemplate", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId",
        {"launch-template-name": "name"},
    ),
    ("aws:ec2/eip:Eip", "describe_addresses", "Addresses", "AllocationId", {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "operation", "result", "id_key", "filters"), EC2, ids=[row[1] for row in EC2])
def test_what_ec2_knows_is_asked_for_by_all_of_its_tags_and_by_its_place(
    kind: str, operation: str, result: str, id_key: str, filters: dict[str, str]
) -> None:
    account = Answers(**{operation: {result: [{id_key: "x-1"}, {id_key: "x-2"}]}})
    given = {"tags": TAGS} | {field: f"the-{field}" for field in filters.values()}
    assert found_by(account, kind, given) == ["x-1", "x-2"]
    assert {one["Name"]: one["Values"] for one in account.asked[operation]["Filters"]} == {
        "tag:Name": ["bivouac-train-shared"], "tag:bivouac:campaign": ["train"],
        **{name: [f"the-{field}"] for name, field in filters.items()},
    }  # fmt: skip
    with pytest.raises(KeyError):  # by no tags all of the account would match
        found(kind, {**given, "tags": {}}, **{operation: {result: []}})


def test_a_repository_is_known_by_its_whole_name_and_a_pod_identity_by_its_subject() -> None:
    several = {"repositories": [{"repositoryName": name} for name in ("bivouac/trainer-2", "bivouac/trainer")]}
    kind = "aws:ecr/repository:Repository"
    assert found(kind, {"name": "bivouac/trainer"}, describe_repositories=several) == ["bivouac/trainer"]
    assert found(kind, {"name": "bivouac"}, describe_repositories=several) == []
    subject = {"clusterName": "c", "namespace": "n", "serviceAccount": "s"}
    account = Answers(list_pod_identity_associations={"associations": [{"associationId": "a-1"}]})
    kind = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    assert found_by(account, kind, {**subject, "roleArn": "arn:r"}) == ["a-1"]
    assert account.asked["list_pod_identity_associations"] == subject


def test_adopted_things_that_are_not_ready_are_waited_for_unless_asking_is_forbidden() -> None:
    deployment = {"pending_operations": [operation(LUSTRE, "shared"), operation(LINK, "data"), operation(VPC, "v")]}
    adopted = {urn(LUSTRE, "shared"): "fs-1", urn(LINK, "data"): "dra-1", urn(VPC, "v"): "vpc-1"}

    def waited(**answers: Any) -> list[str]:
        return still_creating(Answers(**answers), deployment, adopted)  # type: ignore[arg-type]

    coming, there = ({"FileSystems": [{"Lifecycle": state}]} for state in ("CREATING", "AVAILABLE"))
    link = {"Associations": [{"Lifecycle": "CREATING"}]}
    links = "describe_data_repository_associations"
    assert waited(describe_file_systems=coming, **{links: link}) == ["fs-1", "dra-1"]
    assert waited(describe_file_systems=there, **{links: ("AccessDenied", 403)}) == []
    with pytest.raises(ClientError, match="Throttling"):
        waited(describe_file_systems=("Throttling", 400), **{links: link})
