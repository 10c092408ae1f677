"""A pod's status from its containers, as kubelet's `getPhase` and condition functions derive it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.rehearsal.nodelet.client import Object
from infra.rehearsal.nodelet.clock import timestamp
from infra.rehearsal.nodelet.pods.containers import PodContainer


def phase_of(init: Sequence[PodContainer], apps: Sequence[PodContainer]) -> str:
    if any(one.finished and one.exit_code for one in init):
        return "Failed"
    if any(one.exit_code != 0 for one in init if one.kind == "init") or any(not one.starts for one in apps):
        return "Pending"
    if all(one.finished for one in apps):
        return "Failed" if any(one.exit_code for one in apps) else "Succeeded"
    return "Running"


@dataclass
class PodStatus:
    """Builder of the status document; it remembers since when each condition holds."""

    host: str
    started: str = field(default_factory=timestamp)
    address: str = ""
    _since: dict[str, tuple[str, str]] = field(default_factory=dict)

    def document(
        self, init: Sequence[PodContainer], apps: Sequence[PodContainer], failure: tuple[str, str] | None
    ) -> Object:
        """`failure` is the (reason, message) of a pod that fails apart from its containers."""
        phase = "Failed" if failure else phase_of(init, apps)
        over = phase in ("Failed", "Succeeded")
        initialized = all(one.exit_code == 0 or one.kind == "sidecar" for one in init)
        ready = not over and all(one.ready for one in apps)
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed" if over else "ContainersNotReady"
        document: Object = {
            "phase": phase,
            "startTime": self.started,
            "hostIP": self.host,
            "hostIPs": [{"ip": self.host}],
            "conditions": [
                self._condition("PodReadyToStartContainers", bool(self.address) and not over, ""),
                self._condition("Initialized", initialized, "ContainersNotInitialized"),
                self._condition("ContainersReady", ready, reason),
                self._condition("Ready", ready, reason),
            ],
            "containerStatuses": [one.status() for one in apps],
        }
        if init:
            document["initContainerStatuses"] = [one.status() for one in init]
        if self.address:
            document |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        if failure:
            document |= {"reason": failure[0], "message": failure[1]}
        return document

    def _condition(self, kind: str, holds: bool, reason: str) -> Object:
        status = str(holds)
        before, since = self._since.get(kind, ("", ""))
        if before != status:
            since = timestamp()
            self._since[kind] = (status, since)
        # An absent reason would survive a strategic merge; null removes it.
        return {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": since,
            "reason": None if holds or not reason else reason,
        }
