"""Kubernetes' own rights over the graph: each grant is a role, and a binding of it to one account."""

from __future__ import annotations

from typing import Any

from pulumi import ResourceOptions

from infra.stack.cluster.rights import grant_everywhere, grant_here, rule
from tests.graph.engine import Graph, build

GROUP = "rbac.authorization.k8s.io"


def granted() -> Graph:
    def program() -> None:
        rules = [rule("batch", ["jobs", "jobs/status"], ("list", "get")), rule("", ["pods"], ("get",))]
        made = [*grant_here("worker", rules, ResourceOptions(), ResourceOptions())]
        made += grant_everywhere("worker", "worker-of-nodes", rules[:1], ResourceOptions(), ResourceOptions())
        assert len(made) == 4

    return build(program)


JOBS = {"apiGroups": ["batch"], "resources": ["jobs", "jobs/status"], "verbs": ["get", "list"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
WORKER = [{"kind": "ServiceAccount", "name": "worker", "namespace": "campaign"}]


def test_a_grant_in_the_namespace_and_one_in_the_cluster_have_roles_of_their_own() -> None:
    graph = granted()

    def inputs(kind: str) -> dict[str, Any]:
        inputs = graph.one(kind, "worker").inputs
        return {name: inputs[name] for name in inputs if name not in ("apiVersion", "kind")}

    here, everywhere = {"name": "worker", "namespace": "campaign"}, {"name": "worker-of-nodes"}
    assert inputs("Role") == {"metadata": here, "rules": [JOBS, PODS]}
    assert inputs("RoleBinding") == {
        "metadata": here, "subjects": WORKER, "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "worker"},
    }  # fmt: skip
    assert inputs("ClusterRole") == {"metadata": everywhere, "rules": [JOBS]}
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "worker-of-nodes"}
    assert inputs("ClusterRoleBinding") == {"metadata": everywhere, "subjects": WORKER, "roleRef": ref}
