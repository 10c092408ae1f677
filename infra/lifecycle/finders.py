"""How placement groups, keys, policies, peerings and budget actions are found again: see `adoption`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.account import Account

Inputs = Mapping[str, Any]


def _peerings(account: Account, given: Inputs) -> list[str]:
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in (given.get("tags") or {}).items()]
    pages = account.client("ec2").get_paginator("describe_vpc_peering_connections").paginate(Filters=filters)
    found = [one for page in pages for one in page["VpcPeeringConnections"]]
    return [one["VpcPeeringConnectionId"] for one in found if one["Status"]["Code"] in ("active", "pending-acceptance")]


def _placement_groups(account: Account, given: Inputs) -> list[str]:
    filters = [{"Name": "group-name", "Values": [given["name"]]}]
    found = account.client("ec2").describe_placement_groups(Filters=filters)["PlacementGroups"]
    return [group["GroupName"] for group in found if group["State"] != "deleted"]


def _policies(account: Account, given: Inputs) -> list[str]:
    pages = account.client("iam").get_paginator("list_policies").paginate(Scope="Local")
    return [one["Arn"] for page in pages for one in page["Policies"] if one["PolicyName"] == given["name"]]


def _keys(account: Account, given: Inputs) -> list[str]:
    """Only keys of the account's own can be told by their tags; a key that is on its way out is not taken back."""
    kms, wanted, found = account.client("kms"), dict(given.get("tags") or {}), []
    for page in kms.get_paginator("list_keys").paginate():
        for key in page["Keys"]:
            known = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
            if known["KeyManager"] == "CUSTOMER" and known["KeyState"] == "Enabled":
                tags = {one["TagKey"]: one["TagValue"] for one in kms.list_resource_tags(KeyId=key["KeyId"])["Tags"]}
                found += [key["KeyId"]] if wanted.items() <= tags.items() else []
    return found


def _aliases(account: Account, given: Inputs) -> list[str]:
    pages = account.client("kms").get_paginator("list_aliases").paginate()
    return [one["AliasName"] for page in pages for one in page["Aliases"] if one["AliasName"] == given["name"]]


def _budget_actions(account: Account, given: Inputs) -> list[str]:
    owner, budget = account.identity()["Account"], given["budgetName"]
    seen = account.client("budgets").describe_budget_actions_for_budget(AccountId=owner, BudgetName=budget)["Actions"]
    return [f"{owner}:{one['ActionId']}:{budget}" for one in seen]


FURTHER_FINDERS = {
    "aws:ec2/vpcPeeringConnection:VpcPeeringConnection": _peerings,
    "aws:ec2/placementGroup:PlacementGroup": _placement_groups,
    "aws:iam/policy:Policy": _policies,
    "aws:kms/key:Key": _keys,
    "aws:kms/alias:Alias": _aliases,
    "aws:budgets/budgetAction:BudgetAction": _budget_actions,
}
