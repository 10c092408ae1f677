"""What rows cannot say about roles, policies, budgets and builds."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import ResourceCall
from infra.rehearsal.plugins.aws.resource import ResourceType
from infra.rehearsal.plugins.wire import Props

_VERSIONS_KEPT = 5


def _present_role(call: ResourceCall) -> str | None:
    answer = call.or_none(lambda: call.client().get_instance_profile(InstanceProfileName=call.id))
    return next((str(role["RoleName"]) for role in answer["InstanceProfile"]["Roles"]), None) if answer else None


class InstanceProfileType(ResourceType):
    names = {"present_role": _present_role}


class PolicyType(ResourceType):
    def update(self, call: ResourceCall) -> None:
        """Remove the oldest version where AWS would refuse one more."""
        old = _old_versions(call)
        if call.differs("policy") and len(old) >= _VERSIONS_KEPT - 1:
            call.client().delete_policy_version(PolicyArn=call.id, VersionId=old[-1]["VersionId"])
        super().update(call)

    def delete(self, call: ResourceCall) -> None:
        for version in call.or_none(lambda: _old_versions(call)) or []:
            call.client().delete_policy_version(PolicyArn=call.id, VersionId=version["VersionId"])
        super().delete(call)


def _old_versions(call: ResourceCall) -> list[Props]:
    """Return the versions that are not in force, newest first."""
    versions = call.list_all("list_policy_versions", "Versions", PolicyArn=call.id)
    older = [version for version in versions if not version["IsDefaultVersion"]]
    return sorted(older, key=lambda version: version["CreateDate"], reverse=True)


def _budget(call: ResourceCall) -> dict[str, Any]:
    request = {"BudgetName": call.new["name"], **call.request("budgetType", "timeUnit", "costTypes")}
    if call.new.get("limitAmount"):
        request["BudgetLimit"] = {"Amount": str(call.new["limitAmount"]), "Unit": call.new["limitUnit"]}
    if call.new.get("costFilters"):
        request["CostFilters"] = {entry["name"]: entry["values"] for entry in call.new["costFilters"]}
    period = {"Start": call.new.get("timePeriodStart"), "End": call.new.get("timePeriodEnd")}
    if any(period.values()):
        request["TimePeriod"] = {key: _moment(value) for key, value in period.items() if value}
    return request


def _moment(text: str) -> str:
    """Convert the SDK's `2026-01-31_15:00`."""
    return f"{text.replace('_', 'T')}:00Z" if "_" in text else text


def _notifications(values: Props) -> list[dict[str, Any]]:
    notifications = []
    for notification in values.get("notifications") or []:
        names = ("comparisonOperator", "notificationType", "threshold", "thresholdType")
        plain = {name[0].upper() + name[1:]: notification[name] for name in names}
        mails = [("EMAIL", address) for address in notification.get("subscriberEmailAddresses") or []]
        topics = [("SNS", address) for address in notification.get("subscriberSnsTopicArns") or []]
        people = [{"SubscriptionType": kind, "Address": address} for kind, address in [*mails, *topics]]
        notifications.append({"Notification": plain, "Subscribers": people})
    return notifications


class BudgetType(ResourceType):
    names = {"budget": _budget, "notifications_of_program": lambda call: _notifications(call.new)}

    def observe(self, call: ResourceCall, answer: dict[str, Any]) -> Props:
        filters = sorted((answer.get("CostFilters") or {}).items())
        entries = [{"name": name, "values": values} for name, values in filters]
        return {**super().observe(call, answer), "costFilters": entries or None}

    def update(self, call: ResourceCall) -> None:
        super().update(call)
        client = call.client()
        account, name = call.id.split(":", 1)
        key = {"AccountId": account, "BudgetName": name}
        old_alarms, new_alarms = _notifications(call.old), _notifications(call.new)
        for notification in old_alarms:
            if notification not in new_alarms:
                client.delete_notification(**key, Notification=notification["Notification"])
        for notification in new_alarms:
            if notification not in old_alarms:
                client.create_notification(**key, **notification)


class ProjectType(ResourceType):
    def retag(self, call: ResourceCall, fresh: dict[str, str], stale: list[str]) -> None:
        self.update(call)


CLASSES: dict[str, type[ResourceType]] = {
    "aws:iam/instanceProfile:InstanceProfile": InstanceProfileType,
    "aws:iam/policy:Policy": PolicyType,
    "aws:budgets/budget:Budget": BudgetType,
    "aws:codebuild/project:Project": ProjectType,
}
