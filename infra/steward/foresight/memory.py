"""The steward's notes in the account's memory of faults, for the campaigns that come after."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from infra.record.faults import PastFault, note_fault
from infra.record.payloads.attempts import NodeVerdict
from infra.steward.foresight.leaving import near_notice
from infra.steward.foresight.trends import is_of_room
from infra.steward.parts import Parts
from infra.steward.seeing.sources import PASSING
from infra.steward.seeing.views import REBALANCE, NodeView

log = logging.getLogger("steward")


def note_node(steward: Parts, node: NodeView, reason: str, time: datetime) -> None:
    """Note a node that is given up: dead, sick, or declining by errors, heat or slowness. One that the cloud takes soon
    is sound hardware as far as anybody knows, room is no fault of hardware, and a borrowed node is its owner's. No
    trouble of the memory stops a repair."""
    is_taken = near_notice(node, time) is not None or node.decline == REBALANCE
    if is_taken or is_of_room(reason) or steward.config.spec.borrows_nodes:
        return
    identity: dict[str, Any] = {"campaign": steward.config.spec.campaign, "node": node.name, "instance": node.instance}
    try:
        network = next((facts.network for facts in steward.nodes.facts(False) if facts.name == node.name), ())
        fault = PastFault(at=time, reason=reason, hardware=_hardware(steward, node), network=network, **identity)
        note_fault(steward.store.put, fault)
    except PASSING as error:
        log.warning("%s is not noted for later campaigns: %s", node.name, error)


def _hardware(steward: Parts, node: NodeView) -> tuple[str, ...]:
    """Return the GPUs that this instance's newest health check has read; empty if it had none."""
    verdicts = [event.payload for event in steward.store.events() if isinstance(event.payload, NodeVerdict)]
    read_hardware = [
        row.hardware for row in verdicts if row.instance and row.instance == node.instance and row.hardware
    ]
    return read_hardware[-1] if read_hardware else ()
