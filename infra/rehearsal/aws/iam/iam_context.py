"""A call of IAM itself, for IAM: the identity or policy, its tags, and the context for its own conditions.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html
"""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]
UNDER_BOUNDARY = {
    f"{verb}{kind}{what}"
    for kind in ("Role", "User")
    for verb, what in (
        ("Attach", "Policy"), ("Detach", "Policy"), ("Put", "Policy"), ("Delete", "Policy"),
        ("Delete", "PermissionsBoundary"),
    )
}  # fmt: skip
"""Operations whose iam:PermissionsBoundary is the identity's; others have it in the request."""


def resources(world: World, operation: str, params: Parameters) -> list[str] | None:
    account = f"arn:aws:iam::{world.account}:"
    path = params.get("Path") or "/"
    # Before the role: a role is added to the profile.
    if "InstanceProfileName" in params:
        return [f"{account}instance-profile{path}{params['InstanceProfileName']}"]
    if "RoleName" in params:
        return arns_of_role(world, params["RoleName"], params)
    for key, kind in (("UserName", "user"), ("GroupName", "group"), ("PolicyName", "policy")):
        if key in params:
            return [f"{account}{kind}{path}{params[key]}"]
    if "PolicyArn" in params:
        return [params["PolicyArn"]]
    if "AWSServiceName" in params:
        return [f"{account}role/aws-service-role/{params['AWSServiceName']}/*"]
    if "OpenIDConnectProviderArn" in params:
        return [params["OpenIDConnectProviderArn"]]
    return ["*"] if operation.startswith("List") else None


def arns_of_role(world: World, name: str, params: Parameters) -> list[str]:
    """Return the ARNs of a role, with its own path if it exists."""
    arns = [role.arn for role in list(world.backend("iam").get_roles()) if role.name == name]
    return arns or [f"arn:aws:iam::{world.account}:role{params.get('Path') or '/'}{name}"]


def context(world: World, operation: str, params: Parameters) -> dict[str, list[str]]:
    context_values = dict[str, list[str]]()
    if "PolicyArn" in params:
        context_values["iam:policyarn"] = [params["PolicyArn"]]
    if "AWSServiceName" in params:
        context_values["iam:awsservicename"] = [params["AWSServiceName"]]
    boundary = params.get("PermissionsBoundary")
    if operation in UNDER_BOUNDARY:
        boundary = _boundary(world, params)
    if boundary:
        context_values["iam:permissionsboundary"] = [boundary]
    return context_values


def _boundary(world: World, params: Parameters) -> str | None:
    roles = [role for role in list(world.backend("iam").get_roles()) if role.name == params.get("RoleName")]
    return roles[0].permissions_boundary_arn if roles else None


def tags(world: World, arn: str) -> dict[str, str]:
    """Return the tags of a role or a policy."""
    iam = world.backend("iam")
    roles = [role for role in list(iam.get_roles()) if role.arn == arn]
    roles += [iam.managed_policies[arn]] if arn in iam.managed_policies else []
    role_tags = roles[0].tags if roles else {}
    pairs = role_tags.values() if isinstance(role_tags, dict) else role_tags or ()
    return {str(tag["Key"]): str(tag["Value"]) for tag in pairs}
