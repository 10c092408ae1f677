"""Kubernetes RBAC: rules, and roles and bindings for the campaign's service accounts."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi import ResourceOptions
from pulumi_kubernetes.meta.v1 import ObjectMetaArgsDict
from pulumi_kubernetes.rbac import v1 as rbac
from pulumi_kubernetes.rbac.v1 import PolicyRuleArgs, RoleRefArgs, SubjectArgs

from infra.spec.names import NAMESPACE

WATCH = ("get", "list", "watch")
CHANGE = (*WATCH, "create", "delete", "patch", "update")
_GROUP = "rbac.authorization.k8s.io"


def rule(group: str, resources: list[str], verbs: Sequence[str]) -> PolicyRuleArgs:
    return PolicyRuleArgs(api_groups=[group], resources=resources, verbs=sorted(verbs))


def grant_here(
    account: str, rules: Sequence[PolicyRuleArgs], role: ResourceOptions, binding: ResourceOptions
) -> list[pulumi.Resource]:
    """Grant rules to `account` in the campaign's namespace; `role` and `binding` are the options of these two."""
    place: ObjectMetaArgsDict = {"name": account, "namespace": NAMESPACE}
    to = RoleRefArgs(api_group=_GROUP, kind="Role", name=account)
    return [
        rbac.Role(account, metadata=place, rules=list(rules), opts=role),
        rbac.RoleBinding(account, metadata=place, role_ref=to, subjects=[_subject(account)], opts=binding),
    ]


def grant_everywhere(
    account: str, name: str, rules: Sequence[PolicyRuleArgs], role: ResourceOptions, binding: ResourceOptions
) -> list[pulumi.Resource]:
    """Grant rules to `account` in the whole cluster; `name`: of its role and binding."""
    to = RoleRefArgs(api_group=_GROUP, kind="ClusterRole", name=name)
    return [
        rbac.ClusterRole(account, metadata={"name": name}, rules=list(rules), opts=role),
        rbac.ClusterRoleBinding(
            account, metadata={"name": name}, role_ref=to, subjects=[_subject(account)], opts=binding
        ),
    ]


def _subject(account: str) -> SubjectArgs:
    return SubjectArgs(kind="ServiceAccount", name=account, namespace=NAMESPACE)
