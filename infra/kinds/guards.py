"""What watches over a campaign by itself: schedules, rules, alarms, budgets, topics, logs, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import named, there
from infra.kinds.kind import Inputs, ResourceKind, Step
from infra.kinds.listed import arn_of, call, code_of, listed, one_by_one, place_in, with_tags
from infra.kinds.thing import Thing, tags_of, thing


def _schedules(account: Account) -> Iterator[Thing]:
    """The listing does not tell which role a schedule uses, and schedules carry no tags."""
    client = account.client("scheduler")
    for item in every(client, "list_schedules", "Schedules"):
        try:
            whole = client.get_schedule(Name=item["Name"], GroupName=item.get("GroupName", "default"))
            yield thing({**item, **whole}, item["Name"], item["Name"], {})
        except ClientError as error:
            if not says_missing(error):
                yield replace(thing(item, item["Name"], item["Name"], {}), unread=code_of(error))


def _schedule(account: Account, given: Inputs) -> list[str]:
    """In AWS's own group, unless the program names another."""
    find = there("scheduler", "get_schedule", "{groupName}/{name}", GroupName="groupName", Name="name")
    return find(account, {"groupName": "default", **given})


def _remove_rule(account: Account, one: Thing) -> None:
    events = account.client("events")
    targets = [target["Id"] for target in every(events, "list_targets_by_rule", "Targets", Rule=one.id)]
    if targets:
        events.remove_targets(Rule=one.id, Ids=targets)
    events.delete_rule(Name=one.id)


def _alarm(account: Account, arn: str) -> bool:
    return bool(account.client("cloudwatch").describe_alarms(AlarmNames=[arn.split(":", 6)[-1]])["MetricAlarms"])


def _log_group_tags(account: Account, one: Thing) -> Mapping[str, str]:
    return dict(account.client("logs").list_tags_log_group(logGroupName=one.id)["tags"])


def _parameters(account: Account) -> Iterator[Thing]:
    """The account's own: names that begin so are kept for AWS, whose public ones may be listed once they were read."""
    for item in every(account.client("ssm"), "describe_parameters", "Parameters"):
        if not item["Name"].startswith("/aws/"):
            yield thing(item, item["Name"], item["Name"])


def _parameter_tags(account: Account, one: Thing) -> Mapping[str, str]:
    answer = account.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=one.id)
    return tags_of(answer["TagList"])


def _budgets(account: Account) -> Iterator[Thing]:
    owner = account.identity()["Account"]
    for item in every(account.client("budgets"), "describe_budgets", "Budgets", AccountId=owner):
        yield thing(item, item["BudgetName"], item["BudgetName"], {})


def _budget(account: Account, given: Inputs) -> list[str]:
    """Of the caller's own account, unless the program names another."""
    find = there("budgets", "describe_budget", "{accountId}:{name}", AccountId="accountId", BudgetName="name")
    return find(account, {"accountId": account.identity()["Account"], **given})


def _budget_by_arn(account: Account, arn: str) -> bool:
    """Also of its actions, which go with it."""
    owner, name = arn.split(":")[4], place_in(arn).split("/")[1]
    account.client("budgets").describe_budget(AccountId=owner, BudgetName=name)
    return True


def _remove_budget(account: Account, one: Thing) -> None:
    account.client("budgets").delete_budget(AccountId=account.identity()["Account"], BudgetName=one.id)


def _budget_actions(account: Account, given: Inputs) -> list[str]:
    owner, budget = account.identity()["Account"], given["budgetName"]
    asked = {"AccountId": owner, "BudgetName": budget}
    seen = every(account.client("budgets"), "describe_budget_actions_for_budget", "Actions", **asked)
    return [f"{owner}:{one['ActionId']}:{budget}" for one in seen]


def _topics(account: Account) -> Iterator[Thing]:
    for item in every(account.client("sns"), "list_topics", "Topics"):
        yield Thing(item["TopicArn"], item["TopicArn"].rpartition(":")[2])


def _topic_tags(account: Account, one: Thing) -> Mapping[str, str]:
    return tags_of(account.client("sns").list_tags_for_resource(ResourceArn=one.id)["Tags"])


KINDS = (
    ResourceKind(
        "schedule", "scheduler", arn_of("scheduler", ""), list=_schedules,
        step=Step.STARTERS, remove=call("scheduler", "delete_schedule", "Name"),
        type="aws:scheduler/schedule:Schedule", find=_schedule,
    ),
    listed(
        "rule", Step.STARTERS, "events", "list_rules", "Rules", *["Name"] * 2, arn="rule/", remove=_remove_rule,
    ),
    ResourceKind(
        "parameter", "ssm", arn_of("ssm", "parameter/"), list=with_tags(_parameters, _parameter_tags),
        step=Step.RECORDS, remove=call("ssm", "delete_parameter", "Name"),
    ),
    listed(
        "alarm", Step.RECORDS, "cloudwatch", "describe_alarms", "MetricAlarms", *["AlarmName"] * 2,
        arn="alarm:", ask=one_by_one(_alarm), remove=call("cloudwatch", "delete_alarms", "AlarmNames"),
    ),
    listed(
        "log group", Step.RECORDS, "logs", "describe_log_groups", "logGroups", *["logGroupName"] * 2,
        arn="", tags=_log_group_tags, remove="delete_log_group", remade_by_eks=True,
        type="aws:cloudwatch/logGroup:LogGroup",
        find=named("logs", "describe_log_groups", "logGroups", "logGroupName", narrow="logGroupNamePrefix"),
    ),
    ResourceKind(
        "budget", "budgets", arn_of("budgets", "budget/"), list=_budgets, ask=one_by_one(_budget_by_arn),
        account_wide=True, step=Step.RECORDS, remove=_remove_budget,
        type="aws:budgets/budget:Budget", find=_budget,
    ),
    ResourceKind("budget action", type="aws:budgets/budgetAction:BudgetAction", find=_budget_actions),
    ResourceKind(
        "topic", "sns", arn_of("sns", ""), list=with_tags(_topics, _topic_tags),
        step=Step.RECORDS, remove=call("sns", "delete_topic", "TopicArn"),
        type="aws:sns/topic:Topic", made_over=True,
    ),
)  # fmt: skip
