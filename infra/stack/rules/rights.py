"""Rules for the rights of roles: every statement, every attached policy, and the trusted service. The lists are
reviewed: a role that needs more is added here with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from infra.plan.checks.finding import Draft, error
from infra.spec.campaign import Spec
from infra.stack.access.policies import AccountPlace
from infra.stack.access.rights import rights
from infra.stack.rules.graph import UNKNOWN, Graph, GraphResource

TO_EVERYTHING = {
    "autoscaling:DescribeAutoScalingGroups": "the API knows no resource for it",
    "autoscaling:DescribeScalingActivities": "the API knows no resource for it",
    "cloudwatch:GetMetricData": "the API knows no resource for it",
    "ec2:DescribeInstanceStatus": "the API knows no resource for it",
    "ec2:DescribeInstances": "the API knows no resource for it",
    "ecr:GetAuthorizationToken": "a token is the registry's, not a repository's",
}
"""Action -> why it may have every resource. None of them changes anything."""
LISTS = {"closer": tuple(rights("closer_looks", AccountPlace("", ""))[0]["Action"])}
"""Policy (by its name in the program) -> what else it may look at everywhere: the certificate lists all there is."""
MANAGED = {
    "cluster": {"AmazonEKSClusterPolicy"},
    "node": {"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"},
    "cni": {"AmazonEKS_CNI_Policy"},
    "builder": {"AmazonSSMManagedInstanceCore"},
}
"""Role (by its name in the program) -> AWS's policies that EKS's or SSM's documentation demands for it."""
_OF_AWS = "arn:aws:iam::aws:policy/"
_READ = {"Role", "RolePolicy", "RolePolicyAttachment", "Policy", "InstanceProfile"}
_ALL_OF_A_SERVICE = re.compile(r"^(\*|arn:[^:]*:[^:]*:[^:]*:[^:]*:\*+)$")


CEILINGS = ("boundary", "foundation-boundary")
"""The policies (by their names in the program) that limit roles and grant nothing; they may name groups of actions."""


def no_wildcard_rights(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """No role may use all actions of a service or change every resource, however it got its rights; each trusts one AWS
    service."""
    for resource in graph:
        if resource.type.startswith("aws:iam/") and resource.kind not in _READ:
            cure = "a RolePolicy, or a RolePolicyAttachment of a policy listed in infra/stack/rules/rights.py"
            yield error(resource, "gives rights in a way that no rule reads", seen=resource.type, cure=cure)
    for policy in graph.of("RolePolicy", "Policy"):
        if policy.kind == "Policy" and policy.name in CEILINGS:
            continue
        for statement in _statements(policy.inputs.get("policy")):
            yield from _statement_drafts(policy, statement)
    for attachment in graph.of("RolePolicyAttachment"):
        yield from _attachment_drafts(graph, attachment)
    for role in graph.of("Role"):
        if role.type.startswith("aws:"):
            yield from _role_drafts(role)


def _statement_drafts(policy: GraphResource, statement: dict[str, Any]) -> Iterator[Draft]:
    if statement["Effect"] != "Allow":
        return
    if inverted_keys := sorted({"NotAction", "NotResource"} & set(statement)):
        cure = "name what it needs: Action and Resource"
        yield error(policy, "allows all but what it names", seen=", ".join(inverted_keys), cure=cure)
        return
    actions = _as_list(statement["Action"])
    if wild := [action for action in actions if "*" in action or "?" in action]:
        yield error(policy, "allows whole groups of actions", seen=", ".join(wild), cure="name each action")
    if any(_ALL_OF_A_SERVICE.match(resource) for resource in _as_list(statement.get("Resource", "*"))):
        reviewed_actions = {action.lower() for action in (*TO_EVERYTHING, *LISTS.get(policy.name, ()))}
        if loose := [action for action in actions if action.lower() not in reviewed_actions]:
            message = "allows for every resource what could be limited to some"
            cure = "name the resources, by ARN or by prefix; or say why not in TO_EVERYTHING of this module"
            yield error(policy, message, seen=", ".join(loose), cure=cure)


def _attachment_drafts(graph: Graph, attachment: GraphResource) -> Iterator[Draft]:
    roles = graph.origins(attachment, "role", "Role")
    arn = str(attachment.inputs.get("policyArn"))
    allowed_arns = {_OF_AWS + name for role in roles for name in MANAGED.get(role.name, ())}
    if len(roles) != 1 or arn not in allowed_arns:
        detail = f"{'unknown' if arn == UNKNOWN else arn} to {', '.join(role.name for role in roles) or 'whom?'}"
        cure = "statements of the role's own; or the policy in MANAGED, infra/stack/rules/rights.py, with its reason"
        yield error(attachment, "attaches a policy that is not this role's", seen=detail, cure=cure)


def _role_drafts(role: GraphResource) -> Iterator[Draft]:
    if inline_fields := [name for name in ("managedPolicyArns", "inlinePolicies") if role.inputs.get(name)]:
        cure = "a resource each, so that each is seen"
        yield error(role, "carries rights of its own", seen=", ".join(inline_fields), cure=cure)
    if not role.inputs.get("permissionsBoundary"):
        cure = "boundary_arn of infra/stack/access/ceiling.py"
        yield error(role, "is under no permissions boundary", seen="no permissionsBoundary", cure=cure)
    for statement in _statements(role.inputs.get("assumeRolePolicy")):
        principal = statement.get("Principal")
        services = principal.get("Service") if isinstance(principal, dict) and len(principal) == 1 else None
        if statement["Effect"] == "Allow" and (not isinstance(services, str) or "*" in services):
            message, cure = "is lent to more than one AWS service", "one service as Principal"
            yield error(role, message, seen=json.dumps(principal or statement.get("NotPrincipal")), cure=cure)


def _statements(document: Any) -> list[dict[str, Any]]:
    """Return the statements; none of a document that only AWS will complete, which is judged once known."""
    if document in (None, UNKNOWN):
        return []
    content = json.loads(document) if isinstance(document, str) else document
    return [dict(statement) for statement in _as_list(content["Statement"])]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
