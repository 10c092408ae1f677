"""A pod's status from its containers, as kubelet's `getPhase` and condition functions derive it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.rehearsal.nodelet.client import Object, timestamp
from infra.rehearsal.nodelet.pods.containers import PodContainer


def phase_of(init: Sequence[PodContainer], apps: Sequence[PodContainer]) -> str:
    if any(container.finished and container.exit_code for container in init):
        return "Failed"
    if any(container.exit_code != 0 for container in init if container.kind == "init") or any(
        not container.starts for container in apps
    ):
        return "Pending"
    if all(container.finished for container in apps):
        return "Failed" if any(container.exit_code for container in apps) else "Succeeded"
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
        is_over = phase in ("Failed", "Succeeded")
        is_initialized = all(container.exit_code == 0 or container.kind == "sidecar" for container in init)
        ready = not is_over and all(container.ready for container in apps)
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed" if is_over else "ContainersNotReady"
        document: Object = {
            "phase": phase,
            "startTime": self.started,
            "hostIP": self.host,
            "hostIPs": [{"ip": self.host}],
            "conditions": [
                self._condition("PodReadyToStartContainers", bool(self.address) and not is_over, ""),
                self._condition("Initialized", is_initialized, "ContainersNotInitialized"),
                self._condition("ContainersReady", ready, reason),
                self._condition("Ready", ready, reason),
            ],
            "containerStatuses": [container.status() for container in apps],
        }
        if init:
            document["initContainerStatuses"] = [container.status() for container in init]
        if self.address:
            document |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        if failure:
            document |= {"reason": failure[0], "message": failure[1]}
        return document

    def _condition(self, kind: str, is_true: bool, reason: str) -> Object:
        status = str(is_true)
        previous, since_time = self._since.get(kind, ("", ""))
        if previous != status:
            since_time = timestamp()
            self._since[kind] = (status, since_time)
        # An absent reason would survive a strategic merge; null removes it.
        return {
            "type": kind,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": since_time,
            "reason": None if is_true or not reason else reason,
        }
