"""What only the tagging service shows: it goes on showing what was deleted, for minutes or hours.

"All the tagged or previously tagged resources", says its documentation of GetResources; boto3 issue 3341 and aws-cli
issue 4173 tell of hours. So what carries a campaign's or a cluster's tag is asked of its own service, and left out
where that says it is no more. Where nobody can be asked it stays, and says what it may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account, says_missing
from infra.inventory.thing import Thing, tags_of
from infra.spec.names import CAMPAIGN_TAG

GHOST = "seen by the tagging service alone, which also shows what was deleted, for hours"
_OWN_LOOK = re.compile(
    r":ec2:[^:]*:\d*:(?:instance|volume|snapshot|image|network-interface|elastic-ip|natgateway|vpc-endpoint|subnet|vpc"
    r"|vpc-peering-connection|internet-gateway|route-table|security-group|launch-template|placement-group|key-pair"
    r"|spot-instances-request|vpc-flow-log|capacity-reservation)/"
    r"|:autoscaling:|:elasticloadbalancing:|:eks:[^:]*:\d*:cluster/|:fsx:[^:]*:\d*:file-system/|:logs:|:s3:::"
    r"|:iam::\d*:(?:role|policy|instance-profile)/|:sns:|:scheduler:|:events:[^:]*:\d*:rule/|:ssm:[^:]*:\d*:parameter/"
)
"""Kinds with a look of their own, which tells their state."""
_MARKS = (CAMPAIGN_TAG, "kubernetes.io/cluster/", "eks:cluster-name")
"""Only what carries one of these tags can be judged a campaign's by it: nothing else needs to be asked."""
_BATCH = 100
Ask = Callable[[Account, Sequence[str]], set[str]]
"""Those of several ARNs of a kind that still are. Raises what AWS answers otherwise."""


def tagged(account: Account) -> Iterator[Thing]:
    """Whatever else the tagging service knows, of any kind.

    Raises the first refusal of a service to say whether something is, once all the rest was shown.
    """
    pages = account.client("resourcegroupstaggingapi").get_paginator("get_resources").paginate()
    shown = {one["ResourceARN"]: tags_of(one["Tags"]) for page in pages for one in page["ResourceTagMappingList"]}
    others = {arn: tags for arn, tags in shown.items() if not _OWN_LOOK.search(arn)}
    marked = [arn for arn, tags in others.items() if any(key.startswith(_MARKS) for key in tags)]
    there, unasked, refused = _asked(account, marked)
    for arn, tags in others.items():
        if arn not in marked or arn in there:
            yield Thing(arn, tags=tags)
        elif arn in unasked:
            yield Thing(arn, tags=tags, doubt=f"{GHOST}; {_by_hand(arn)}")
    if refused:
        raise refused[0]


def _asked(account: Account, arns: Sequence[str]) -> tuple[set[str], set[str], list[ClientError | BotoCoreError]]:
    """Those that are; those of which nobody can be asked; and why some services would not say."""
    there, unasked, refused = set[str](), set[str](), list[ClientError | BotoCoreError]()
    by_kind: dict[Ask | None, list[str]] = {}
    for arn in arns:
        by_kind.setdefault(next((ask for sign, ask in _ASKS if sign.search(arn)), None), []).append(arn)
    for ask, several in by_kind.items():
        if ask is None:
            unasked.update(several)
            continue
        size = _BATCH if ask in _TOGETHER else 1
        for first in range(0, len(several), size):
            try:
                there |= ask(account, several[first : first + size])
            except (ClientError, BotoCoreError) as error:
                refused.append(error)
    return there, unasked, refused


def _by_hand(arn: str) -> str:
    return f"look for {_place(arn)} in the console of {arn.split(':')[2]}, or wait"


def _place(arn: str) -> str:
    """`nodegroup/<cluster>/<name>/...`: what comes after region and account."""
    return arn.split(":", 5)[-1]


def _each(there: Callable[[Account, str], bool]) -> Ask:
    """One question for each."""

    def ask(account: Account, arns: Sequence[str]) -> set[str]:
        found = set()
        for arn in arns:
            try:
                if there(account, arn):
                    found.add(arn)
            except ClientError as error:
                if not says_missing(error):
                    raise
        return found

    return ask


def _in_cluster(operation: str, parameter: str, result: str, own_arn: str) -> Callable[[Account, str], bool]:
    """`.../<kind>/<cluster>/<name>/...`: another of the same name has another ARN."""

    def there(account: Account, arn: str) -> bool:
        _, cluster, name, *_ = _place(arn).split("/")
        eks = account.client("eks")
        found = getattr(eks, operation)(**{"clusterName": cluster, parameter: name})[result]
        return bool(found[own_arn] == arn)

    return _unless_gone(there)


