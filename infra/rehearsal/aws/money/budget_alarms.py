"""Alarms and actions of budgets whose spending is set by hand; each action runs as its role.

AWS sees spending with a day's delay; here POST `{"budget": NAME, "usd": 12.5}` to `/_site/spent` sets it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.rehearsal.aws.iam import access, policies
from infra.rehearsal.aws.operations import AwsError, Parameters
from infra.rehearsal.aws.world import World

SERVICE = "budgets.amazonaws.com"
_FIELDS = (
    "NotificationType",
    "ActionType",
    "ActionThreshold",
    "Definition",
    "ExecutionRoleArn",
    "ApprovalModel",
    "Subscribers",
)


class Known(Protocol):
    """The budgets, as the alarms use them."""

    tags: dict[str, dict[str, str]]

    @property
    def backend(self) -> Any: ...

    def arn(self, name: str) -> str: ...

    def find(self, params: Parameters) -> Any: ...


@dataclass
class Action:
    account: str
    budget: str
    document: dict[str, Any]
    status: str = "STANDBY"

    def describe(self) -> dict[str, Any]:
        return {**self.document, "BudgetName": self.budget, "Status": self.status}


@dataclass
class Alarms:
    """The actions of all budgets, and the messages sent."""

    world: World
    budgets: Known
    actions: dict[str, Action] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)

    def find(self, params: Parameters) -> Action:
        action = self.actions.get(params["ActionId"])
        if action is None or action.budget != params["BudgetName"]:
            raise AwsError("NotFoundException", f"the action {params['ActionId']} doesn't exist")
        return action

    def create_budget_action(self, params: Parameters) -> dict[str, Any]:
        self.budgets.find(params)
        self._check(params)
        number = str(uuid.uuid4())
        document = {key: params[key] for key in _FIELDS} | {"ActionId": number}
        self.actions[number] = Action(params["AccountId"], params["BudgetName"], document)
        arn = f"{self.budgets.arn(params['BudgetName'])}/action/{number}"
        self.budgets.tags[arn] = {tag["Key"]: tag["Value"] for tag in params.get("ResourceTags") or []}
        return {"AccountId": params["AccountId"], "BudgetName": params["BudgetName"], "ActionId": number}

    def _check(self, params: Parameters) -> None:
        if params["ActionType"] != "APPLY_IAM_POLICY":
            raise AwsError("InvalidParameterException", f"a rehearsal takes no action {params['ActionType']}")
        if not params["Subscribers"]:
            raise AwsError("InvalidParameterException", "an action needs at least one subscriber")
        if not access.role_trusts(self.world, params["ExecutionRoleArn"], SERVICE):
            raise AwsError("AccessDeniedException", f"{params['ExecutionRoleArn']} does not trust {SERVICE}")

    def describe_budget_action(self, params: Parameters) -> dict[str, Any]:
        return self._key(params) | {"Action": self.find(params).describe()}

    def describe_budget_actions_for_budget(self, params: Parameters) -> dict[str, Any]:
        self.budgets.find(params)
        return {
            "Actions": [action.describe() for action in self.actions.values() if action.budget == params["BudgetName"]]
        }

    def update_budget_action(self, params: Parameters) -> dict[str, Any]:
        action = self.find(params)
        previous = action.describe()
        action.document |= {key: params[key] for key in _FIELDS if params.get(key)}
        return {
            "AccountId": params["AccountId"],
            "BudgetName": action.budget,
            "OldAction": previous,
            "NewAction": action.describe(),
        }

    def delete_budget_action(self, params: Parameters) -> dict[str, Any]:
        action = self.actions.pop(self.find(params).document["ActionId"])
        self.budgets.tags.pop(f"{self.budgets.arn(action.budget)}/action/{action.document['ActionId']}", None)
        return self._key(params) | {"Action": action.describe()}

    @staticmethod
    def _key(params: Parameters) -> dict[str, Any]:
        return {"AccountId": params["AccountId"], "BudgetName": params["BudgetName"]}

    def forget(self, budget: str) -> None:
        """Delete a budget's actions with it, as AWS does."""
        self.actions = {number: action for number, action in self.actions.items() if action.budget != budget}

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Set a budget's spending, or without a body list the messages sent."""
        if not body:
            return 200, {"sent": self.sent, "actions": [alarm.describe() for alarm in self.actions.values()]}
        request = json.loads(body)
        with self.world.lock:
            watched_budget = self.budgets.backend.budgets[self.world.account].get(request["budget"])
            if watched_budget is None:
                return 404, {"message": f"there is no budget {request['budget']}"}
            spent_usd, limit = float(request["usd"]), float(watched_budget.budget["BudgetLimit"]["Amount"])
            watched_budget.budget["CalculatedSpend"] = {"ActualSpend": {"Amount": str(spent_usd), "Unit": "USD"}}
            due = [alarm for alarm in watched_budget.notifications if _is_reached(alarm.details, spent_usd, limit)]
            acting = [
                alarm
                for alarm in self.actions.values()
                if alarm.budget == request["budget"] and _due(alarm, spent_usd, limit)
            ]
        for notification in due:
            notification.details["NotificationState"] = "ALARM"
            # moto's annotation says dictionary, but it is a list of them.
            for subscriber in cast(list[dict[str, str]], notification.subscribers):
                self._tell(request["budget"], subscriber, notification.details["Threshold"])
        # Outside the lock: an action calls back over HTTP.
        for action in acting:
            self._act(action)
        return self.route("", b"")

    def _tell(self, budget: str, subscriber: dict[str, str], threshold: float) -> None:
        error = self._publish(subscriber["Address"], budget) if subscriber["SubscriptionType"] == "SNS" else None
        line = {"budget": budget, "to": subscriber["Address"], "per_cent": threshold, "error": error}
        if line not in self.sent:
            self.sent.append(line)

    def _publish(self, topic_arn: str, budget: str) -> str | None:
        """Publish to a topic; return the reason if it refuses."""
        topic = self.world.backend("sns").topics.get(topic_arn)
        if topic is None:
            return "NotFound: the topic does not exist"
        context = {"aws:sourceaccount": [self.world.account]}
        if not policies.trusts(json.loads(topic.policy), [SERVICE], "sns:Publish", context):
            return f"AuthorizationError: the topic's policy does not let {SERVICE} publish"
        topic.publish(f"budget {budget} has passed its threshold")
        return None

    def _act(self, action: Action) -> None:
        definition = action.document["Definition"]["IamActionDefinition"]
        role = action.document["ExecutionRoleArn"]
        role_session = access.open_session(self.world, role, "budgets")
        session = boto3.Session(role_session.access_key_id, role_session.secret_access_key, role_session.session_token)
        single_try = Config(retries={"total_max_attempts": 1}, region_name=self.world.region)
        iam = session.client("iam", endpoint_url=self.world.endpoint_url, config=single_try)
        try:
            for name in definition.get("Roles") or []:
                iam.attach_role_policy(RoleName=name, PolicyArn=definition["PolicyArn"])
        except (ClientError, BotoCoreError) as error:
            action.status = "EXECUTION_FAILURE"
            self.sent.append({"budget": action.budget, "to": role, "per_cent": None, "error": str(error)})
            return
        action.status = "EXECUTION_SUCCESS"


def _is_reached(details: dict[str, Any], spent_usd: float, limit: float) -> bool:
    share = float(details["Threshold"])
    threshold = share if details.get("ThresholdType") == "ABSOLUTE_VALUE" else limit * share / 100
    return details["NotificationType"] == "ACTUAL" and spent_usd > threshold


def _due(action: Action, spent_usd: float, limit: float) -> bool:
    threshold = action.document["ActionThreshold"]
    details = {
        "Threshold": threshold["ActionThresholdValue"],
        "ThresholdType": threshold["ActionThresholdType"],
        "NotificationType": action.document["NotificationType"],
    }
    automatic = action.document["ApprovalModel"] == "AUTOMATIC"
    return automatic and action.status == "STANDBY" and _is_reached(details, spent_usd, limit)
