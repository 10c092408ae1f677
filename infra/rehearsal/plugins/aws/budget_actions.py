"""Budget actions: IAM policies that AWS applies at a threshold."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.budgets import retag
from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input
from infra.rehearsal.plugins.aws.tags import tag_list
from infra.rehearsal.plugins.wire import Props

_THRESHOLD = {
    "actionThresholdType": Input(required=True),
    "actionThresholdValue": Input(required=True),
}
_IAM = {
    "policyArn": Input(required=True),
    "groups": Input(kind=Conversion.SET),
    "roles": Input(kind=Conversion.SET),
    "users": Input(kind=Conversion.SET),
}
_SENT = (
    "actionThreshold",
    "actionType",
    "approvalModel",
    "definition",
    "executionRoleArn",
    "notificationType",
    "subscribers",
)


def _account(call: Call) -> str:
    return str(call.new.get("accountId") or call.clients.account)


def create(call: Call) -> str:
    account, budget = _account(call), call.new["budgetName"]
    tags = {"ResourceTags": tag_list(call.tags)} if call.tags else {}
    act = call.client().create_budget_action
    # The executing role is new and may not be known yet.
    answer = call.retry(
        lambda: act(AccountId=account, BudgetName=budget, **call.request(*_SENT), **tags), "AccessDeniedException"
    )
    return f"{account}:{answer['ActionId']}:{budget}"


def _key(call: Call) -> dict[str, str]:
    account, action, budget = call.id.split(":", 2)
    return {"AccountId": account, "BudgetName": budget, "ActionId": action}


def read(call: Call) -> Props | None:
    answer: dict[str, Any] | None = call.or_none(lambda: call.client().describe_budget_action(**_key(call)))
    if not answer:
        return None
    key, found = _key(call), answer["Action"]
    return {
        **call.observed(found),
        "accountId": key["AccountId"],
        "actionId": key["ActionId"],
        "arn": f"arn:aws:budgets::{key['AccountId']}:budget/{key['BudgetName']}/action/{key['ActionId']}",
        "tags": call.tags,
    }


def update(call: Call) -> None:
    changeable = [name for name in _SENT if name != "actionType" and call.changed(name)]
    if changeable:  # empty if only the tags differ
        call.client().update_budget_action(**_key(call), **call.request(*changeable))


def delete(call: Call) -> None:
    call.destroy(lambda: call.client().delete_budget_action(**_key(call)), "ResourceLockedException")


RESOURCES = (
    Resource(
        token="aws:budgets/budgetAction:BudgetAction",
        service="budgets",
        regional=False,
        inputs={
            "accountId": Input(api=LOCAL, replaces=True, computed=True),
            "budgetName": Input(required=True, replaces=True),
            "actionType": Input(required=True, replaces=True),
            "approvalModel": Input(required=True),
            "notificationType": Input(required=True),
            "executionRoleArn": Input(required=True),
            "actionThreshold": Input(required=True, fields=_THRESHOLD),
            "definition": Input(required=True, fields={"iamActionDefinition": Input(fields=_IAM)}),
            "subscribers": Input(
                required=True, fields={"address": Input(required=True), "subscriptionType": Input(required=True)}
            ),
        },
        outputs={"arn": LOCAL, "actionId": None, "status": None},
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