def _unless_gone(there: Callable[[Account, str], bool]) -> Callable[[Account, str], bool]:
    """What lies in a cluster that is gone is gone, also where it may not be asked for itself."""

    def known(account: Account, arn: str) -> bool:
        try:
            return there(account, arn)
        except ClientError as error:
            if says_missing(error):
                return False
            account.client("eks").describe_cluster(name=_place(arn).split("/")[1])
            raise

    return known


def _entry(account: Account, arn: str) -> bool:
    """The ARN of an access entry does not tell all of its principal's."""
    cluster, eks = _place(arn).split("/")[1], account.client("eks")
    pages = eks.get_paginator("list_access_entries").paginate(clusterName=cluster)
    for principal in (one for page in pages for one in page["accessEntries"]):
        try:
            entry = eks.describe_access_entry(clusterName=cluster, principalArn=principal)["accessEntry"]
        except ClientError as error:
            if not says_missing(error):
                raise
            continue
        if entry["accessEntryArn"] == arn:
            return True
    return False


def _in_living_cluster(account: Account, arn: str) -> bool:
    account.client("eks").describe_cluster(name=_place(arn).split("/")[1])
    return True


def _rules(account: Account, arns: Sequence[str]) -> set[str]:
    wanted = {arn.rpartition("/")[2]: arn for arn in arns}
    pages = account.client("ec2").get_paginator("describe_security_group_rules")
    by_id = [{"Name": "security-group-rule-id", "Values": list(wanted)}]
    seen = (one["SecurityGroupRuleId"] for page in pages.paginate(Filters=by_id) for one in page["SecurityGroupRules"])
    return {wanted[id] for id in seen if id in wanted}


def _acls(account: Account, arns: Sequence[str]) -> set[str]:
    wanted = {arn.rpartition("/")[2]: arn for arn in arns}
    pages = account.client("ec2").get_paginator("describe_network_acls")
    by_id = [{"Name": "network-acl-id", "Values": list(wanted)}]
    return {wanted[one["NetworkAclId"]] for page in pages.paginate(Filters=by_id) for one in page["NetworkAcls"]}


def _link(account: Account, arn: str) -> bool:
    """A link of a file system that is gone is gone, also where it may not be asked for itself."""
    fsx, (_, system, id) = account.client("fsx"), _place(arn).split("/")
    try:
        return bool(fsx.describe_data_repository_associations(AssociationIds=[id])["Associations"])
    except ClientError as error:
        if says_missing(error):
            return False
        fsx.describe_file_systems(FileSystemIds=[system])
        raise


def _backup(account: Account, arn: str) -> bool:
    return bool(account.client("fsx").describe_backups(BackupIds=[arn.rpartition("/")[2]])["Backups"])


def _budget(account: Account, arn: str) -> bool:
    """Also of its actions, which go with it."""
    owner, name = arn.split(":")[4], _place(arn).split("/")[1]
    account.client("budgets").describe_budget(AccountId=owner, BudgetName=name)
    return True


def _alarm(account: Account, arn: str) -> bool:
    name = arn.split(":", 6)[-1]
    found: dict[str, Any] = account.client("cloudwatch").describe_alarms(AlarmNames=[name])
    return bool(found["MetricAlarms"])


_ASKS: tuple[tuple[re.Pattern[str], Ask], ...] = (
    (
        re.compile(r":eks:[^:]*:\d*:nodegroup/"),
        _each(_in_cluster("describe_nodegroup", "nodegroupName", "nodegroup", "nodegroupArn")),
    ),
    (re.compile(r":eks:[^:]*:\d*:addon/"), _each(_in_cluster("describe_addon", "addonName", "addon", "addonArn"))),
    (
        re.compile(r":eks:[^:]*:\d*:podidentityassociation/"),
        _each(
            _in_cluster("describe_pod_identity_association", "associationId", "association", "associationArn"),
        ),
    ),
    (re.compile(r":eks:[^:]*:\d*:access-entry/"), _each(_unless_gone(_entry))),
    (re.compile(r":eks:[^:]*:\d*:[a-z-]+/[^/]+/"), _each(_in_living_cluster)),
    (re.compile(r":ec2:[^:]*:\d*:security-group-rule/"), _rules),
    (re.compile(r":ec2:[^:]*:\d*:network-acl/"), _acls),
    (re.compile(r":fsx:[^:]*:\d*:association/"), _each(_link)),
    (re.compile(r":fsx:[^:]*:\d*:backup/"), _each(_backup)),
    (re.compile(r":budgets::\d*:budget/"), _each(_budget)),
    (re.compile(r":cloudwatch:[^:]*:\d*:alarm:"), _each(_alarm)),
)
"""Of which kinds the own service can be asked, by the sign of their ARNs; the first that fits."""
_TOGETHER = (_rules, _acls)
"""Asks that take several in one call; all others are made one by one, so that one refusal hides only one."""
