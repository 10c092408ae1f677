"""Alarms, log groups, topics and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from infra.aws.account import Account, every
from infra.kinds.finding import by_name
from infra.kinds.kind import ResourceKind, Step
from infra.kinds.listed import arn_of, call, listed_kind, one_by_one, with_tags
from infra.kinds.thing import Thing, tags_of, thing


def _alarm(account: Account, arn: str) -> bool:
    return bool(account.client("cloudwatch").describe_alarms(AlarmNames=[arn.split(":", 6)[-1]])["MetricAlarms"])


def _log_group_tags(account: Account, thing: Thing) -> Mapping[str, str]:
    return dict(account.client("logs").list_tags_log_group(logGroupName=thing.id)["tags"])


def _parameters(account: Account) -> Iterator[Thing]:
    """Yield the account's own parameters; `/aws/` is AWS's prefix, whose public ones may be listed after a read."""
    for item in every(account.client("ssm"), "describe_parameters", "Parameters"):
        if not item["Name"].startswith("/aws/"):
            yield thing(item, item["Name"], item["Name"])


def _parameter_tags(account: Account, thing: Thing) -> Mapping[str, str]:
    answer = account.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=thing.id)
    return tags_of(answer["TagList"])


def _topics(account: Account) -> Iterator[Thing]:
    for item in every(account.client("sns"), "list_topics", "Topics"):
        yield Thing(item["TopicArn"], item["TopicArn"].rpartition(":")[2])


def _topic_tags(account: Account, thing: Thing) -> Mapping[str, str]:
    return tags_of(account.client("sns").list_tags_for_resource(ResourceArn=thing.id)["Tags"])


KINDS = (
    ResourceKind(
        "parameter", "ssm", arn_of("ssm", "parameter/"), list=with_tags(_parameters, _parameter_tags),
        step=Step.RECORDS, remove=call("ssm", "delete_parameter", "Name"),
    ),
    listed_kind(
        "alarm", Step.RECORDS, "cloudwatch", "describe_alarms", "MetricAlarms", *["AlarmName"] * 2,
        arn="alarm:", ask=one_by_one(_alarm), remove=call("cloudwatch", "delete_alarms", "AlarmNames"),
    ),
    listed_kind(
        "log group", Step.RECORDS, "logs", "describe_log_groups", "logGroups", *["logGroupName"] * 2,
        arn="", tags=_log_group_tags, remove="delete_log_group", remade_by_eks=True,
        type="aws:cloudwatch/logGroup:LogGroup",
        find=by_name("logs", "describe_log_groups", "logGroups", "logGroupName", narrow="logGroupNamePrefix"),
    ),
    ResourceKind(
        "topic", "sns", arn_of("sns", ""), list=with_tags(_topics, _topic_tags),
        step=Step.RECORDS, remove=call("sns", "delete_topic", "TopicArn"),
        type="aws:sns/topic:Topic", made_over=True,
    ),
)  # fmt: skip
