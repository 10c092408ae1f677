"""The fitness of a GPU node for a pod of a gang: ailments, and what cures them. Pure: no Kubernetes, no AWS."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

from infra.cluster.cloud_notice import CloudNotice
from trainer.contract.frozen import Frozen


class Sickness(StrEnum):
    """Kinds of ailment by their cure, the most urgent first."""

    FAULT = "fault"
    """The node monitoring agent calls the accelerators broken, which lasts until the node is replaced."""
    LATE = "late"
    """The node looks as it does while it joins: it is replaced only if that lasts."""
    HELD = "held"
    """Somebody holds the node (a cordon, a taint) or it is being removed: the steward waits."""


PATIENCE = {Sickness.FAULT: timedelta(minutes=1), Sickness.LATE: timedelta(minutes=5)}
"""Duration of a sickness before the node is replaced. A node that joins needs a minute or two for network and devices.
EKS's node repair, off on these nodes, waits 10 minutes for accelerators and 30 for all else (EKS user guide,
"Automatically repair nodes", read 2026-11-22): too long here, where the whole gang waits and bills."""

CONDITIONS = {
    "AcceleratedHardwareReady": Sickness.FAULT,
    "KernelReady": Sickness.LATE,
    "NetworkingReady": Sickness.LATE,
    "StorageReady": Sickness.LATE,
    "ContainerRuntimeReady": Sickness.LATE,
}
"""Conditions of the EKS node monitoring agent; False is a fault."""

EXCUSED = frozenset({"NvidiaXID13Error", "NvidiaXID31Error", "NvidiaXID63Error", "NvidiaXID94Error", "DCGMError",
                     "PodStuckTerminating"})  # fmt: skip
"""Reasons that do not count against the node. Xid 13 and 31 are errors of the application, 94 is contained in it, 63 is
a remapping that succeeded (NVIDIA's Xid catalogue, as in infra/plan/catalogue/thresholds.yaml). `DCGMError` means that
DCGM does not answer; EKS does not repair for it. `PodStuckTerminating` stays after the pod is gone, and a shared file
system that hangs causes it on every node. A node that is bad all the same fails attempts repeatedly."""
REBOOT_CURES = frozenset({"NvidiaXID48Error", "NvidiaXID64Error", "NvidiaXID95Error"})
"""Reasons for which a reboot comes before a replacement: a memory error, a remapping that failed. EKS's own repair of
managed node groups reboots for them too (EKS user guide, "Detect node health issues with the EKS node monitoring
agent", table of Xid codes, read 2026-11-27), and NVIDIA's catalogue resets the GPU. For 13, 31, 63 and 94, for which
EKS also reboots, see `EXCUSED`."""
_TWICE = 2
_XID = re.compile(r"XID-(\d+)")


def is_excused(reason: str, message: str) -> bool:
    """Return whether all reasons are in `EXCUSED`: the agent reports its newest reason and the messages of all."""
    return _are_all(EXCUSED, reason, message)


def is_cured_by_reboot(reason: str, message: str) -> bool:
    """Return whether a reboot may cure all that the agent reports."""
    return reason in REBOOT_CURES and _are_all(EXCUSED | REBOOT_CURES, reason, message)


def _are_all(known_reasons: frozenset[str], reason: str, message: str) -> bool:
    xids = set(_XID.findall(message))
    parts = message.split("; ") if message else []
    all_known = all(f"NvidiaXID{xid}Error" in known_reasons for xid in xids)
    return reason in known_reasons and all_known and len(parts) <= max(1, len(xids))


class Ailment(Frozen, extra="ignore"):
    """One thing that keeps a node from taking part."""

    words: str
    sickness: Sickness
    since: datetime | None = None
    bars: bool = True
    """It keeps pods off the node; a condition of the monitoring agent does not."""
    reboot_cures: bool = False


class NodeFacts(Frozen, extra="ignore"):
    """A GPU node as Kubernetes and EC2 see it."""

    name: str
    instance: str
    ready: bool | None
    quarantined: bool
    instance_state: Literal["running", "impaired", "gone", "unknown"]
    accelerators: int
    """Allocatable now."""
    cordoned: bool = False
    network: tuple[str, ...] = ()
    """Its place in the network, from the top layer down; empty if unknown, as for instance types without one."""
    cloud_notice: CloudNotice | None = None
    """What EC2 announces for its instance; None too while EC2 is not asked."""
    ailments: tuple[Ailment, ...] = ()
    """All but missing accelerators: only the caller knows how many there must be."""

    def with_word_of_ec2(self, old_node: NodeFacts) -> NodeFacts:
        """Return the node with what EC2 said of it at an earlier look."""
        return self.model_copy(
            update={"instance_state": old_node.instance_state, "cloud_notice": old_node.cloud_notice}
        )

    def ails(self, accelerators: int) -> tuple[Ailment, ...]:
        """Return what keeps off a pod that needs so many accelerators, the most urgent first."""
        rows = [*self.ailments]
        if self.accelerators < accelerators:
            words = f"{self.accelerators} of {accelerators} accelerators allocatable"
            rows.append(Ailment(words=words, sickness=Sickness.LATE))
        return tuple(sorted(rows, key=lambda ailment: list(Sickness).index(ailment.sickness)))

    def unfit(self, accelerators: int) -> str:
        """Return why the node is unfit; empty when it is fit."""
        return ", ".join(ailment.words for ailment in self.ails(accelerators))

    def fit(self, accelerators: int) -> bool:
        return not self.ails(accelerators)

    @property
    def reboot_cures(self) -> bool:
        """Return whether a reboot may cure its accelerators, and nothing else ails it."""
        return bool(self.ailments) and all(ailment.reboot_cures for ailment in self.ailments)

    def only_suspect(self, accelerators: int) -> bool:
        """Return whether it is unfit only according to the monitoring agent: such a pod can run there."""
        ailments = self.ails(accelerators)
        return bool(ailments) and not any(ailment.bars for ailment in ailments)


def shared_cause(sick: Sized, fit: int, repairs_left: int) -> str:
    """Return why so many sick nodes must share a cause; empty when each may have its own."""
    if len(sick) > repairs_left:
        return f"{repairs_left} repairs within the hour are left"
    return "" if fit or len(sick) < _TWICE else "no node is fit, so the cause is what they share"


def overdue(sick_for: Mapping[Sickness, timedelta]) -> bool:
    """Return whether a sickness has outlasted its `PATIENCE`."""
    return any(duration >= PATIENCE[sickness] for sickness, duration in sick_for.items())


class ConditionHistory:
    """Remembers when a sickness was first seen: missing accelerators have no date, and a node's clock may be late.

    The date in a condition also counts, for an observer that has just started.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.first: dict[str, float] = {}
        """Node, instance and sickness -> when first seen, in seconds of the monotonic clock."""

    def look(
        self, facts: Iterable[NodeFacts], accelerators: int, time: datetime | None = None
    ) -> dict[str, dict[Sickness, timedelta]]:
        """Return node -> how long it has had each sickness that a replacement cures. `time`: now, by a clock that is
        more reliable than this machine's."""
        now, moment = self._monotonic(), time or datetime.now(UTC)
        durations, starts = dict[str, dict[Sickness, timedelta]](), dict[str, float]()
        for node in facts:
            sicknesses = durations.setdefault(node.name, {})
            for ailment in node.ails(accelerators):
                if ailment.sickness not in PATIENCE:
                    continue
                key = f"{node.name} {node.instance} {ailment.sickness}"
                starts[key] = self.first.get(key, now)
                by_date = moment - ailment.since if ailment.since else timedelta()
                longest = sicknesses.get(ailment.sickness, timedelta())
                sicknesses[ailment.sickness] = max(longest, by_date, timedelta(seconds=now - starts[key]))
        self.first = starts
        return durations
