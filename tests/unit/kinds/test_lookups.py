"""Whether the resources of several ARNs exist: AWS's word for each, and a refusal is no word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.kinds import kind_named
from tests.unit.kinds.aws_by_model import OWNER, REGION, ByModel, Refused

UNREACHED = EndpointConnectionError(endpoint_url="https://x")
MISSING, DENIED = Refused("ResourceNotFoundException", 404), Refused("AccessDeniedException", 403)
IDS = [f"{number}0000000-1111-2222-3333-444444444444" for number in range(1, 5)]


def asked(kind: str, account: Any, *arns: str) -> set[str]:
    ask = kind_named(kind).ask
    assert ask is not None
    return ask(account, arns)


def arn(service: str, rest: str) -> str:
    return f"arn:aws:{service}:{REGION}:{OWNER}:{rest}"


def part(kind: str, name: str, id: str = IDS[0], cluster: str = "bivouac-train") -> str:
    return arn("eks", f"{kind}/{cluster}/{name}/{id}")


PARTS = [
    ("node group", "nodegroup", "describe_nodegroup", "nodegroupName", "nodegroup"),
    ("add-on", "addon", "describe_addon", "addonName", "addon"),
    ("pod identity", "podidentityassociation", "describe_pod_identity_association", "associationId", "association"),
]


@pytest.mark.parametrize(("kind", "word", "operation", "parameter", "result"), PARTS, ids=[case[0] for case in PARTS])
def test_a_part_of_a_cluster_exists_if_it_has_that_very_arn(
    kind: str, word: str, operation: str, parameter: str, result: str
) -> None:
    one, gone, namesake, two = (part(word, name) for name in ("one", "gone", "namesake", "two"))
    there = {"one": one, "two": two, "namesake": part(word, "namesake", IDS[1])}

    def answer(told: dict[str, str]) -> Any:
        assert told == {"clusterName": "bivouac-train", parameter: told[parameter]}
        name = told[parameter]
        return {result: {f"{result}Arn": there[name]}} if name in there else MISSING

    account = ByModel({f"eks.{operation}": answer})
    assert asked(kind, account, one, gone, namesake, two) == {one, two}


@pytest.mark.parametrize("kind", ["node group", "add-on", "pod identity", "access entry"])
def test_a_part_that_may_not_be_read_is_gone_only_with_its_cluster(kind: str) -> None:
    reads = ("describe_nodegroup", "describe_addon", "describe_pod_identity_association", "list_access_entries")
    denied = {f"eks.{operation}": DENIED for operation in reads}
    one = part("x", "one")
    account = ByModel({**denied, "eks.describe_cluster": MISSING})
    assert asked(kind, account, one) == set()
    assert account.calls[-1] == ("eks.describe_cluster", {"name": "bivouac-train"})
    for cluster in ({"cluster": {"name": "bivouac-train"}}, DENIED):
        with pytest.raises(ClientError, match="AccessDenied"):
            asked(kind, ByModel({**denied, "eks.describe_cluster": cluster}), one)
    unreached = {f"eks.{operation}": UNREACHED for operation in reads}
    with pytest.raises(EndpointConnectionError):
        asked(kind, ByModel({**unreached, "eks.describe_cluster": MISSING}), one)


def test_a_part_that_is_missing_in_a_living_cluster_asks_nothing_more() -> None:
    account = ByModel({"eks.describe_nodegroup": MISSING, "eks.describe_cluster": DENIED})
    assert asked("node group", account, part("nodegroup", "gpu")) == set()


def test_an_access_entry_is_sought_among_all_entries_of_its_cluster() -> None:
    wanted, foreign = (arn("eks", f"access-entry/bivouac-train/role/{OWNER}/{name}/1") for name in ("ours", "theirs"))
    entries: dict[str, Any] = {
        "arn:gone": MISSING,
        "arn:theirs": {"accessEntry": {"accessEntryArn": foreign}},
        "arn:ours": {"accessEntry": {"accessEntryArn": wanted}},
    }
    answers: dict[str, Any] = {
        "eks.list_access_entries": {"accessEntries": list(entries)},
        "eks.describe_access_entry": lambda told: entries[told["principalArn"]],
    }
    account = ByModel(answers)
    assert asked("access entry", account, wanted) == {wanted}
    assert account.calls == [
        ("eks.list_access_entries", {"clusterName": "bivouac-train"}),
        *(
            ("eks.describe_access_entry", {"clusterName": "bivouac-train", "principalArn": principal})
            for principal in entries
        ),
    ]
    del entries["arn:ours"]
    assert (
        asked("access entry", ByModel(answers | {"eks.list_access_entries": {"accessEntries": [*entries]}}), wanted)
        == set()
    )
    alive: dict[str, Any] = {"eks.describe_cluster": {"cluster": {}}}
    for refused, error in ((DENIED, ClientError), (UNREACHED, EndpointConnectionError)):
        entries["arn:theirs"] = refused
        with pytest.raises(error):
            asked("access entry", ByModel(answers | alive), wanted)


def test_any_other_part_of_a_cluster_stands_and_falls_with_it() -> None:
    living, dead = part("fargateprofile", "p"), part("fargateprofile", "p", cluster="bivouac-old")

    def cluster(told: dict[str, str]) -> Any:
        return {"cluster": {}} if told == {"name": "bivouac-train"} else MISSING

    assert asked("part of a cluster", ByModel({"eks.describe_cluster": cluster}), dead, living) == {living}


SYSTEM = "fs-0aaaaaaaaaaaaaaa1"
LINK, BACKUP = arn("fsx", f"association/{SYSTEM}/dra-0aaaaaaaaaaaaaaa1"), arn("fsx", "backup/backup-0aaaaaaaaaaaaaaa1")
LINKS, SYSTEMS = "fsx.describe_data_repository_associations", "fsx.describe_file_systems"


@pytest.mark.parametrize(
    ("kind", "arn", "operation", "request_", "result", "item"),
    [
        ("data repository link", LINK, LINKS, {"AssociationIds": ["dra-0aaaaaaaaaaaaaaa1"]}, "Associations", {}),
        ("backup", BACKUP, "fsx.describe_backups", {"BackupIds": ["backup-0aaaaaaaaaaaaaaa1"]}, "Backups", {
            "BackupId": "backup-0aaaaaaaaaaaaaaa1", "Lifecycle": "AVAILABLE", "Type": "AUTOMATIC", "CreationTime": 1,
            "FileSystem": {}}),
        ("alarm", arn("cloudwatch", "alarm:cost: a:b"), "cloudwatch.describe_alarms", {"AlarmNames": ["cost: a:b"]},
         "MetricAlarms", {"AlarmName": "cost: a:b"}),
    ],
    ids=["link", "backup", "alarm"],
)  # fmt: skip
def test_what_is_asked_for_by_its_id_exists_if_aws_describes_it(
    kind: str, arn: str, operation: str, request_: dict[str, Any], result: str, item: dict[str, Any]
) -> None:
    account = ByModel({operation: {result: [item]}})
    assert asked(kind, account, arn) == {arn}
    assert account.calls == [(operation, request_)]
    assert asked(kind, ByModel({operation: {result: []}}), arn) == set()
    assert asked(kind, ByModel({operation: MISSING}), arn) == set()
    living = {SYSTEMS: {"FileSystems": [{"FileSystemId": SYSTEM}]}}
    for refused, error in ((DENIED, ClientError), (UNREACHED, EndpointConnectionError)):
        with pytest.raises(error):
            asked(kind, ByModel({operation: refused, **living}), arn)


def test_a_link_that_may_not_be_read_is_gone_with_its_file_system() -> None:
    account = ByModel({LINKS: DENIED, SYSTEMS: Refused("FileSystemNotFound")})
    assert asked("data repository link", account, LINK) == set()
    assert account.calls[-1] == (SYSTEMS, {"FileSystemIds": [SYSTEM]})


def test_budgets_are_asked_for_one_by_one_also_those_of_an_action() -> None:
    """A listing that ends at the first one would call the others gone."""
    budget = {"TimeUnit": "MONTHLY", "BudgetType": "COST", "BudgetName": "one"}
    arns = [f"arn:aws:budgets::{OWNER}:budget/{name}" for name in ("one", "gone", f"one/action/{IDS[0]}")]

    def answer(told: dict[str, str]) -> Any:
        assert told["AccountId"] == OWNER
        return {"Budget": budget} if told["BudgetName"] == "one" else Refused("NotFoundException")

    assert asked("budget", ByModel({"budgets.describe_budget": answer}), *arns) == {arns[0], arns[2]}


Several = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("kind", "word", "operation", "result", "key", "filter"),
    [
        ("network ACL", "network-acl/acl", "ec2.describe_network_acls", "NetworkAcls", "NetworkAclId",
         "network-acl-id"),
        ("security group rule", "security-group-rule/sgr", "ec2.describe_security_group_rules", "SecurityGroupRules",
         "SecurityGroupRuleId", "security-group-rule-id"),
    ],
)  # fmt: skip
def test_many_are_asked_for_at_once_by_their_ids(
    kind: str, word: str, operation: str, result: str, key: str, filter: str
) -> None:
    arns = [arn("ec2", f"{word}-{number}") for number in (1, 2, 3)]
    prefix = word.rpartition("/")[2]
    account = ByModel({operation: {result: [{key: f"{prefix}-{number}"} for number in (9, 3, 1)]}})
    assert asked(kind, account, *arns) == {arns[0], arns[2]}
    values = [f"{prefix}-{number}" for number in (1, 2, 3)]
    assert account.calls == [(operation, {"Filters": [{"Name": filter, "Values": values}]})]
