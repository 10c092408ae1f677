"""The campaign's AWS budget: alarms, and roles that may then buy no more. A backstop, not a meter: AWS counts only
resources with the tag, once that is a cost-allocation tag, and up to a day late."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi import Input, Output, ResourceOptions

from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_TAG, Names, freeze_policy
from infra.stack.access import freeze, policies
from infra.stack.access.ceiling import boundary_arn
from infra.stack.access.identity import limited_role

ALARM_SHARES = (80, 100)
"""Per cent of the budget."""
FREEZE_AT = 100
"""Per cent of the budget at which roles are frozen."""


class Budget(pulumi.ComponentResource):
    """An AWS budget that alarms the spec's topic, or else `topic`, and the spec's address."""

    def __init__(self, spec: Spec, opts: ResourceOptions | None = None) -> None:
        super().__init__("bivouac:infra:Budget", "budget", None, opts)
        self._spec, self._names, money = spec, Names(spec), spec.money
        self.topic = aws.sns.Topic(
            "alarms",
            name=self._names.alarms,
            policy=json.dumps(topic_policy(spec), sort_keys=True),
            opts=ResourceOptions(parent=self),
        )
        # AWS Budgets takes one topic per notification.
        topic: Input[str] = money.alarm_topic_arn or self.topic.arn
        mails = [money.alarm_email] if money.alarm_email else []
        budget = aws.budgets.Budget(
            "budget",
            name=self._names.of("budget"),
            budget_type="COST",
            limit_amount=str(spec.tagged_budget_usd),
            limit_unit="USD",
            time_unit="ANNUALLY",
            cost_filters=[{"name": "TagKeyValue", "values": [f"user:{CAMPAIGN_TAG}${spec.campaign}"]}],
            notifications=[
                {
                    "comparison_operator": "GREATER_THAN",
                    "threshold": share,
                    "threshold_type": "PERCENTAGE",
                    "notification_type": "ACTUAL",
                    "subscriber_email_addresses": mails,
                    "subscriber_sns_topic_arns": [topic],
                }
                for share in ALARM_SHARES
            ],
            opts=ResourceOptions(parent=self),
        )
        if money.freeze_roles:
            self._freeze(budget.name, money.freeze_roles)
        self.register_outputs({"topic": self.topic.arn})

    def _freeze(self, budget: Output[str], roles: tuple[str, ...]) -> None:
        place = policies.place(self._spec)
        policy = f"arn:aws:iam::{place.account}:policy/{freeze_policy(place.region)}"
        trust, name = policies.trust("budgets.amazonaws.com", place), self._names.role("budget")
        rights, child = freeze.freezing(self._spec), ResourceOptions(parent=self)
        role, may = limited_role("budget", name, trust, boundary_arn(place), rights, child)
        aws.budgets.BudgetAction(
            "freeze",
            budget_name=budget,
            action_type="APPLY_IAM_POLICY",
            approval_model="AUTOMATIC",
            notification_type="ACTUAL",
            action_threshold={"action_threshold_type": "PERCENTAGE", "action_threshold_value": FREEZE_AT},
            definition={"iam_action_definition": {"policy_arn": policy, "roles": list(roles)}},
            execution_role_arn=role.arn,
            subscribers=[{"address": self.topic.arn, "subscription_type": "SNS"}],
            opts=ResourceOptions(parent=self, depends_on=[may]),
        )


def topic_policy(spec: Spec) -> dict[str, Any]:
    """Return a policy that lets only AWS Budgets publish, for this account; IAM controls subscriptions."""
    topic = policies.place(spec).arn("sns", Names(spec).alarms)
    statement = {
        "Sid": "Budgets",
        "Effect": "Allow",
        "Principal": {"Service": "budgets.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": topic,
        "Condition": {"StringEquals": {"aws:SourceAccount": spec.account}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}
