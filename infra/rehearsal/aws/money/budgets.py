"""AWS Budgets: the updates, subscribers, tags and actions that moto lacks. Spending is set by a site route."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from moto.budgets.models import Budget, BudgetsBackend, Notification
from moto.budgets.responses import BudgetsResponse

from infra.rehearsal.aws.money.budget_alarms import Alarms
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend, tag_list
from infra.rehearsal.aws.world import World


class Budgets:
    def __init__(self, world: World) -> None:
        self.world = world
        self.tags: dict[str, dict[str, str]] = {}
        self.alarms = Alarms(world, self)

    @property
    def backend(self) -> BudgetsBackend:
        return self.world.backend("budgets")

    def arn(self, name: str) -> str:
        return f"arn:aws:budgets::{self.world.account}:budget/{name}"

    def find(self, params: Parameters) -> Budget:
        name = params["BudgetName"]
        try:
            return self.backend.budgets[params["AccountId"]][name]
        except KeyError:
            raise AwsError("NotFoundException", f"Unable to get budget: {name} - the budget doesn't exist.") from None

    def notification(self, params: Parameters) -> Notification:
        request = params["Notification"]
        for notification in self.find(params).notifications:
            if _same_notification(notification.details, request):
                return notification
        raise AwsError("NotFoundException", f"the notification {request} doesn't exist")

    def create_budget(self, params: Parameters) -> None:
        budget, notifications = params["Budget"], params.get("NotificationsWithSubscribers") or []
        for notification in notifications:
            _refuse_many(notification.get("Subscribers") or [])
            notification["Notification"] = _with_defaults(notification["Notification"])
        budget.setdefault("TimePeriod", _from_start_of(budget["TimeUnit"]))
        self.backend.create_budget(params["AccountId"], budget, notifications)
        self.tags[self.arn(budget["BudgetName"])] = {t["Key"]: t["Value"] for t in params.get("ResourceTags") or []}

    def delete_budget(self, params: Parameters) -> None:
        self.backend.delete_budget(params["AccountId"], params["BudgetName"])
        self.tags.pop(self.arn(params["BudgetName"]), None)
        self.alarms.forget(params["BudgetName"])

    def describe_budget(self, params: Parameters) -> dict[str, Any]:
        return {"Budget": _document(self.find(params))}

    def describe_budgets(self, params: Parameters) -> dict[str, Any]:
        return {"Budgets": [_document(budget) for budget in self.backend.budgets[params["AccountId"]].values()]}

    def update_budget(self, params: Parameters) -> None:
        new = params["NewBudget"]
        budget = self.find({"AccountId": params["AccountId"], "BudgetName": new["BudgetName"]})
        former = {key: budget.budget[key] for key in ("TimePeriod", "CalculatedSpend") if key in budget.budget}
        budget.budget = former | new | {"LastUpdatedTime": time.time()}

    def describe_notifications_for_budget(self, params: Parameters) -> dict[str, Any]:
        return {"Notifications": [notification.details for notification in self.find(params).notifications]}

    def create_notification(self, params: Parameters) -> None:
        _refuse_many(params["Subscribers"])
        details = _with_defaults(params["Notification"])
        self.backend.create_notification(params["AccountId"], params["BudgetName"], details, params["Subscribers"])

    def delete_notification(self, params: Parameters) -> None:
        self.find(params).notifications.remove(self.notification(params))

    def describe_subscribers_for_notification(self, params: Parameters) -> dict[str, Any]:
        return {"Subscribers": self.notification(params).subscribers}

    def list_tags_for_resource(self, params: Parameters) -> dict[str, Any]:
        return {"ResourceTags": tag_list(self._tags(params))}

    def _tags(self, params: Parameters) -> dict[str, str]:
        if params["ResourceARN"] not in self.tags:
            raise AwsError("NotFoundException", f"there is no resource {params['ResourceARN']}")
        return self.tags[params["ResourceARN"]]

    def tag_resource(self, params: Parameters) -> None:
        tags = {tag["Key"]: tag["Value"] for tag in params["ResourceTags"]}
        self._tags(params).update(tags)

    def untag_resource(self, params: Parameters) -> None:
        for key in params["ResourceTagKeys"]:
            self._tags(params).pop(key, None)


def _refuse_many(subscribers: list[dict[str, str]]) -> None:
    """Apply AWS's limit: "a notification can have one SNS subscriber and up to 10 email subscribers"."""
    for kind, limit in (("SNS", 1), ("EMAIL", 10)):
        count = sum(subscriber["SubscriptionType"] == kind for subscriber in subscribers)
        if count > limit:
            words = f"a notification takes at most {limit} subscribers of type {kind}, not {count}"
            raise AwsError("CreationLimitExceededException", words)


def _with_defaults(notification: dict[str, Any]) -> dict[str, Any]:
    return {"ThresholdType": "PERCENTAGE", "NotificationState": "OK"} | notification


def _from_start_of(unit: str) -> dict[str, Any]:
    """Return AWS's default period: from the start of the present one until 2087."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    month = {"ANNUALLY": 1, "QUARTERLY": today.month - (today.month - 1) % 3}.get(unit, today.month)
    start = today if unit == "DAILY" else today.replace(month=month, day=1)
    return {"Start": start.timestamp(), "End": datetime(2087, 6, 15, tzinfo=UTC).timestamp()}


def _document(budget: Budget) -> dict[str, Any]:
    """Describe a budget with a decimal point in its amounts, as AWS writes them."""
    document = budget.to_dict()
    if "BudgetLimit" in document:  # otherwise it has planned limits, month by month
        document["BudgetLimit"] = _decimal(document["BudgetLimit"])
    document["CalculatedSpend"] = {key: _decimal(spend) for key, spend in document["CalculatedSpend"].items()}
    return document


def _decimal(spend: dict[str, str]) -> dict[str, str]:
    return spend | {"Amount": spend["Amount"] if "." in spend["Amount"] else f"{spend['Amount']}.0"}


def _same_notification(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Compare notifications: AWS defaults ThresholdType to PERCENTAGE and ignores the state."""
    keys = ("NotificationType", "ComparisonOperator", "Threshold")
    kinds = {details.get("ThresholdType") or "PERCENTAGE" for details in (left, right)}
    return len(kinds) == 1 and all(left.get(key) == right.get(key) for key in keys)


def install(world: World) -> None:
    budgets = Budgets(world)
    add_backend(world, BudgetsResponse, budgets)
    add_backend(world, BudgetsResponse, budgets.alarms)
    world.routes["/_site/spent"] = budgets.alarms.route
