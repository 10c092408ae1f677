"""Which nodes of somebody's cluster a pod of the gang fits, and why it fits no other."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from lightkube.codecs import from_dict

from infra.cluster.standing.queueing import pod_demand
from infra.standing import look
from tests.unit.standing.conftest import bent
from tests.unit.standing.test_grant import cluster

NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "rack-1"},
    "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}],
               "allocatable": {"nvidia.com/gpu": "8", "rdma/hca": "8"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({}, ""),
        ({"status.conditions": [{"type": "Ready", "status": "Unknown"}]}, "not Ready"),
        ({"status.conditions": []}, "not Ready"),
        ({"spec.unschedulable": True}, "cordoned"),
        ({"spec.taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}, "tainted team=b:NoSchedule"),
        ({"spec.taints": [{"key": "nvidia.com/gpu", "effect": "NoExecute"}]}, "tainted nvidia.com/gpu:NoExecute"),
        ({"spec.taints": [{"key": "team", "effect": "PreferNoSchedule"}]}, ""),
        ({"status.allocatable": {"nvidia.com/gpu": "4", "rdma/hca": "8"}}, "4 nvidia.com/gpu of 8"),
        ({"status.allocatable": {"nvidia.com/gpu": "8"}}, "no rdma/hca of 8"),
    ],
)
def test_a_node_that_no_pod_of_the_gang_fits_says_why(changes: dict[str, Any], obstacle: str) -> None:
    assert look._node(from_dict(bent(NODE, changes)), cluster(), {}, {}).obstacle == obstacle  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allocatable", "obstacle"),
    [
        ({"cpu": "350m"}, ""),
        ({"cpu": "340m"}, "0.34 cpu of 0.35, of which RuntimeClass kata takes 0.25"),
        ({"memory": "1Gi"}, "1073741824 memory of 2147483648"),
    ],
)
def test_a_node_has_room_for_a_pod_and_what_its_runtime_class_takes(allocatable: dict[str, str], obstacle: str) -> None:
    """Memory is the container's own; of what a node does not report nobody knows."""
    section, overhead = cluster(**{"nodes.runtime_class": "kata"}), {"cpu": Decimal("0.25")}
    pod = {"containers": [{"resources": {"requests": {"cpu": "100m", "memory": "2Gi", "nvidia.com/gpu": "8"}}}]}
    node = bent(NODE, {"status.allocatable": {"nvidia.com/gpu": "8", "rdma/hca": "8", **allocatable}})
    seen = look._node(from_dict(node), section, pod_demand(pod, overhead), overhead)  # type: ignore[arg-type]
    assert seen.obstacle == obstacle


def test_a_toleration_with_a_value_is_for_that_value() -> None:
    tainted = bent(NODE, {"spec.taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]})
    for value, obstacle in (("a", ""), ("b", "tainted team=a:NoSchedule")):
        section = cluster(**{"nodes.tolerations": [{"key": "team", "operator": "Equal", "value": value}]})
        assert look._node(from_dict(tainted), section, {}, {}).obstacle == obstacle  # type: ignore[arg-type]
