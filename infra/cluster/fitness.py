"""Whether a GPU node can take its part of a gang, and if not, why and what helps. Pure: no Kubernetes, no AWS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Sickness(StrEnum):
    """What helps against an ailment, the most urgent first."""

    FAULT = "fault"
    """The node monitoring agent calls the accelerators broken; that word stays until the node is another."""
    LATE = "late"
    """As it also is while it joins: only if it lasts, another node must come."""
    HELD = "held"
    """Somebody holds it (a cordon, a taint), or it is on its way out: waited for, since others see to it."""


PATIENCE = {Sickness.FAULT: timedelta(minutes=1), Sickness.LATE: timedelta(minutes=5)}
"""For how long a node is sick before it is replaced. A node that joins needs a minute or two for network and devices.
EKS's own repair, which is off on these nodes, waits 10 minutes for accelerators and 30 for all else (EKS user guide,
"Automatically repair nodes", read 2026-11-22): here the whole gang waits, and bills."""

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
"""Reasons that say nothing against the node. Xid 13 and 31 are an application's own errors, 94 is contained in it, 63 a
remapping that succeeded (NVIDIA's Xid catalogue, as in trainer/health/parsers/kernel_log.py); `DCGMError` is DCGM not
answering, for which EKS repairs nothing; `PodStuckTerminating` stays after the pod has gone, and a shared file system
that hangs says it of every node at once. A node that is bad all the same fails its attempts again and again."""
_TWICE = 2
_XID = re.compile(r"XID-(\d+)")


def excused(reason: str, message: str) -> bool:
    """The agent names its newest reason and strings the messages of all together."""
    xids = set(_XID.findall(message))
    parts = message.split("; ") if message else []
    ours = all(f"NvidiaXID{xid}Error" in EXCUSED for xid in xids)
    return reason in EXCUSED and ours and len(parts) <= max(1, len(xids))


class Ailment(BaseModel):
    """One thing that keeps a node from taking part."""

    model_config = ConfigDict(frozen=True)

    words: str
    sickness: Sickness
    since: datetime | None = None
    bars: bool = True
    """Whether it keeps pods off; what only the monitoring agent says does not."""


class NodeFacts(BaseModel):
    """A GPU node as Kubernetes and EC2 see it."""

    model_config = ConfigDict(frozen=True)

    name: str
    instance: str
    ready: bool | None
    quarantined: bool
    instance_state: Literal["running", "impaired", "gone", "unknown"]
    accelerators: int
    """Allocatable now."""
    cordoned: bool = False
    """By whomever."""
    ailments: tuple[Ailment, ...] = ()
    """All but missing accelerators, of which only the asker knows how many there must be."""

    def ails(self, accelerators: int) -> tuple[Ailment, ...]:
        """What keeps it from a pod that wants so many accelerators, the most urgent first."""
        found = [*self.ailments]
        if self.accelerators < accelerators:
            words = f"{self.accelerators} of {accelerators} accelerators allocatable"
            found.append(Ailment(words=words, sickness=Sickness.LATE))
        return tuple(sorted(found, key=lambda one: list(Sickness).index(one.sickness)))

    def unfit(self, accelerators: int) -> str:
        """Why not, in words; empty when it is fit."""
        return ", ".join(one.words for one in self.ails(accelerators))

    def fit(self, accelerators: int) -> bool:
        return not self.ails(accelerators)

    def suspected(self, accelerators: int) -> bool:
        """Whether it is unfit by the monitoring agent's word alone: such a pod can run there."""
        ailments = self.ails(accelerators)
        return bool(ailments) and not any(one.bars for one in ailments)


def shared_cause(sick: Sized, fit: int, repairs_left: int) -> str:
    """Why so many sick nodes at once are no node's own fault, in words; empty where they may be."""
    if len(sick) > repairs_left:
        return f"{repairs_left} repairs within the hour are left"
    return "" if fit or len(sick) < _TWICE else "no node is fit, so the cause is what they share"


def overdue(sick_for: Mapping[Sickness, timedelta]) -> bool:
    """It has lasted too long to be waited for."""
    return any(lasted >= PATIENCE[sickness] for sickness, lasted in sick_for.items())
