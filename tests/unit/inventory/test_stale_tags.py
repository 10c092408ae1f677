"""What only the tagging service shows is asked of its own service, and left out only where that says it is gone."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.inventory.survey import STALE, tagged_things
from infra.spec.names import CAMPAIGN_TAG

HERE = "us-east-1:123456789012"
EKS, EC2, FSX = f"arn:aws:eks:{HERE}", f"arn:aws:ec2:{HERE}", f"arn:aws:fsx:{HERE}"
FAR = EndpointConnectionError(endpoint_url="https://eks")


class Aws:
    """An account whose tagging service shows these ARNs, in two pages. Answers are by operation: a value, a function
    of what is asked, a refusal's code, or an error."""

    def __init__(self, shown: dict[str, dict[str, str]], **answers: Any) -> None:
        self.shown, self.answers, self.asked = shown, answers, list[tuple[str, dict[str, Any]]]()

    def client(self, service: str) -> Aws:
        return self

    def can_paginate(self, operation: str) -> bool:
        return True

    def get_paginator(self, operation: str) -> Any:
        aws = self

        class Pages:
            def paginate(self, **asked: Any) -> list[Any]:
                if operation == "get_resources":
                    rows = [
                        {"ResourceARN": arn, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
                        for arn, tags in aws.shown.items()
                    ]
                    return [{"ResourceTagMappingList": rows[:1]}, {"ResourceTagMappingList": rows[1:]}]
                whole = getattr(aws, operation)(**asked)
                return [{key: [] for key in whole}, whole]  # AWS may leave the first page empty

        return Pages()

    def __getattr__(self, operation: str) -> Any:
        def call(**asked: Any) -> Any:
            self.asked.append((operation, asked))
            answer = self.answers[operation]
            answer = answer(asked) if callable(answer) else answer
            if isinstance(answer, str):
                raise ClientError({"Error": {"Code": answer, "Message": "no"}}, operation)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


OURS = {CAMPAIGN_TAG: "train"}


def shown(*arns: str, **answers: Any) -> dict[str, str]:
    """ARN -> doubt of what is shown of things with the campaign's tag."""
    return {thing.id: thing.doubt for thing in tagged_things(Aws(dict.fromkeys(arns, OURS), **answers))}  # type: ignore[arg-type]


GROUP = f"{EKS}:nodegroup/c/gpu/1-2"
ADDON = f"{EKS}:addon/c/vpc-cni/1-2"
IDENTITY = f"{EKS}:podidentityassociation/c/a-1"
ENTRY = f"{EKS}:access-entry/c/role/123456789012/me/1-2"
CONFIG = f"{EKS}:identityproviderconfig/c/oidc/x/1-2"
RULE, ACL = f"{EC2}:security-group-rule/sgr-1", f"{EC2}:network-acl/acl-1"
LINK, BACKUP = f"{FSX}:association/fs-1/dra-1", f"{FSX}:backup/backup-1"
BUDGET, ALARM = "arn:aws:budgets::123456789012:budget/b", f"arn:aws:cloudwatch:{HERE}:alarm:bytes: sent"
CLUSTER: dict[str, Any] = {"describe_cluster": {"cluster": {}}}
CASES: list[tuple[str, str, Any, dict[str, Any]]] = [
    (GROUP, "describe_nodegroup", {"nodegroup": {"nodegroupArn": GROUP}}, {"clusterName": "c", "nodegroupName": "gpu"}),
    (ADDON, "describe_addon", {"addon": {"addonArn": ADDON}}, {"clusterName": "c", "addonName": "vpc-cni"}),
    (
        IDENTITY, "describe_pod_identity_association", {"association": {"associationArn": IDENTITY}},
        {"clusterName": "c", "associationId": "a-1"},
    ),
    (CONFIG, "describe_cluster", {"cluster": {}}, {"name": "c"}),
    (LINK, "describe_data_repository_associations", {"Associations": [{}]}, {"AssociationIds": ["dra-1"]}),
    (BACKUP, "describe_backups", {"Backups": [{}]}, {"BackupIds": ["backup-1"]}),
    (BUDGET, "describe_budget", {"Budget": {}}, {"AccountId": "123456789012", "BudgetName": "b"}),
    (f"{BUDGET}/action/a-1", "describe_budget", {"Budget": {}}, {"AccountId": "123456789012", "BudgetName": "b"}),
    (ALARM, "describe_alarms", {"MetricAlarms": [{}]}, {"AlarmNames": ["bytes: sent"]}),
    (
        RULE, "describe_security_group_rules", {"SecurityGroupRules": [{"SecurityGroupRuleId": "sgr-1"}]},
        {"Filters": [{"Name": "security-group-rule-id", "Values": ["sgr-1"]}]},
    ),
    (
        ACL, "describe_network_acls", {"NetworkAcls": [{"NetworkAclId": "acl-1"}]},
        {"Filters": [{"Name": "network-acl-id", "Values": ["acl-1"]}]},
    ),
]  # fmt: skip
IDS = [arn.split(":", 5)[-1].split("/")[0] for arn, *_ in CASES]


@pytest.mark.parametrize(("arn", "operation", "answer", "asked"), CASES, ids=IDS)
def test_what_its_own_service_knows_is_there_beyond_doubt(
    arn: str, operation: str, answer: Any, asked: dict[str, Any]
) -> None:
    aws = Aws({arn: OURS}, **{operation: answer})
    (one,) = tagged_things(aws)  # type: ignore[arg-type]
    assert (one.id, one.tags, one.doubt) == (arn, OURS, "") and aws.asked == [(operation, asked)]


@pytest.mark.parametrize(("arn", "operation", "answer", "asked"), CASES, ids=IDS)
def test_what_its_own_service_says_is_gone_is_left_out(
    arn: str, operation: str, answer: Any, asked: dict[str, Any]
) -> None:
    if arn not in (RULE, ACL):  # asked by a filter, which finds nothing
        assert shown(arn, **{operation: "ResourceNotFoundException"}) == {}
    empty: dict[str, Any] = {key: [] for key, value in answer.items() if isinstance(value, list)}
    if empty:
        assert shown(arn, **{operation: empty}) == {}


@pytest.mark.parametrize(("arn", "operation", "answer", "asked"), CASES, ids=IDS)
@pytest.mark.parametrize("error", ["AccessDeniedException", FAR], ids=["denied", "no answer"])
def test_what_its_own_service_refuses_to_say_blinds_the_look_after_all_else_was_shown(
    arn: str, operation: str, answer: Any, asked: dict[str, Any], error: Any
) -> None:
    cluster = CLUSTER if operation != "describe_cluster" else {}
    others: dict[str, dict[str, str]] = {f"{EC2}:dedicated-host/h-1": {}}
    aws = Aws({arn: OURS} | others, **{operation: error}, **cluster, describe_file_systems={"FileSystems": [{}]})
    rows = tagged_things(aws)  # type: ignore[arg-type]
    assert next(rows).id == f"{EC2}:dedicated-host/h-1"
    with pytest.raises((ClientError, EndpointConnectionError)):
        next(rows)


@pytest.mark.parametrize(("arn", "key"), [(GROUP, "nodegroup"), (ADDON, "addon"), (IDENTITY, "association")])
def test_another_of_the_same_name_is_not_it(arn: str, key: str) -> None:
    operation = {"nodegroup": "describe_nodegroup", "addon": "describe_addon"}.get(
        key, "describe_pod_identity_association"
    )
    own = {"association": "associationArn"}.get(key, f"{key}Arn")
    assert shown(arn, **{operation: {key: {own: f"{arn}-later"}}}) == {}


@pytest.mark.parametrize("arn", [GROUP, ADDON, IDENTITY, ENTRY])
def test_what_lies_in_a_cluster_that_is_gone_is_gone_though_it_may_not_be_asked_for(arn: str) -> None:
    denied = dict.fromkeys(
        ("describe_nodegroup", "describe_addon", "describe_pod_identity_association", "list_access_entries"),
        "AccessDeniedException",
    )
    aws = Aws({arn: OURS}, **denied, describe_cluster="ResourceNotFoundException")
    assert list(tagged_things(aws)) == []  # type: ignore[arg-type]
    assert aws.asked[-1] == ("describe_cluster", {"name": "c"})


def test_a_link_of_a_file_system_that_is_gone_is_gone_though_it_may_not_be_asked_for() -> None:
    denied = {"describe_data_repository_associations": "AccessDeniedException"}
    aws = Aws({LINK: OURS}, **denied, describe_file_systems="FileSystemNotFound")
    assert list(tagged_things(aws)) == []  # type: ignore[arg-type]
    assert aws.asked[-1] == ("describe_file_systems", {"FileSystemIds": ["fs-1"]})


def test_an_access_entry_is_found_among_all_of_its_cluster() -> None:
    principals = {"accessEntries": ["gone", "other", "mine"]}

    def entry(asked: dict[str, Any]) -> Any:
        assert asked["clusterName"] == "c"
        if asked["principalArn"] == "gone":
            return "ResourceNotFoundException"
        return {"accessEntry": {"accessEntryArn": ENTRY if asked["principalArn"] == "mine" else "another"}}

    assert shown(ENTRY, list_access_entries=principals, describe_access_entry=entry) == {ENTRY: ""}
    fewer = {"accessEntries": ["gone", "other"]}
    assert shown(ENTRY, list_access_entries=fewer, describe_access_entry=entry) == {}
    with pytest.raises(ClientError, match="Throttling"):
        shown(ENTRY, list_access_entries=principals, describe_access_entry="ThrottlingException", **CLUSTER)


def test_what_nobody_can_be_asked_about_is_shown_with_its_doubt() -> None:
    arn = "arn:aws:ecr:us-east-1:1:repository/x:y:z"
    told = {arn: f"{STALE}; look for repository/x:y:z in the console of ecr, or wait"}
    assert shown(arn) == told
    assert shown(arn, BUDGET, GROUP, describe_budget={}, describe_nodegroup="NotFound") == told | {BUDGET: ""}


def test_one_kinds_refusal_hides_no_other() -> None:
    """Two of one kind are asked one by one, too."""
    groups = [f"{EKS}:nodegroup/c/{name}/1" for name in ("denied", "there")]

    def group(asked: dict[str, Any]) -> Any:
        name = asked["nodegroupName"]
        return {"nodegroup": {"nodegroupArn": groups[1]}} if name == "there" else "AccessDeniedException"

    aws = Aws(dict.fromkeys([*groups, BUDGET], OURS), describe_nodegroup=group, describe_budget={}, **CLUSTER)
    rows = tagged_things(aws)  # type: ignore[arg-type]
    assert [next(rows).id, next(rows).id] == [groups[1], BUDGET]
    with pytest.raises(ClientError, match="AccessDenied"):
        next(rows)
    aws = Aws(dict.fromkeys([BUDGET, BACKUP], OURS), describe_budget="AccessDenied", describe_backups="InternalError")
    with pytest.raises(ClientError, match="AccessDenied"):
        list(tagged_things(aws))  # type: ignore[arg-type]


def test_a_mistake_of_ours_is_no_refusal() -> None:
    aws = Aws({BUDGET: OURS, BACKUP: OURS}, describe_budget=KeyError("a mistake"), describe_backups="InternalError")
    with pytest.raises(KeyError):
        list(tagged_things(aws))  # type: ignore[arg-type]
    for answers in (
        {"describe_nodegroup": KeyError("a mistake")},
        {"list_access_entries": {"accessEntries": ["me"]}, "describe_access_entry": KeyError("a mistake")},
    ):
        with pytest.raises(KeyError):
            shown(GROUP if "describe_nodegroup" in answers else ENTRY, **answers)


@pytest.mark.parametrize("kind", ["rule", "acl"])
def test_many_rules_and_acls_are_asked_for_a_hundred_at_a_time(kind: str) -> None:
    stem, operation = (
        ("security-group-rule/sgr", "describe_security_group_rules")
        if kind == "rule"
        else ("network-acl/acl", "describe_network_acls")
    )
    arns = [f"{EC2}:{stem}-{number}" for number in range(201)]
    sizes = list[int]()

    def answer(asked: dict[str, Any]) -> Any:
        ids = asked["Filters"][0]["Values"]
        sizes.append(len(ids))
        rows = [{"SecurityGroupRuleId": id, "NetworkAclId": id} for id in ids if not id.endswith("7")]
        return {"SecurityGroupRules": rows, "NetworkAcls": rows}

    found = shown(*arns, **{operation: answer})
    assert sizes == [100, 100, 1] and set(found) == {arn for arn in arns if not arn.endswith("7")}


OWN_LOOK = [
    f"{EC2}:{kind}/x-1" for kind in (
        "instance", "volume", "snapshot", "image", "network-interface", "elastic-ip", "natgateway", "vpc-endpoint",
        "subnet", "vpc", "vpc-peering-connection", "internet-gateway", "route-table", "security-group",
        "launch-template", "placement-group", "key-pair", "spot-instances-request", "vpc-flow-log",
        "capacity-reservation",
    )
] + [
    f"arn:aws:autoscaling:{HERE}:autoScalingGroup:1:autoScalingGroupName/x", f"{EKS}:cluster/c",
    f"arn:aws:elasticloadbalancing:{HERE}:loadbalancer/net/a/1", f"{FSX}:file-system/fs-1",
    f"arn:aws:logs:{HERE}:log-group:x", "arn:aws:s3:::bucket", "arn:aws:iam::1:role/r", "arn:aws:iam::1:policy/p",
    "arn:aws:iam::1:instance-profile/p", f"arn:aws:sns:{HERE}:t", f"arn:aws:scheduler:{HERE}:schedule/default/s",
    f"arn:aws:events:{HERE}:rule/r", f"arn:aws:ssm:{HERE}:parameter/p",
]  # fmt: skip


@pytest.mark.parametrize("arn", OWN_LOOK)
def test_what_has_a_look_of_its_own_is_not_shown_twice(arn: str) -> None:
    assert shown(arn) == {}


@pytest.mark.parametrize(
    ("tags", "asks"),
    [
        ({CAMPAIGN_TAG: "another"}, True),
        ({"kubernetes.io/cluster/web": "owned"}, True),
        ({"eks:cluster-name": "web"}, True),
        ({"team": "vision"}, False),
        ({}, False),
    ],
)
def test_only_what_could_be_judged_a_campaigns_is_asked_for(tags: dict[str, str], asks: bool) -> None:
    """Of all else the tagging service's word is shown as it is."""
    aws = Aws({BUDGET: tags}, describe_budget="NotFoundException")
    rows = [thing.id for thing in tagged_things(aws)]  # type: ignore[arg-type]
    assert (rows == []) is asks and bool(aws.asked) is asks
