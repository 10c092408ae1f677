"""What `bivouac grant` prints, applied to a real API server: whom it lets do what, and whom it lets do nothing."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.models.authorization_v1 import SelfSubjectRulesReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authorization_v1 import SelfSubjectRulesReview
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node, Pod, Secret

from infra.cluster import attempts
from infra.cluster.kubernetes import JobSet
from infra.spec.campaign import Spec
from infra.standing.grant import Subject, grant_text
from infra.standing.openings import openings
from infra.standing.rights import Right, rights
from tests.waiting import until as eventually
from tests.worlds.control_plane import config, plane
from tests.worlds.standing.cluster import (
    OTHERS,
    SPACE,
    SPEC,
    STRANGER,
    Cluster,
    cluster,
    code,
    install_jobset,
    opened_spec,
    spec,
)

__all__ = ["cluster", "config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]
Grants = set[tuple[str, str, str, str]]
"""(verb, group, resource, name or *)."""


def allowed(tenant: Client, space: str) -> Grants:
    """What the API server's authorizer lists for this login in a namespace."""
    review = tenant.create(SelfSubjectRulesReview(spec=SelfSubjectRulesReviewSpec(namespace=space)))
    assert review.status is not None and not review.status.incomplete
    return {
        (verb, group, resource, name)
        for rule in review.status.resourceRules
        for verb in rule.verbs
        for group in rule.apiGroups or []
        for resource in rule.resources or []
        for name in rule.resourceNames or ["*"]
    }


def spec_of(grant: str) -> Spec:
    """The spec whose grant it is; each has a namespace of its own."""
    if grant == "opened":
        return opened_spec("team-opened")
    changes = {"plain": {}, "queue": {"namespace": "team-queued", "queue": "gpus", "priority": "high"}}[grant]
    return spec(cluster=SPEC["cluster"] | changes)


def listed(table: list[Right]) -> Grants:
    return {
        (verb, right.group, resource, name)
        for right in table
        for verb in right.verbs
        for resource in right.resources
        for name in right.names or ["*"]
    }


@pytest.mark.parametrize("grant", ["plain", "queue", "opened"])
@pytest.mark.parametrize("account", ["driver", "steward"])
def test_an_account_may_what_the_table_says_and_no_more(
    account: str, grant: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = spec_of(grant)
    assert wanted.cluster is not None
    cluster.kubectl("apply", "-f", "-", text=grant_text(wanted, wanted.cluster, Subject()))
    anybody = allowed(cluster.tenant(monkeypatch, STRANGER, OTHERS), OTHERS)
    table = [right for right in rights(wanted, wanted.cluster) if right.account == account]
    space = wanted.cluster.namespace
    tenant = cluster.tenant(monkeypatch, account, space)
    assert allowed(tenant, space) - anybody == listed(table)
    everywhere = [right for right in table if right.everywhere]
    assert allowed(tenant, OTHERS) - anybody == listed(everywhere)
    assert {verb for right in everywhere for verb in right.verbs} <= {"get", "list", "watch"}


@pytest.mark.parametrize("account", ["trainer", "archive"])
def test_the_pods_of_a_job_may_nothing(account: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    anybody = allowed(cluster.tenant(monkeypatch, STRANGER, OTHERS), OTHERS)
    assert allowed(cluster.tenant(monkeypatch, account), SPACE) <= anybody


def test_the_driver_makes_and_removes_a_campaigns_objects(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very objects of `openings`, and the calls of `infra.cluster.attempts`."""
    install_jobset(cluster)
    tenant, section = cluster.tenant(monkeypatch), spec().cluster
    assert section is not None
    attempts.create_config(tenant, "on-racks-1", {}, {"a": "1"})
    attempts.create_config(tenant, "on-racks-1", {}, {"a": "2"})
    assert tenant.get(ConfigMap, "on-racks-1").data == {"a": "2"}
    documents = dict(openings(spec(), section))
    gang: Any = tenant.create(from_dict(documents["the gang of the health check"]))
    tenant.apply(from_dict(documents["the steward"]), force=True)
    deployments: list[Any] = list(tenant.list(Deployment))
    assert [deployment.metadata.name for deployment in deployments] == ["steward"]
    pods = eventually(lambda: list(tenant.list(Pod, labels={"bivouac.dev/campaign": "on-racks"})))
    assert pods[0].spec.nodeSelector in ({"gpu": "h100"}, None)
    attempts.remove(tenant, JobSet, gang.metadata.name)
    tenant.delete(Deployment, "steward")
    tenant.delete(ConfigMap, "on-racks-1")
    eventually(lambda: not list(tenant.list(Pod)))


def test_the_driver_reaches_nothing_of_others(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = cluster.tenant(monkeypatch)
    assert tenant.get(Secret, "s3-login").data
    node = {"spec": {"unschedulable": True}}
    for call in (
        lambda: tenant.get(Secret, "payroll"),
        lambda: list(tenant.list(Secret)),
        lambda: tenant.get(Secret, "s3-login", namespace=OTHERS),
        lambda: list(tenant.list(Pod, namespace=OTHERS)),
        lambda: tenant.patch(Node, "rack-1", node),
        lambda: tenant.delete(Node, "rack-1"),
        lambda: tenant.create(Namespace(metadata=ObjectMeta(name="team-c"))),
        lambda: tenant.delete(Namespace, SPACE),
        lambda: cluster.tenant(monkeypatch, "steward").patch(Node, "rack-1", node),
    ):
        assert code(call) == 403


def test_a_pod_of_the_tenant_names_no_path_of_a_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = cluster.tenant(monkeypatch)
    container = {"name": "one", "image": "one", "volumeMounts": [{"name": "root", "mountPath": "/root"}]}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": SPACE},
        "spec": {"containers": [container], "volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    }  # fmt: skip
    with pytest.raises(ApiError, match="hostPath"):
        tenant.create(from_dict(pod))
