"""What the engine says of a failed resource, as both plugins say it, and what is made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.engine import kubernetes_state
from infra.engine.failures import Cause, EngineFailed, ResourceFailure, cause_of
from infra.engine.kubernetes_state import without_resources

URN = "urn:pulumi:campaign-x::bivouac::bivouac:infra:Network$aws:ec2/subnet:Subnet::gpu"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("operation error EC2: DeleteSubnet, https response error StatusCode: 400, RequestID: 1, api error "
         "DependencyViolation: The subnet 'subnet-0a1b2c3d' has dependencies and cannot be deleted.", Cause.DEPENDENCY),
        ("deleting Role x: DeleteRole: AccessDenied: User is not authorized to perform: iam:DeleteRole", Cause.DENIED),
        ("api error UnauthorizedOperation: You are not authorized to perform this operation.", Cause.DENIED),
        ("StatusCode: 503, api error RequestLimitExceeded: Request limit exceeded.", Cause.THROTTLED),
        ("ThrottlingException: Rate exceeded", Cause.THROTTLED),
        ("api error ExpiredToken: The security token included in the request is expired", Cause.CREDENTIALS),
        ("VpcLimitExceeded: The maximum number of VPCs has been reached.", Cause.QUOTA),
        ("UnauthorizedOperation: You are not authorized to perform this operation. User: arn:aws:iam::1:user/a is "
         "not authorized to perform: ec2:RunInstances with an explicit deny in a service control policy",
         Cause.FORBIDDEN),
        ("AsgInstanceLaunchFailures: There are not enough free addresses in subnet 'subnet-0a1b2c3d' to satisfy the "
         "requested number of instances.", Cause.ADDRESSES),
        ("Could not launch. VcpuLimitExceeded - You have requested more vCPU capacity than your limit", Cause.QUOTA),
        ("AsgInstanceLaunchFailures: InsufficientInstanceCapacity - We currently do not", Cause.CAPACITY),
        ("EntityAlreadyExists: Role with name bivouac-x-steward already exists.", Cause.TAKEN),
        ("BucketAlreadyExists: The requested bucket name is not available", Cause.TAKEN),
        ("InvalidAMIID.NotFound: The image id '[ami-0]' does not exist", Cause.INVALID),
        ("node group x:x-gpu DELETE_FAILED: InternalFailure: stuck", Cause.SERVER),
        ("timeout while waiting for state to become 'DELETED' (last state: 'DELETING', 45m0s)", Cause.TIMED_OUT),
        ("can't delete Helm Release with unreachable cluster. Reason: dial tcp: no such host", Cause.CLUSTER),
        ("configured Kubernetes cluster is unreachable: unable to load schema information from the API server: the "
         "server has asked for the client to provide credentials", Cause.STRANGER),
        ("configured Kubernetes cluster is unreachable: unable to load Kubernetes client configuration: dial tcp: i/o "
         "timeout", Cause.CLUSTER),
        ("read tcp 10.0.0.1:3->52.0.0.1:443: read: connection reset by peer", Cause.SERVER),
        ("something that nobody has seen before", Cause.OTHER),
    ],
)  # fmt: skip
def test_a_message_of_either_plugin_tells_its_cause(message: str, cause: Cause) -> None:
    assert cause_of(message) is cause


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
    left = without_resources(deployment, {"b"})
    assert [one["urn"] for one in left["resources"]] == ["a", "c"]
    assert left["resources"][1]["dependencies"] == ["a"]
    assert left["resources"][1]["propertyDependencies"] == {"x": [], "y": ["a"], "z": []}
    assert [one["resource"]["urn"] for one in left["pending_operations"]] == ["d"]


def test_the_closer_forgets_what_is_in_the_cluster_and_asks_nobody_whether_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes_state, "_cluster", lambda context: pytest.fail("it asked the cluster"))
    notes = list[str]()
    context: Any = SimpleNamespace(enters_cluster=False, progress=SimpleNamespace(note=notes.append))
    inside = {"urn": "a", "type": "kubernetes:core/v1:Namespace"}
    deployment = {"resources": [inside, {"urn": "b", "type": "aws:eks/cluster:Cluster"}]}
    left = kubernetes_state.forget_kubernetes(context, deployment)
    assert left is not None and [one["urn"] for one in left["resources"]] == ["b"]
    assert notes == [
        "the cluster is not entered by the closer: 1 Kubernetes objects are gone with it and removed from the state"
    ]
