"""Preflight's use of the account's memory of faults: nodes that failed before are refused, within bounds.

A node is refused only once EC2 has started an instance in its place, so the memory takes no launch its nodes: it costs
the wait for that instance's start. A node is refused at most once, never in the last round, and at most half of the
gang at a time; else its own health check decides alone, and people are told. What cannot be read refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from infra.campaign.verdicts import COLLECTIVE, GangCheck, fault_text
from infra.cluster.fitness import NodeFacts
from infra.cluster.kubernetes import OF_WORLD
from infra.record.faults import KEPT_FOR, KnownFaults, PastFault, note_fault, read_faults
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from trainer.contract import Probe

KNOWN_FAULT = "known_fault"
"""Name of the probe by which the memory calls a node unfit."""


class FaultMemory:
    """What earlier campaigns saw fail, for one preflight."""

    def __init__(self, context: Context) -> None:
        """Read the memory, and say what it holds against this campaign's node image."""
        self._context, self._refused = context, set[str]()
        self._known = KnownFaults(())
        if context.spec.borrows_nodes:
            return  # its owner repairs a borrowed node, whose name stays the same
        try:
            self._known = read_faults(context.store.s3, context.store.bucket, datetime.now(UTC))
        except OF_WORLD as error:
            context.progress.note(
                f"the account's memory of faults cannot be read, so it refuses no node: {error}"[:300]
            )
        if self._known.unread:
            context.progress.note(f"{len(self._known.unread)} faults of the account's memory were not read")
        image = _image(context)
        if image is not None and (fault := self._known.of_image(image)) is not None:
            context.progress.note(f"known fault of the node image: {fault}")

    def judge(self, check: GangCheck, is_last: bool, order_spares: Callable[[int], int]) -> GangCheck:
        """Return the check with the nodes that the memory refuses. `is_last`: no round follows, so it refuses none.
        `order_spares`: asks for so many other instances and returns how many have come."""
        matches = [
            (verdict, fault)
            for verdict in check.verdicts
            if verdict["fit"] and (fault := self._known.of_node(verdict["instance"], verdict["hardware"])) is not None
        ]
        refusals, limit = dict[str, PastFault](), max(1, len(check.verdicts) // 2)
        for verdict, fault in matches:
            if not is_last and not _marks(fault) & self._refused and len(refusals) < limit:
                self._refused |= _marks(fault)
                refusals[verdict["node"]] = fault
        spare_count = order_spares(len(refusals)) if refusals else 0
        refusals = dict(list(refusals.items())[:spare_count])
        for verdict, fault in matches:
            if verdict["node"] not in refusals:
                self._context.progress.note(
                    f"{verdict['node']} is taken all the same, since it passed the health check: {fault}"
                )
        verdicts = [_refuse(row, refusals[row["node"]]) if row["node"] in refusals else row for row in check.verdicts]
        return replace(check, verdicts=tuple(verdicts))


def is_refused(verdict: Mapping[str, Any]) -> bool:
    """Return whether the memory has refused the node, in whose place another instance has started."""
    return any(row["name"] == KNOWN_FAULT for row in verdict["probes"])


def _marks(fault: PastFault) -> set[str]:
    """Return by what a fault's node is known again."""
    return {str(fault.instance), *fault.hardware}


def _refuse(verdict: Mapping[str, Any], fault: PastFault) -> dict[str, Any]:
    probe = Probe(
        name=KNOWN_FAULT,
        ok=False,
        seen=str(fault),
        wanted=f"hardware that failed in no campaign of the last {KEPT_FOR.days} days",
    )
    return {**verdict, "fit": False, "probes": [*verdict["probes"], probe.model_dump(mode="json")]}


def remember_node(
    context: Context, verdict: Mapping[str, Any], nodes: Iterable[NodeFacts], common: Iterable[Probe] = ()
) -> None:
    """Note that a node was unfit by its own probes. A refusal for an older fault is no new one, and what nodes share
    (`COLLECTIVE`), or what all of them showed (`common`), names none."""
    shared_names = {KNOWN_FAULT, *COLLECTIVE, *(probe.name for probe in common)}
    own_probes = [row for row in verdict["probes"] if row["name"] not in shared_names]
    if all(row["ok"] or not row.get("looked", True) for row in own_probes):
        return
    network = next((node.network for node in nodes if node.name == verdict["node"]), ())
    identity = {
        "node": verdict["node"],
        "instance": verdict["instance"] or None,
        "hardware": verdict.get("hardware", ()),
    }
    _note(context, network=network, reason=fault_text({"probes": own_probes}, context.spec.profile), **identity)


def remember_image(context: Context, words: Iterable[str]) -> None:
    """Note that every node of an image showed the same fault."""
    if (image := _image(context)) is not None:
        _note(context, image=image, reason="every node: " + "; ".join(words))


def _image(context: Context) -> str | None:
    """Return the AMI of the GPU nodes as the bake recorded it; None if it is not recorded."""
    nodes = BakeOutput.known(context.outputs).node_image
    return nodes.ami if nodes is not None else None


def _note(context: Context, **fields: Any) -> None:
    """Store a fault; a memory that takes none is said and stops nothing."""
    if context.spec.borrows_nodes:
        return
    fault = PastFault(at=datetime.now(UTC), campaign=context.spec.campaign, **fields)
    try:
        note_fault(context.store.put, fault)
    except OF_WORLD as error:
        context.progress.note(f"not noted for later campaigns, {error}: {fault}"[:300])
