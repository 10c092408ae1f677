"""The steward's notes in the account's memory of faults, for the campaigns that come after."""

from __future__ import annotations

import logging
from datetime import datetime

from infra.record.faults import Fault, note_fault
from infra.record.payloads.attempts import NodeVerdict
from infra.steward.parts import Parts
from infra.steward.seeing.sources import PASSING
from infra.steward.seeing.views import REBALANCE, NodeView

log = logging.getLogger("steward")


def note_node(steward: Parts, node: NodeView, reason: str, at: datetime) -> None:
    """Note a node that is given up. One that the cloud has announced to take is sound hardware as far as anybody knows,
    and a borrowed node is its owner's. No trouble of the memory stops a repair."""
    if node.cloud_notice is not None or node.decline == REBALANCE or steward.config.spec.borrows_nodes:
        return
    try:
        places = {facts.name: facts.network for facts in steward.nodes.facts(False)}
        fault = Fault(
            at=at,
            campaign=steward.config.spec.campaign,
            reason=reason,
            node=node.name,
            instance=node.instance,
            hardware=_hardware(steward, node),
            network=places.get(node.name, ()),
        )
        note_fault(steward.store.put, fault)
    except PASSING as error:
        log.warning("%s is not noted for later campaigns: %s", node.name, error)


def _hardware(steward: Parts, node: NodeView) -> tuple[str, ...]:
    """Return the GPUs that this instance's newest health check has read; empty if it had none."""
    verdicts = [event.payload for event in steward.store.events() if isinstance(event.payload, NodeVerdict)]
    own = [row.hardware for row in verdicts if row.instance and row.instance == node.instance and row.hardware]
    return own[-1] if own else ()
