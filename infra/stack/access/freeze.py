"""The freeze at the budget's end: people's roles may buy nothing more. No Pulumi here."""

from __future__ import annotations

from infra.spec.campaign import Spec
from infra.spec.names import freeze_policy
from infra.stack.access.policies import EVERYTHING, Statement, allow, place

PURCHASES = (
    "autoscaling:CreateAutoScalingGroup",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:UpdateAutoScalingGroup",
    "ec2:CreateCapacityReservation",
    "ec2:CreateFleet",
    "ec2:CreateNatGateway",
    "ec2:PurchaseCapacityBlock",
    "ec2:PurchaseCapacityBlockExtension",
    "ec2:RequestSpotInstances",
    "ec2:RunInstances",
    "eks:CreateCluster",
    "eks:CreateNodegroup",
    "fsx:CreateFileSystem",
)
"""Calls that start an hourly bill; ending a campaign needs none of them."""


def no_purchases() -> list[Statement]:
    """Deny purchases on every resource."""
    return [{"Effect": "Deny", "Action": list(PURCHASES), "Resource": [EVERYTHING]}]


def freezing(spec: Spec) -> list[Statement]:
    """Allow to attach the denial of purchases to the spec's roles and to detach it; no other policy."""
    where = place(spec)
    freeze = f"arn:aws:iam::{where.account}:policy/{freeze_policy(where.region)}"
    only = {"ArnEquals": {"iam:PolicyARN": freeze}}
    # A role's name does not tell its path.
    roles = [pattern for role in spec.money.freeze_roles for pattern in (where.role(role), where.role(f"*/{role}"))]
    return [allow(["iam:AttachRolePolicy", "iam:DetachRolePolicy"], roles, only)]
