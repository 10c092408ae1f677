"""The freeze at the budget's end: people's roles may buy nothing more. No Pulumi here."""

from __future__ import annotations

from infra.spec.campaign import Spec
from infra.spec.names import freeze_policy
from infra.stack.access.policies import EVERYTHING, Statement, allow, place
from infra.stack.access.rights import calls

_PURCHASES = {
    "autoscaling": "CreateAutoScalingGroup SetDesiredCapacity UpdateAutoScalingGroup",
    "ec2": "CreateCapacityReservation CreateFleet CreateNatGateway PurchaseCapacityBlock "
    "PurchaseCapacityBlockExtension RequestSpotInstances RunInstances",
    "eks": "CreateCluster CreateNodegroup",
    "fsx": "CreateFileSystem",
}


def no_purchases() -> list[Statement]:
    """Deny calls that start an hourly bill, on every resource; ending a campaign needs none of them."""
    return [{"Effect": "Deny", "Action": calls(_PURCHASES), "Resource": [EVERYTHING]}]


def freezing(spec: Spec) -> list[Statement]:
    """Allow to attach the denial of purchases to the spec's roles and to detach it; no other policy."""
    account_place = place(spec)
    freeze = f"arn:aws:iam::{account_place.account}:policy/{freeze_policy(account_place.region)}"
    condition = {"ArnEquals": {"iam:PolicyARN": freeze}}
    # A role's name does not tell its path.
    roles = [
        pattern
        for role in spec.money.freeze_roles
        for pattern in (account_place.role(role), account_place.role(f"*/{role}"))
    ]
    return [allow(["iam:AttachRolePolicy", "iam:DetachRolePolicy"], roles, condition)]
