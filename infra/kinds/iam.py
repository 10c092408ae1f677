"""Roles, instance profiles and policies."""

from __future__ import annotations

from collections.abc import Mapping

from infra.aws.account import Account, every
from infra.kinds.finding import of_its_region
from infra.kinds.kind import Find, Inputs, ResourceKind, Step
from infra.kinds.listed import TagsOf, listed_kind
from infra.kinds.thing import Thing, tags_of


def _tags(operation: str, parameter: str) -> TagsOf:
    def tags(account: Account, thing: Thing) -> Mapping[str, str]:
        return tags_of(list(every(account.client("iam"), operation, "Tags", **{parameter: thing.id})))

    return tags


def _by_name(operation: str, field: str, member: str) -> Find:
    def find(account: Account, inputs: Inputs) -> list[str]:
        iam, name = account.client("iam"), str(inputs["name"])
        try:
            document = getattr(iam, operation)(**{field: name})[member]
        except iam.exceptions.NoSuchEntityException:
            return []
        return [name] if of_its_region(document.get("Tags", ()), inputs) else []

    return find


def _policies(account: Account, inputs: Inputs) -> list[str]:
    """Find policies; their tags are read one by one, since the listing has none."""
    iam = account.client("iam")
    arns = [policy["Arn"] for policy in every(iam, "list_policies", "Policies", Scope="Local")
             if policy["PolicyName"] == inputs["name"]]  # fmt: skip
    return [arn for arn in arns if of_its_region(list(every(iam, "list_policy_tags", "Tags", PolicyArn=arn)), inputs)]


def _remove_role(account: Account, thing: Thing) -> None:
    iam, name = account.client("iam"), thing.id
    for profile in list(every(iam, "list_instance_profiles_for_role", "InstanceProfiles", RoleName=name)):
        iam.remove_role_from_instance_profile(InstanceProfileName=profile["InstanceProfileName"], RoleName=name)
    for policy in list(every(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=name)):
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for inline in list(every(iam, "list_role_policies", "PolicyNames", RoleName=name)):
        iam.delete_role_policy(RoleName=name, PolicyName=inline)
    iam.delete_role(RoleName=name)


def _remove_profile(account: Account, thing: Thing) -> None:
    iam = account.client("iam")
    for role in iam.get_instance_profile(InstanceProfileName=thing.id)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=thing.id, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=thing.id)


def _remove_policy(account: Account, thing: Thing) -> None:
    iam = account.client("iam")
    for role in list(every(iam, "list_entities_for_policy", "PolicyRoles", PolicyArn=thing.id)):
        iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=thing.id)
    for version in list(every(iam, "list_policy_versions", "Versions", PolicyArn=thing.id)):
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=thing.id, VersionId=version["VersionId"])
    iam.delete_policy(PolicyArn=thing.id)


KINDS = (
    listed_kind(
        "instance profile", Step.PROFILES, "iam", "list_instance_profiles", "InstanceProfiles",
        *["InstanceProfileName"] * 2, arn="instance-profile/", account_wide=True,
        tags=_tags("list_instance_profile_tags", "InstanceProfileName"), remove=_remove_profile,
        type="aws:iam/instanceProfile:InstanceProfile",
        find=_by_name("get_instance_profile", "InstanceProfileName", "InstanceProfile"),
    ),
    listed_kind(
        "role", Step.ROLES, "iam", "list_roles", "Roles", *["RoleName"] * 2, arn="role/", account_wide=True,
        tags=_tags("list_role_tags", "RoleName"), remove=_remove_role,
        type="aws:iam/role:Role", find=_by_name("get_role", "RoleName", "Role"),
    ),
    listed_kind(
        "policy", Step.POLICIES, "iam", "list_policies", "Policies", "Arn", "PolicyName", request={"Scope": "Local"},
        arn="policy/", account_wide=True, tags=_tags("list_policy_tags", "PolicyArn"), remove=_remove_policy,
        type="aws:iam/policy:Policy", find=_policies,
    ),
    ResourceKind("attached policy", type="aws:iam/rolePolicyAttachment:RolePolicyAttachment", made_over=True),
    ResourceKind("inline policy", type="aws:iam/rolePolicy:RolePolicy", made_over=True),
)  # fmt: skip
