"""EC2 is asked less often while all is well, and at once where it is not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from infra.cluster.cloud_notice import CloudNotice
from infra.cluster.fitness import NodeFacts
from infra.steward.seeing.node_looks import ASK_EC2_S, NodeLooks
from infra.steward.seeing.sources import Sources
from tests.worlds.s3 import Time


class Nodes:
    """Two nodes; EC2's word on them is only told where it is asked for."""

    def __init__(self) -> None:
        self.not_told: Exception | None = None
        self.asked: list[bool] = []
        self.ready: bool | None = True
        self.names = ["n0", "n1"]
        self.notice: CloudNotice | None = None

    def facts(self, ask_ec2: bool = True) -> tuple[NodeFacts, ...]:
        self.asked.append(ask_ec2)
        told: dict[str, Any] = {"instance_state": "running", "cloud_notice": self.notice} if ask_ec2 else {}
        return tuple(
            NodeFacts.model_validate(
                {"name": name, "instance": f"i-{name}", "ready": self.ready, "quarantined": False, "accelerators": 8,
                 "instance_state": "unknown", **told}
            )
            for name in self.names
        )  # fmt: skip


def looks() -> tuple[Time, Nodes, NodeLooks]:
    time, nodes = Time(), Nodes()
    made: Any = nodes
    return time, nodes, NodeLooks(made, Sources(time), time)


def states(rows: tuple[NodeFacts, ...] | None) -> set[str]:
    return {row.instance_state for row in rows or ()}


def test_ec2_s_last_word_stands_for_two_seconds_while_all_is_well() -> None:
    time, nodes, node_looks = looks()
    nodes.notice = CloudNotice(code="instance-stop", due=datetime(2026, 11, 27, tzinfo=UTC))
    for _ in range(9):
        rows = node_looks.look(is_quiet=False)
        assert states(rows) == {"running"} and rows and rows[0].cloud_notice == nodes.notice
        time.go(ASK_EC2_S / 4)
    assert nodes.asked == [True, False, False, False, True, False, False, False, True]


def test_a_silent_pod_and_a_node_that_is_not_ready_have_ec2_asked_in_each_turn() -> None:
    time, nodes, node_looks = looks()
    for _ in range(3):
        node_looks.look(is_quiet=True)
        time.go(0.5)
    assert nodes.asked == [True] * 3
    nodes.ready = None
    for _ in range(3):
        node_looks.look(is_quiet=False)
        time.go(0.5)
    assert nodes.asked[3:] == [False, True, True], "what the last look saw decides"


def test_a_node_that_is_new_is_unknown_to_ec2_s_last_word_and_the_next_turn_asks() -> None:
    time, nodes, node_looks = looks()
    node_looks.look(is_quiet=False)
    nodes.names.append("n2")
    time.go(0.5)
    assert [row.instance_state for row in node_looks.look(is_quiet=False) or ()] == ["running", "running", "unknown"]
    time.go(0.5)
    assert states(node_looks.look(is_quiet=False)) == {"running"} and nodes.asked == [True, False, True]


def test_what_ec2_did_not_tell_stays_unknown_until_it_is_due_again() -> None:
    time, nodes, node_looks = looks()
    node_looks.look(is_quiet=False)
    time.go(ASK_EC2_S)
    nodes.not_told = OSError("timed out")
    node_looks.look(is_quiet=False)
    time.go(0.1)
    assert states(node_looks.look(is_quiet=False)) == {"unknown"} and nodes.asked == [True, True, False]
