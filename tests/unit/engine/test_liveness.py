"""What an interrupted engine left is judged by AWS's own word: coming, there, or failed."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from infra.engine.adoption import Life, life

CLUSTER = {"type": "aws:eks/cluster:Cluster", "id": "bivouac-c"}
ADDON = {"type": "aws:eks/addon:Addon", "id": "bivouac-c:coredns"}


class Stubbed:
    """An account whose EKS answers as told."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        self.eks: Any = boto3.client("eks", **keys)  # type: ignore[call-overload]
        self.stub = Stubber(self.eks)
        self.stub.activate()

    def client(self, service: str) -> Any:
        assert service == "eks"
        return self.eks


@pytest.mark.parametrize(
    ("status", "seen"),
    [("CREATING", Life.COMING), ("ACTIVE", Life.THERE), ("FAILED", Life.FAILED), ("DELETING", Life.FAILED)],
)
def test_a_cluster_is_what_eks_says_it_is(status: str, seen: Life) -> None:
    account = Stubbed()
    account.stub.add_response("describe_cluster", {"cluster": {"status": status}}, {"name": "bivouac-c"})
    assert life(account, CLUSTER) is seen  # type: ignore[arg-type]


def test_an_add_on_that_failed_or_is_gone_has_failed() -> None:
    account = Stubbed()
    named = {"clusterName": "bivouac-c", "addonName": "coredns"}
    account.stub.add_response("describe_addon", {"addon": {"status": "CREATE_FAILED"}}, named)
    account.stub.add_client_error("describe_addon", "ResourceNotFoundException")
    assert life(account, ADDON) is Life.FAILED  # type: ignore[arg-type]
    assert life(account, ADDON) is Life.FAILED  # type: ignore[arg-type]


def test_of_a_kind_that_nothing_is_known_about_the_worst_is_assumed() -> None:
    assert life(Stubbed(), {"type": "aws:iam/role:Role", "id": "r"}) is Life.FAILED  # type: ignore[arg-type]
