"""Budgets, with their notifications."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_arn, retagging, tag_list
from infra.rehearsal.plugins.wire import Props

_COSTS = (
    "includeCredit",
    "includeDiscount",
    "includeOtherSubscription",
    "includeRecurring",
    "includeRefund",
    "includeSubscription",
    "includeSupport",
    "includeTax",
    "includeUpfront",
    "useAmortized",
    "useBlended",
)
_NOTIFICATION = {
    "comparisonOperator": Input(required=True),
    "notificationType": Input(required=True),
    "threshold": Input(required=True),
    "thresholdType": Input(required=True),
    "subscriberEmailAddresses": Input(api=LOCAL, kind=Conversion.SET),
    "subscriberSnsTopicArns": Input(api=LOCAL, kind=Conversion.SET),
}


def _budget(call: Call) -> dict[str, Any]:
    request = {"BudgetName": call.new["name"], **call.request("budgetType", "timeUnit", "costTypes")}
    if call.new.get("limitAmount"):
        request["BudgetLimit"] = {"Amount": str(call.new["limitAmount"]), "Unit": call.new["limitUnit"]}
    if call.new.get("costFilters"):
        request["CostFilters"] = {item["name"]: item["values"] for item in call.new["costFilters"]}
    period = {"Start": call.new.get("timePeriodStart"), "End": call.new.get("timePeriodEnd")}
    if any(period.values()):
        request["TimePeriod"] = {key: _moment(value) for key, value in period.items() if value}
    return request


def _moment(text: str) -> str:
    """Convert the SDK's `2026-01-31_15:00`."""
    return f"{text.replace('_', 'T')}:00Z" if "_" in text else text


def _notifications(call: Call, values: Props) -> list[dict[str, Any]]:
    result = []
    for item in values.get("notifications") or []:
        names = ("comparisonOperator", "notificationType", "threshold", "thresholdType")
        plain = {name[0].upper() + name[1:]: item[name] for name in names}
        mails = [("EMAIL", address) for address in item.get("subscriberEmailAddresses") or []]
        topics = [("SNS", address) for address in item.get("subscriberSnsTopicArns") or []]
        people = [{"SubscriptionType": kind, "Address": address} for kind, address in [*mails, *topics]]
        result.append({"Notification": plain, "Subscribers": people})
    return result


def create(call: Call) -> str:
    account = call.new.get("accountId") or call.clients.account
    tags = {"ResourceTags": tag_list(call.tags)} if call.tags else {}
    call.client().create_budget(
        AccountId=account, Budget=_budget(call), NotificationsWithSubscribers=_notifications(call, call.new), **tags
    )
    return f"{account}:{call.new['name']}"


def _key(call: Call) -> dict[str, str]:
    account, name = call.id.split(":", 1)
    return {"AccountId": account, "BudgetName": name}


def read(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().describe_budget(**_key(call)))
    if not answer:
        return None
    key, found = _key(call), answer["Budget"]
    limit = found.get("BudgetLimit") or {}
    filters = [{"name": name, "values": values} for name, values in sorted((found.get("CostFilters") or {}).items())]
    return {
        **call.observed(found),
        "name": key["BudgetName"],
        "accountId": key["AccountId"],
        "arn": f"arn:aws:budgets::{key['AccountId']}:budget/{key['BudgetName']}",
        "limitAmount": limit.get("Amount"),
        "limitUnit": limit.get("Unit"),
        "costFilters": filters or None,
        # moto and AWS list a budget's tags differently, so they are taken from the program.
        "tags": call.tags,
    }


def update(call: Call) -> None:
    client, key = call.client(), _key(call)
    client.update_budget(AccountId=key["AccountId"], NewBudget=_budget(call))
    before, after = _notifications(call, call.old), _notifications(call, call.new)
    for item in before:
        if item not in after:
            client.delete_notification(**key, Notification=item["Notification"])
    for item in after:
        if item not in before:
            client.create_notification(**key, **item)


def delete(call: Call) -> None:
    call.destroy(lambda: call.client().delete_budget(**_key(call)))


retag = retagging("ResourceARN", by_arn, keys="ResourceTagKeys", tags="ResourceTags")


RESOURCES = (
    Resource(
        token="aws:budgets/budget:Budget",
        service="budgets",
        regional=False,
        inputs={
            "accountId": Input(api=LOCAL, replaces=True, computed=True),
            "budgetType": Input(required=True),
            "timeUnit": Input(required=True),
            "limitAmount": Input(api=LOCAL, kind=Conversion.AMOUNT),
            "limitUnit": Input(api=LOCAL),
            "costFilters": Input(
                api=LOCAL, fields={"name": Input(required=True), "values": Input(kind=Conversion.SET)}
            ),
            "costTypes": Input(fields={name: Input() for name in _COSTS}, computed=True),
            "timePeriodStart": Input(api=LOCAL, computed=True),
            "timePeriodEnd": Input(api=LOCAL, computed=True),
            "notifications": Input(api=LOCAL, fields=_NOTIFICATION),
        },
        outputs={"arn": LOCAL},
        naming=Naming(longest=100),
        identity=("accountId", "name"),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
