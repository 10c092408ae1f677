"""How roles, placement groups, keys, policies, peerings and budget actions are found again: see `adoption`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infra.aws.account import Account, every
from infra.spec.names import REGION_TAG

Inputs = Mapping[str, Any]
"""As the program gave them and the plugin completed them; what the program leaves to AWS is not among them."""
Find = Callable[[Account, Inputs], list[str]]
"""Ids, as the provider writes them, of what has these inputs; the newest attempt's is not told from older ones."""


def tags_of_its_own(given: Inputs) -> dict[str, str]:
    """Raises `KeyError` without any: by no tags all of the account would match."""
    tags = dict(given["tags"])
    if not tags:
        raise KeyError("tags")
    return tags


def tagged_as(given: Inputs) -> list[dict[str, Any]]:
    """EC2's filters by all tags."""
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags_of_its_own(given).items()]


def _peerings(account: Account, given: Inputs) -> list[str]:
    pages = account.client("ec2").get_paginator("describe_vpc_peering_connections").paginate(Filters=tagged_as(given))
    found = [one for page in pages for one in page["VpcPeeringConnections"]]
    return [one["VpcPeeringConnectionId"] for one in found if one["Status"]["Code"] in ("active", "pending-acceptance")]


def _placement_groups(account: Account, given: Inputs) -> list[str]:
    filters = [{"Name": "group-name", "Values": [given["name"]]}]
    found = account.client("ec2").describe_placement_groups(Filters=filters)["PlacementGroups"]
    return [group["GroupName"] for group in found if group["State"] != "deleted"]


def _of_its_region(tags: Sequence[Mapping[str, str]], given: Inputs) -> bool:
    """What IAM knows by this name may be of the campaign of the same name in another region."""
    found = {one["Key"]: one["Value"] for one in tags}
    return found.get(REGION_TAG) == (given.get("tags") or {}).get(REGION_TAG)


def _in_iam(operation: str, field: str, what: str) -> Callable[[Account, Inputs], list[str]]:
    def find(account: Account, given: Inputs) -> list[str]:
        iam, name = account.client("iam"), str(given["name"])
        try:
            found = getattr(iam, operation)(**{field: name})[what]
        except iam.exceptions.NoSuchEntityException:
            return []
        return [name] if _of_its_region(found.get("Tags", ()), given) else []

    return find


def _policies(account: Account, given: Inputs) -> list[str]:
    """Their listing tells no tags."""
    iam = account.client("iam")
    pages = iam.get_paginator("list_policies").paginate(Scope="Local")
    named = [one["Arn"] for page in pages for one in page["Policies"] if one["PolicyName"] == given["name"]]
    return [arn for arn in named if _of_its_region(list(every(iam, "list_policy_tags", "Tags", PolicyArn=arn)), given)]


def _keys(account: Account, given: Inputs) -> list[str]:
    """Only keys of the account's own can be told by their tags; a key that is on its way out is not taken back."""
    kms, wanted, found = account.client("kms"), tags_of_its_own(given), []
    for page in kms.get_paginator("list_keys").paginate():
        for key in page["Keys"]:
            known = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
            if known["KeyManager"] == "CUSTOMER" and known["KeyState"] == "Enabled":
                listed = every(kms, "list_resource_tags", "Tags", KeyId=key["KeyId"])
                tags = {one["TagKey"]: one["TagValue"] for one in listed}
                found += [key["KeyId"]] if wanted.items() <= tags.items() else []
    return found


def _aliases(account: Account, given: Inputs) -> list[str]:
    pages = account.client("kms").get_paginator("list_aliases").paginate()
    return [one["AliasName"] for page in pages for one in page["Aliases"] if one["AliasName"] == given["name"]]


def _budget_actions(account: Account, given: Inputs) -> list[str]:
    owner, budget = account.identity()["Account"], given["budgetName"]
    asked = {"AccountId": owner, "BudgetName": budget}
    seen = every(account.client("budgets"), "describe_budget_actions_for_budget", "Actions", **asked)
    return [f"{owner}:{one['ActionId']}:{budget}" for one in seen]


FURTHER_FINDERS: dict[str, Find] = {
    "aws:ec2/vpcPeeringConnection:VpcPeeringConnection": _peerings,
    "aws:ec2/placementGroup:PlacementGroup": _placement_groups,
    "aws:iam/role:Role": _in_iam("get_role", "RoleName", "Role"),
    "aws:iam/instanceProfile:InstanceProfile": _in_iam(
        "get_instance_profile", "InstanceProfileName", "InstanceProfile"
    ),
    "aws:iam/policy:Policy": _policies,
    "aws:kms/key:Key": _keys,
    "aws:kms/alias:Alias": _aliases,
    "aws:budgets/budgetAction:BudgetAction": _budget_actions,
}
