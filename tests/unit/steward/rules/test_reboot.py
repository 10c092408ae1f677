"""A node whose fault a reboot may cure is rebooted once, waited for, and replaced if it stays sick."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from lightkube.resources.core_v1 import Node

from infra.cluster.fitness import EXCUSED, REBOOT_CURES, Sickness, is_cured_by_reboot
from infra.record.events import Event, fold
from infra.record.payloads.attempts import NodeRebooted
from infra.steward.decide import Action, FailureClass, Finish, History, Launch, Reboot, Replace, Wait, decide
from tests.unit.steward.steward_story import MINUTE_S, StewardRun, story
from tests.unit.steward.test_decide import NOW, POLICY, ended, node, seen

__all__ = ["story"]
REBOOTS = POLICY.model_copy(update={"reboots": True})
SICK = {"unfit": "AcceleratedHardwareReady is False", "sick_for": {Sickness.FAULT: timedelta(hours=1)},
        "suspected": True, "reboot_cures": True}  # fmt: skip
MINUTE = timedelta(minutes=1)


def after(policy: Any = REBOOTS, reboots: dict[str, Any] | None = None, repairs: int = 0, **changes: Any) -> Action:
    """Decide after a failed attempt, with the second of two nodes sick."""
    nodes = (node(0), node(1, **{**SICK, **changes}))
    view = seen(in_flight=False, pods=(), nodes=nodes, since_short=MINUTE)
    attempts = (ended(1, FailureClass.PROCESS, after=10),)
    return decide(view, policy, History(attempts=attempts, repairs=(NOW,) * repairs, reboots=reboots or {}))


def test_a_reboot_comes_before_a_replacement() -> None:
    action = after()
    assert isinstance(action, Reboot) and action.nodes == ("node-1",) and "AcceleratedHardwareReady" in action.why


@pytest.mark.parametrize(
    "changes",
    [{"policy": POLICY}, {"reboot_cures": False}, {"reboots": {"i-1": NOW}}, {"instance_state": "impaired"}],
    ids=["borrowed", "another fault", "rebooted before", "EC2 calls it impaired"],
)
def test_what_a_reboot_does_not_cure_or_has_not_cured_is_replaced(changes: dict[str, Any]) -> None:
    action = after(**changes)
    assert isinstance(action, Replace) and action.nodes == ("node-1",)


def test_a_node_that_reboots_is_waited_for_and_then_replaced() -> None:
    assert isinstance(after(reboots={"i-1": NOW + MINUTE}), Wait)
    assert isinstance(after(reboots={"i-1": NOW + MINUTE}, instance_state="impaired"), Wait)
    assert isinstance(after(reboots={"i-1": NOW}), Replace)
    cured = {"unfit": "", "sick_for": {}, "reboot_cures": False}
    view = seen(in_flight=False, pods=(), nodes=(node(0), node(1, **cured)))
    assert isinstance(decide(view, REBOOTS, History(reboots={"i-1": NOW + MINUTE})), Launch)


def test_reboots_count_among_the_repairs_of_an_hour() -> None:
    """With none left the node is neither rebooted nor replaced, as it would be without this."""
    left = after(repairs=REBOOTS.repairs_per_hour)
    assert isinstance(left, Launch) and "pods run there all the same" in left.why
    assert not isinstance(left, Finish)


def test_a_node_is_rebooted_only_while_its_replacement_is_left_too() -> None:
    """Else it would stay sick with nothing left for it, where it would have been replaced without a reboot."""
    assert isinstance(after(repairs=REBOOTS.repairs_per_hour - 2), Reboot)
    assert isinstance(after(repairs=REBOOTS.repairs_per_hour - 1), Replace)


@pytest.mark.parametrize(("refusal", "repairs"), [("", 1), ("UnauthorizedOperation", 0)])
def test_a_reboot_that_ec2_refuses_is_no_repair(refusal: str, repairs: int) -> None:
    reboot = NodeRebooted(node="node-1", instance="i-1", reason="Xid 48", until=NOW, refusal=refusal)
    state = fold([Event.of(reboot, NOW, "steward", 1)])
    assert len(state.repairs) == repairs and state.reboots == {"i-1": NOW}


@pytest.mark.parametrize(
    ("reason", "message", "cured"),
    [
        ("NvidiaXID48Error", "XID-48 occurred", True),
        ("NvidiaXID95Error", "XID-64 occurred; XID-95 occurred", True),
        ("NvidiaXID64Error", "XID-13 occurred; XID-64 occurred", True),
        ("NvidiaXID64Error", "XID-79 occurred; XID-64 occurred", False),
        ("NvidiaXID64Error", "XID-64 occurred; NVLink is down", False),
        ("NvidiaXID79Error", "XID-79 occurred", False),
        ("NvidiaXID13Error", "XID-13 occurred", False),
        ("", "", False),
    ],
)
def test_a_reboot_cures_what_eks_reboots_for_and_nothing_beside_it(reason: str, message: str, cured: bool) -> None:
    assert is_cured_by_reboot(reason, message) is cured
    assert not REBOOT_CURES & EXCUSED


def fault(story: StewardRun) -> None:
    """The agent's word on node-1."""
    condition = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID48Error",
                 "message": "XID-48 occurred"}  # fmt: skip
    node = story.cluster.nodes["node-1"]
    document = node.to_dict()
    document["status"]["conditions"] = [{"type": "Ready", "status": "True"}, condition]
    changed = Node.from_dict(document)
    assert isinstance(changed, Node)
    story.cluster.nodes["node-1"] = changed


@pytest.mark.parametrize("refused", [False, True])
def test_a_steward_reboots_a_node_once_and_a_refusal_is_a_replacement(
    refused: bool, story: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, start = list[str](), story.time()

    def reboot_instances(*, InstanceIds: list[str]) -> None:
        asked.extend(InstanceIds)
        if refused:
            raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "RebootInstances")

    monkeypatch.setattr(story.aws, "reboot_instances", reboot_instances, raising=False)

    def each_turn() -> None:
        passed_s = story.time() - start
        if passed_s > 2 * MINUTE_S and "node-1" in story.cluster.nodes:
            fault(story)
        if 4 * MINUTE_S < passed_s < 5 * MINUTE_S:
            story.cluster.pods.pop("story-a1-1", None)

    story.run(12, each_turn)
    story.run(4, each_turn)
    assert asked == ["i-1"], "a successor does not ask again"
    (event,) = story.events("node.rebooted")
    assert event.data["node"] == "node-1" and ("UnauthorizedOperation" in event.data.get("refusal", "")) is refused
    assert bool(story.aws.ended) is refused
    story.run(14, each_turn)
    assert story.aws.ended[:1] == ["i-1"], "it stays sick for as long as an instance boots"
