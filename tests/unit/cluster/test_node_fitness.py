"""What a Node object says against its node, in words, and how long it has said so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lightkube.resources.core_v1 import Node

from infra.cluster.fitness import PATIENCE, ConditionHistory, NodeFacts, Sickness, overdue
from infra.cluster.nodes import QUARANTINE_LABEL, _facts

THEN = "2026-11-22T01:20:33Z"


def condition(kind: str, status: str, reason: str = "", message: str = "", since: str = THEN) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def facts(
    *conditions: dict[str, str],
    gpus: int = 8,
    ready: dict[str, str] | None = None,
    state: str = "running",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> NodeFacts:
    document = {
        "metadata": {"name": "n1", "labels": labels or {}},
        "spec": {"providerID": "aws:///us-east-1b/i-1", **spec},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [ready or condition("Ready", "True"), *conditions],
        },
    }
    node = Node.from_dict(document)
    assert isinstance(node, Node)
    return _facts(node, "i-1", state)


def taint(key: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": key, "effect": effect}


CORDON: dict[str, Any] = {"unschedulable": True, "taints": [taint("node.kubernetes.io/unschedulable")]}
XID = condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "detected XID-79 on the instance")
DEAD = condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")


@pytest.mark.parametrize(
    ("node", "words", "sickness"),
    [
        (facts(**CORDON), "cordoned by somebody else", Sickness.HELD),
        (facts(taints=[taint("node.kubernetes.io/disk-pressure")]),
         "tainted node.kubernetes.io/disk-pressure:NoSchedule", Sickness.HELD),
        (facts(taints=[taint("nvidia.com/gpu", "NoExecute")]), "tainted nvidia.com/gpu:NoExecute", Sickness.HELD),
        (facts(XID), "AcceleratedHardwareReady is False since 2026-11-22T01:20:33+00:00 (NvidiaXID79Error: detected "
         "XID-79 on the instance)", Sickness.FAULT),
        (facts(condition("NetworkingReady", "False", "IPAMDNotReady")),
         "NetworkingReady is False since 2026-11-22T01:20:33+00:00 (IPAMDNotReady)", Sickness.LATE),
        (facts(gpus=7), "7 of 8 accelerators allocatable", Sickness.LATE),
        (facts(ready=DEAD), "not Ready since 2026-11-22T01:20:33+00:00 (NodeStatusUnknown: Kubelet stopped posting "
         "node status.)", Sickness.LATE),
        (facts(state="impaired"), "EC2 calls its instance impaired", Sickness.HELD),
        (facts(labels={QUARANTINE_LABEL: "replaced"}, **CORDON), "quarantined by us", Sickness.HELD),
    ],
    ids=["cordon", "disk pressure", "another's taint", "Xid", "network", "7 of 8", "kubelet", "EC2", "ours"],
)  # fmt: skip
def test_an_unfit_node_says_why(node: NodeFacts, words: str, sickness: Sickness) -> None:
    assert (node.unfit(8), node.fit(8)) == (words, False)
    assert node.ails(8)[0].sickness is sickness


@pytest.mark.parametrize(
    "node",
    [
        facts(taints=[taint("nvidia.com/gpu")]),
        facts(taints=[taint("somebody/prefers", "PreferNoSchedule")]),
        facts(condition("AcceleratedHardwareReady", "True", "NvidiaAcceleratedHardwareIsReady")),
        facts(condition("AcceleratedHardwareReady", "Unknown")),
        facts(condition("AcceleratedHardwareReady", "False", "NvidiaXID31Error", "detected XID-31 on the instance")),
        facts(condition("AcceleratedHardwareReady", "False", "DCGMError", "no connection")),
        facts(condition("ContainerRuntimeReady", "False", "PodStuckTerminating", "pod a")),
        facts(condition("DiskPressure", "False")),
    ],
    ids=["our taint", "a wish", "well", "unknown", "application's Xid", "DCGM", "stuck pod", "no pressure"],
)
def test_what_does_not_keep_a_gang_off_a_node_does_not_make_it_unfit(node: NodeFacts) -> None:
    assert node.fit(8), node.unfit(8)


def test_an_application_s_xid_after_a_fatal_one_excuses_nothing() -> None:
    """The agent keeps the newest reason, and strings the messages together."""
    for message in (
        "detected XID-79 on the instance; detected XID-31 on the instance",
        "NVLink; detected XID-31 on it",
    ):
        assert not facts(condition("AcceleratedHardwareReady", "False", "NvidiaXID31Error", message)).fit(8)


def test_the_most_urgent_ailment_is_said_first() -> None:
    node = facts(XID, gpus=7, **CORDON)
    assert [one.sickness for one in node.ails(8)] == [Sickness.FAULT, Sickness.LATE, Sickness.HELD]


def test_a_condition_that_dates_itself_counts_also_for_a_steward_that_has_just_begun() -> None:
    ago = datetime.now(UTC) - timedelta(minutes=2)
    xid = XID | {"lastTransitionTime": ago.isoformat()}
    sick_for = ConditionHistory().look([facts(xid)], 8)["n1"]
    assert timedelta(minutes=2) <= sick_for[Sickness.FAULT] < timedelta(minutes=3) and overdue(sick_for)


def test_what_has_no_date_or_one_to_come_counts_from_its_first_sight_until_it_is_well() -> None:
    now = [100.0]
    bay = ConditionHistory(lambda: now[0])
    ahead = DEAD | {"lastTransitionTime": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    for node in (facts(gpus=7), facts(ready=ahead)):
        assert bay.look([node], 8)["n1"] == {Sickness.LATE: timedelta()}
        now[0] += PATIENCE[Sickness.LATE].total_seconds()
        assert overdue(bay.look([node], 8)["n1"])
        assert bay.look([facts()], 8) == {"n1": {}}
        assert not overdue(bay.look([node], 8)["n1"]), "well in between: it begins anew"
        bay.look([], 8)


def test_nobody_is_replaced_for_what_somebody_else_sees_to() -> None:
    assert ConditionHistory().look([facts(**CORDON), facts(taints=[taint("node.kubernetes.io/disk-pressure")])], 8) == {
        "n1": {}
    }


def test_a_node_is_told_with_its_place_in_the_network() -> None:
    layers = {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in (3, 1, 2)}
    assert facts(labels=layers).network == ("nn-1", "nn-2", "nn-3") and facts().network == ()
