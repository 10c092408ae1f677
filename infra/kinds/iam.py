"""Roles, instance profiles and policies."""

from __future__ import annotations

from collections.abc import Mapping

from infra.aws.account import Account, every
from infra.kinds.finding import of_its_region
from infra.kinds.kind import Find, Inputs, ResourceKind, Step
from infra.kinds.listed import TagsOf, listed
from infra.kinds.thing import Thing, tags_of


def _tags(operation: str, parameter: str) -> TagsOf:
    def tags(account: Account, one: Thing) -> Mapping[str, str]:
        return tags_of(list(every(account.client("iam"), operation, "Tags", **{parameter: one.id})))

    return tags


def _named(operation: str, field: str, what: str) -> Find:
    def find(account: Account, given: Inputs) -> list[str]:
        iam, name = account.client("iam"), str(given["name"])
        try:
            found = getattr(iam, operation)(**{field: name})[what]
        except iam.exceptions.NoSuchEntityException:
            return []
        return [name] if of_its_region(found.get("Tags", ()), given) else []

    return find


def _policies(account: Account, given: Inputs) -> list[str]:
    """Find policies; their tags are read one by one, since the listing has none."""
    iam = account.client("iam")
    named = [one["Arn"] for one in every(iam, "list_policies", "Policies", Scope="Local")
             if one["PolicyName"] == given["name"]]  # fmt: skip
    return [arn for arn in named if of_its_region(list(every(iam, "list_policy_tags", "Tags", PolicyArn=arn)), given)]


def _remove_role(account: Account, one: Thing) -> None:
    iam, name = account.client("iam"), one.id
    for profile in list(every(iam, "list_instance_profiles_for_role", "InstanceProfiles", RoleName=name)):
        iam.remove_role_from_instance_profile(InstanceProfileName=profile["InstanceProfileName"], RoleName=name)
    for policy in list(every(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=name)):
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for inline in list(every(iam, "list_role_policies", "PolicyNames", RoleName=name)):
        iam.delete_role_policy(RoleName=name, PolicyName=inline)
    iam.delete_role(RoleName=name)


def _remove_profile(account: Account, one: Thing) -> None:
    iam = account.client("iam")
    for role in iam.get_instance_profile(InstanceProfileName=one.id)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=one.id, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=one.id)


def _remove_policy(account: Account, one: Thing) -> None:
    iam = account.client("iam")
    for role in list(every(iam, "list_entities_for_policy", "PolicyRoles", PolicyArn=one.id)):
        iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=one.id)
    for version in list(every(iam, "list_policy_versions", "Versions", PolicyArn=one.id)):
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=one.id, VersionId=version["VersionId"])
    iam.delete_policy(PolicyArn=one.id)


KINDS = (
    listed(
        "instance profile", Step.PROFILES, "iam", "list_instance_profiles", "InstanceProfiles",
        *["InstanceProfileName"] * 2, arn="instance-profile/", account_wide=True,
        tags=_tags("list_instance_profile_tags", "InstanceProfileName"), remove=_remove_profile,
        type="aws:iam/instanceProfile:InstanceProfile",
        find=_named("get_instance_profile", "InstanceProfileName", "InstanceProfile"),
    ),
    listed(
        "role", Step.ROLES, "iam", "list_roles", "Roles", *["RoleName"] * 2, arn="role/", account_wide=True,
        tags=_tags("list_role_tags", "RoleName"), remove=_remove_role,
        type="aws:iam/role:Role", find=_named("get_role", "RoleName", "Role"),
    ),
    listed(
        "policy", Step.POLICIES, "iam", "list_policies", "Policies", "Arn", "PolicyName", where={"Scope": "Local"},
        arn="policy/", account_wide=True, tags=_tags("list_policy_tags", "PolicyArn"), remove=_remove_policy,
        type="aws:iam/policy:Policy", find=_policies,
    ),
    ResourceKind("attached policy", type="aws:iam/rolePolicyAttachment:RolePolicyAttachment", made_over=True),
    ResourceKind("inline policy", type="aws:iam/rolePolicy:RolePolicy", made_over=True),
)  # fmt: skip
