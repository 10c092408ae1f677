"""What the engine says of a failed resource, as both plugins say it, and what is made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.engine import kubernetes_state
from infra.engine.failures import Cause, EngineFailed, ResourceFailure, cause_of
from infra.engine.kubernetes_state import deleted_with_others, without_resources
from tests.tables import Table
from tests.worlds.progress import SilentProgress

TABLE = Table(__file__)

URN = "urn:pulumi:campaign-x::bivouac::bivouac:infra:Network$aws:ec2/subnet:Subnet::gpu"


@TABLE.cases
def test_a_message_of_either_plugin_tells_its_cause(message: str, cause: str) -> None:
    assert cause_of(message) is Cause[cause]


def test_the_error_names_the_resource_awss_words_and_each_cure_once() -> None:
    failures = (
        ResourceFailure(URN, "DependencyViolation: a"),
        ResourceFailure(URN.replace("gpu", "system"), "DependencyViolation: b"),
    )
    error = EngineFailed("pulumi destroy", "campaign-x", failures, "words")
    assert "Subnet gpu: DependencyViolation: a" in str(error) and "Subnet system" in str(error)
    assert str(error.cure).count("remove what holds it") == 1
    assert error.causes == {Cause.DEPENDENCY}


def test_without_a_failed_resource_the_engines_own_words_tell_the_cause() -> None:
    error = EngineFailed("opening", "campaign-x", (), "error: read ./.pulumi/meta.yaml: SlowDown: reduce your rate")
    assert error.causes == {Cause.THROTTLED} and "SlowDown" in str(error)


def test_a_resource_leaves_the_state_with_every_mention_of_it() -> None:
    def resource(urn: str, **more: Any) -> dict[str, Any]:
        return {"urn": urn, "type": "t", **more}

    deployment = {
        "resources": [
            resource("a"),
            resource("b", dependencies=["a"]),
            resource("c", dependencies=["a", "b"], propertyDependencies={"x": ["b"], "y": ["a"], "z": None}),
        ],
        "pending_operations": [{"resource": {"urn": "b"}, "type": "creating"}, {"resource": {"urn": "d"}}],
    }
    resources = without_resources(deployment, {"b"})
    assert [resource["urn"] for resource in resources["resources"]] == ["a", "c"]
    assert resources["resources"][1]["dependencies"] == ["a"]
    assert resources["resources"][1]["propertyDependencies"] == {"x": [], "y": ["a"], "z": []}
    assert [operation["resource"]["urn"] for operation in resources["pending_operations"]] == ["d"]


def test_a_whole_deletion_forgets_what_goes_with_the_cluster_and_a_provider_that_nothing_else_needs() -> None:
    def resource(urn: str, type: str, **more: Any) -> dict[str, Any]:
        return {"urn": urn, "type": type, **more}

    resources = [
        resource("cluster", "aws:eks/cluster:Cluster", provider="aws::1"),
        resource("aws", "pulumi:providers:aws"),
        resource("kubernetes", "pulumi:providers:kubernetes"),
        resource("namespace", "kubernetes:core/v1:Namespace", provider="kubernetes::2", deletedWith="cluster"),
        resource("vpc", "aws:ec2/vpc:Vpc", provider="aws::1", deletedWith=""),
    ]
    assert deleted_with_others({"resources": resources}) == {"namespace", "kubernetes"}
    resources.append(resource("apart", "kubernetes:core/v1:Secret", provider="kubernetes::2"))
    assert deleted_with_others({"resources": resources}) == {"namespace"}
    assert deleted_with_others({}) == set()


def test_the_closer_forgets_what_is_in_the_cluster_and_asks_nobody_whether_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes_state, "_cluster", lambda context: pytest.fail("it asked the cluster"))
    notes = list[str]()
    context: Any = SimpleNamespace(enters_cluster=False, progress=SilentProgress(notes))
    inside = {"urn": "a", "type": "kubernetes:core/v1:Namespace"}
    deployment = {"resources": [inside, {"urn": "b", "type": "aws:eks/cluster:Cluster"}]}
    kubernetes = kubernetes_state.forget_kubernetes(context, deployment)
    assert kubernetes is not None and [resource["urn"] for resource in kubernetes["resources"]] == ["b"]
    assert notes == [
        "the cluster is not entered by the closer: 1 Kubernetes objects are gone with it and removed from the state"
    ]
