"""What a killed engine had made is looked for with requests that AWS knows, over every page, and by all that tells it
from another's."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.kinds import kind_named
from tests.unit.kinds.aws_by_model import OTHER, OWNER, TRAIN, ByModel, Refused, pairs

TAGGED = {"Name": "tag:bivouac:campaign", "Values": ["train"]}
HERE, THERE = {"bivouac:region": "us-east-1"}, {"bivouac:region": "us-west-2"}
BUDGET = {"TimeUnit": "MONTHLY", "BudgetType": "COST", "BudgetName": "b"}
IAM = {"Path": "/", "CreateDate": 0, "Arn": f"arn:aws:iam::{OWNER}:role/r"}
UNREACHED = EndpointConnectionError(endpoint_url="https://x")


def found(kind: str, given: dict[str, Any], account: Any) -> list[str]:
    find = kind_named(kind).find
    assert find is not None
    return find(account, given)


BY_FILTERS: list[tuple[str, dict[str, Any], str, list[dict[str, Any]], list[Any], list[str]]] = [
    ("launch template", {"name": "gpu"}, "LaunchTemplates",
     [{"Name": "launch-template-name", "Values": ["gpu"]}],
     [{"LaunchTemplateId": "lt-1"}, {"LaunchTemplateId": "lt-2"}], ["lt-1", "lt-2"]),
    ("NAT gateway", {"subnetId": "subnet-1"}, "NatGateways",
     [{"Name": "subnet-id", "Values": ["subnet-1"]}, {"Name": "state", "Values": ["pending", "available"]}],
     [{"NatGatewayId": "nat-1"}, {"NatGatewayId": "nat-2"}], ["nat-1", "nat-2"]),
    ("VPC endpoint", {"vpcId": "vpc-1", "serviceName": "com.amazonaws.us-east-1.s3"}, "VpcEndpoints",
     [{"Name": "vpc-id", "Values": ["vpc-1"]}, {"Name": "service-name", "Values": ["com.amazonaws.us-east-1.s3"]}],
     [{"VpcEndpointId": "vpce-1"}, {"VpcEndpointId": "vpce-2"}], ["vpce-1", "vpce-2"]),
    ("VPC peering", {}, "VpcPeeringConnections", [],
     [{"VpcPeeringConnectionId": f"pcx-{number}", "Status": {"Code": code}} for number, code in enumerate(
         ("active", "deleted", "pending-acceptance", "failed", "provisioning"))], ["pcx-0", "pcx-2"]),
    ("elastic address", {}, "Addresses", [],
     [{"AllocationId": "eipalloc-1"}, {"AllocationId": "eipalloc-2"}], ["eipalloc-1", "eipalloc-2"]),
    ("route table", {"vpcId": "vpc-1"}, "RouteTables", [{"Name": "vpc-id", "Values": ["vpc-1"]}],
     [{"RouteTableId": "rtb-1"}, {"RouteTableId": "rtb-2"}], ["rtb-1", "rtb-2"]),
    ("internet gateway", {}, "InternetGateways", [],
     [{"InternetGatewayId": "igw-1"}, {"InternetGatewayId": "igw-2"}], ["igw-1", "igw-2"]),
    ("subnet", {"vpcId": "vpc-1"}, "Subnets", [{"Name": "vpc-id", "Values": ["vpc-1"]}],
     [{"SubnetId": "subnet-1"}, {"SubnetId": "subnet-2"}], ["subnet-1", "subnet-2"]),
    ("VPC", {}, "Vpcs", [], [{"VpcId": "vpc-1"}, {"VpcId": "vpc-2"}], ["vpc-1", "vpc-2"]),
    ("security group", {"vpcId": "vpc-1", "name": "nodes"}, "SecurityGroups",
     [{"Name": "vpc-id", "Values": ["vpc-1"]}, {"Name": "group-name", "Values": ["nodes"]}],
     [{"GroupId": "sg-1"}, {"GroupId": "sg-2"}], ["sg-1", "sg-2"]),
]  # fmt: skip
OPERATIONS = {
    "LaunchTemplates": "launch_templates", "NatGateways": "nat_gateways", "VpcEndpoints": "vpc_endpoints",
    "VpcPeeringConnections": "vpc_peering_connections", "Addresses": "addresses", "RouteTables": "route_tables",
    "InternetGateways": "internet_gateways", "Subnets": "subnets", "Vpcs": "vpcs", "SecurityGroups": "security_groups",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given", "result", "filters", "items", "ids"), BY_FILTERS, ids=[case[0] for case in BY_FILTERS]
)
def test_what_ec2_has_is_found_by_all_its_tags_and_its_place(
    kind: str, given: dict[str, Any], result: str, filters: list[Any], items: list[Any], ids: list[str]
) -> None:
    operation = f"ec2.describe_{OPERATIONS[result]}"
    account = ByModel({operation: {result: items}})
    assert found(kind, {**given, "tags": TRAIN}, account) == ids
    assert account.calls == [(operation, {"Filters": [TAGGED, *filters]})]
    with pytest.raises(KeyError):
        found(kind, {**given, "tags": {}}, account)


def test_a_placement_group_is_found_by_its_name() -> None:
    groups = [{"GroupName": "g", "State": "deleted"}, {"GroupName": "g", "State": "available"}]
    account = ByModel({"ec2.describe_placement_groups": {"PlacementGroups": groups}})
    assert found("placement group", {"name": "g"}, account) == ["g"]
    assert account.calls[0][1] == {"Filters": [{"Name": "group-name", "Values": ["g"]}]}


BY_DESCRIPTION: list[tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any], str]] = [
    ("cluster", {"name": "c"}, "eks.describe_cluster", {"cluster": {"name": "c"}}, {"name": "c"}, "c"),
    ("node group", {"clusterName": "c", "nodeGroupName": "g"}, "eks.describe_nodegroup", {"nodegroup": {}},
     {"clusterName": "c", "nodegroupName": "g"}, "c:g"),
    ("add-on", {"clusterName": "c", "addonName": "coredns"}, "eks.describe_addon", {"addon": {}},
     {"clusterName": "c", "addonName": "coredns"}, "c:coredns"),
    ("access entry", {"clusterName": "c", "principalArn": "arn:p"}, "eks.describe_access_entry", {"accessEntry": {}},
     {"clusterName": "c", "principalArn": "arn:p"}, "c:arn:p"),
    ("bucket", {"bucket": "bucket-1"}, "s3.head_bucket", {}, {"Bucket": "bucket-1"}, "bucket-1"),
    ("budget", {"name": "b"}, "budgets.describe_budget", {"Budget": BUDGET},
     {"AccountId": OWNER, "BudgetName": "b"}, f"{OWNER}:b"),
    ("budget", {"name": "b", "accountId": "210987654321"}, "budgets.describe_budget", {"Budget": BUDGET},
     {"AccountId": "210987654321", "BudgetName": "b"}, "210987654321:b"),
    ("schedule", {"name": "s"}, "scheduler.get_schedule", {"Name": "s"}, {"GroupName": "default", "Name": "s"},
     "default/s"),
    ("schedule", {"name": "s", "groupName": "night"}, "scheduler.get_schedule", {"Name": "s"},
     {"GroupName": "night", "Name": "s"}, "night/s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given", "operation", "answer", "asked", "id"), BY_DESCRIPTION, ids=[case[5] for case in BY_DESCRIPTION]
)
def test_what_can_be_described_is_there_and_only_aws_word_makes_it_missing(
    kind: str, given: dict[str, Any], operation: str, answer: dict[str, Any], asked: dict[str, Any], id: str
) -> None:
    account = ByModel({operation: answer})
    assert found(kind, given, account) == [id]
    assert account.calls == [(operation, asked)]
    for missing in (Refused("ResourceNotFoundException"), Refused("404", 404), Refused("Gone", 404)):
        assert found(kind, given, ByModel({operation: missing})) == []
    for refused, error in ((Refused("AccessDenied", 403), ClientError), (UNREACHED, EndpointConnectionError)):
        with pytest.raises(error):
            found(kind, given, ByModel({operation: refused}))


def test_actions_of_a_budget_and_identities_of_pods_are_all_found() -> None:
    action = {
        "BudgetName": "b", "NotificationType": "ACTUAL", "ActionType": "APPLY_IAM_POLICY",
        "ActionThreshold": {"ActionThresholdValue": 1.0, "ActionThresholdType": "PERCENTAGE"}, "Definition": {},
        "ExecutionRoleArn": f"arn:aws:iam::{OWNER}:role/b", "ApprovalModel": "AUTOMATIC", "Status": "STANDBY",
        "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "a@b"}],
    }  # fmt: skip
    ids = [f"{number}0000000-0000-0000-0000-000000000000" for number in (1, 2)]
    operation = "budgets.describe_budget_actions_for_budget"
    account = ByModel({operation: {"Actions": [{**action, "ActionId": id} for id in ids]}})
    assert found("budget action", {"budgetName": "b"}, account) == [f"{OWNER}:{id}:b" for id in ids]
    assert account.calls == [(operation, {"AccountId": OWNER, "BudgetName": "b"})]
    operation = "eks.list_pod_identity_associations"
    account = ByModel({operation: {"associations": [{"associationId": "a-1"}, {"associationId": "a-2"}]}})
    subject = {"clusterName": "c", "namespace": "campaign", "serviceAccount": "trainer"}
    assert found("pod identity", {**subject, "roleArn": "arn:r"}, account) == ["a-1", "a-2"]
    assert account.calls == [(operation, subject)]


@pytest.mark.parametrize(
    ("kind", "operation", "result", "key", "asked"),
    [
        ("image repository", "ecr.describe_repositories", "repositories", "repositoryName", {}),
        ("key alias", "kms.list_aliases", "Aliases", "AliasName", {}),
        ("log group", "logs.describe_log_groups", "logGroups", "logGroupName", {"logGroupNamePrefix": "alias/x"}),
    ],
)
def test_a_name_is_found_on_every_page_and_a_longer_one_is_another(
    kind: str, operation: str, result: str, key: str, asked: dict[str, str]
) -> None:
    account = ByModel({operation: {result: [{key: "alias/x-2"}, {key: "alias/x"}]}})
    assert found(kind, {"name": "alias/x"}, account) == ["alias/x"]
    assert account.calls == [(operation, asked)]
    assert found(kind, {"name": "alias/x"}, ByModel({operation: {result: [{key: "alias/x-2"}]}})) == []


def test_a_build_project_is_found_by_its_name_as_its_arn() -> None:
    operation, arn = "codebuild.batch_get_projects", "arn:aws:codebuild:us-east-1:123456789012:project/p"
    account = ByModel({operation: {"projects": [{"name": "p", "arn": arn}]}})
    assert found("build project", {"name": "p"}, account) == [arn]
    assert account.calls == [(operation, {"names": ["p"]})]
    assert (
        found("build project", {"name": "p"}, ByModel({operation: {"projects": [], "projectsNotFound": ["p"]}})) == []
    )


def test_an_enabled_key_of_the_account_is_found_by_all_of_its_tags() -> None:
    wanted = {"bivouac:foundation": "true", "Name": "bivouac"}
    keys: dict[str, tuple[str, str, dict[str, str]]] = {
        "aws-own": ("AWS", "Enabled", {}),
        "dying": ("CUSTOMER", "PendingDeletion", wanted),
        "half": ("CUSTOMER", "Enabled", {"Name": "bivouac"}),
        "other": ("CUSTOMER", "Enabled", {"bivouac:foundation": "true", "Name": "theirs"}),
        "aws-tagged": ("AWS", "Enabled", wanted),
        "exact": ("CUSTOMER", "Enabled", wanted),
        "more": ("CUSTOMER", "Enabled", {"a": "1", **wanted}),
    }

    def described(asked: dict[str, str]) -> dict[str, Any]:
        manager, state, _ = keys[asked["KeyId"]]
        return {"KeyMetadata": {"KeyId": asked["KeyId"], "KeyManager": manager, "KeyState": state}}

    def tags(asked: dict[str, str]) -> dict[str, Any]:
        manager, state, tags = keys[asked["KeyId"]]
        assert (manager, state) == ("CUSTOMER", "Enabled"), "tags of AWS's own keys may be denied"
        return {"Tags": [{"TagKey": key, "TagValue": value} for key, value in tags.items()]}

    account = ByModel({
        "kms.list_keys": {"Keys": [{"KeyId": id} for id in keys]},
        "kms.describe_key": described, "kms.list_resource_tags": tags,
    })  # fmt: skip
    assert found("key", {"tags": wanted}, account) == ["exact", "more"]
    with pytest.raises(KeyError):
        found("key", {"tags": {}}, account)


@pytest.mark.parametrize(
    ("kind", "operation", "answer"),
    [
        ("role", "iam.get_role", {"Role": {**IAM, "RoleName": "r", "RoleId": "AROA" * 4}}),
        ("instance profile", "iam.get_instance_profile", {"InstanceProfile": {
            **IAM, "InstanceProfileName": "r", "InstanceProfileId": "AIPA" * 4,
            "Roles": []}}),
    ],
)  # fmt: skip
def test_of_two_regions_roles_of_one_name_only_this_regions_is_ours(
    kind: str, operation: str, answer: dict[str, Any]
) -> None:
    def seen(tags: dict[str, str], given: dict[str, Any]) -> list[str]:
        (what, shown), = answer.items()  # fmt: skip
        account = ByModel({operation: {what: {**shown, "Tags": pairs(tags)} if tags else shown}})
        names = found(kind, {"name": "r", **given}, account)
        assert account.calls == [(operation, {f"{what}Name": "r"})]
        return names

    assert seen({**TRAIN, **HERE}, {"tags": {**TRAIN, **HERE}}) == ["r"]
    assert seen({**TRAIN, **THERE}, {"tags": {**TRAIN, **HERE}}) == []
    assert seen({}, {"tags": HERE}) == [] and seen(HERE, {}) == [] and seen(HERE, {"tags": None}) == []
    assert seen({}, {}) == ["r"], "neither is of a region"
    assert found(kind, {"name": "r", "tags": HERE}, ByModel({operation: Refused("NoSuchEntity", 404)})) == []
    for refused, error in ((Refused("AccessDenied", 403), ClientError), (UNREACHED, EndpointConnectionError)):
        with pytest.raises(error):
            found(kind, {"name": "r", "tags": HERE}, ByModel({operation: refused}))


def test_a_policy_is_found_by_its_whole_name_and_its_region() -> None:
    arns = {name: f"arn:aws:iam::{OWNER}:policy/{name}" for name in ("a/p", "p-2", "b/p", "c/p")}
    tags = {"a/p": THERE, "p-2": HERE, "b/p": HERE, "c/p": HERE}
    policies = [{**IAM, "PolicyName": name.rpartition("/")[2], "Arn": arn} for name, arn in arns.items()]

    def tags_of_one(asked: dict[str, str]) -> dict[str, Any]:
        return {"Tags": pairs({**OTHER, **tags[asked["PolicyArn"].partition("/")[2]]})}

    account = ByModel({"iam.list_policies": {"Policies": policies}, "iam.list_policy_tags": tags_of_one})
    assert found("policy", {"name": "p", "tags": HERE}, account) == [arns["b/p"], arns["c/p"]]
    asked = [request for name, request in account.calls if name == "iam.list_policy_tags"]
    assert asked == [{"PolicyArn": arns[name]} for name in ("a/p", "b/p", "c/p")]
    assert account.calls[0] == ("iam.list_policies", {"Scope": "Local"})


def test_file_systems_and_links_of_all_pages_are_found() -> None:
    systems = [
        {"FileSystemId": f"fs-0000000{number}", "Lifecycle": state, "Tags": pairs(tags)}
        for number, (state, tags) in enumerate(
            [("AVAILABLE", OTHER), ("FAILED", TRAIN), ("AVAILABLE", TRAIN), ("DELETING", TRAIN), ("CREATING", TRAIN)]
        )
    ]
    account = ByModel({"fsx.describe_file_systems": {"FileSystems": systems}})
    assert found("file system", {"tags": TRAIN}, account) == ["fs-00000002", "fs-00000004"]
    operation = "fsx.describe_data_repository_associations"
    states = (("FAILED", "/data"), ("AVAILABLE", "/data"), ("DELETING", "/data"), ("CREATING", "/data"))
    links = [
        {"AssociationId": f"dra-00000000{number}", "Lifecycle": state, "FileSystemPath": path}
        for number, (state, path) in enumerate((*states, ("AVAILABLE", "/mounts/corpus")))
    ]
    account = ByModel({operation: {"Associations": links}})
    given = {"fileSystemId": "fs-1", "fileSystemPath": "/data"}
    assert found("data repository link", given, account) == ["dra-000000001", "dra-000000003"]
    assert account.calls == [(operation, {"Filters": [{"Name": "file-system-id", "Values": ["fs-1"]}]})]
