"""Readiness of objects after their creation, with fewer checks than the real plugin's."""

from __future__ import annotations

from collections.abc import Callable

from infra.rehearsal.plugins.kubernetes.cluster import Object

SKIP = "pulumi.com/skipAwait"


def is_ready(live: Object) -> bool:
    annotations = live["metadata"].get("annotations") or {}
    probe = _PROBES.get(live["kind"])
    return probe is None or annotations.get(SKIP) == "true" or probe(live)


def _claim(live: Object) -> bool:
    """Return True if a claim with a volume is bound; others may wait for their first pod."""
    return not live["spec"].get("volumeName") or _phase(live) == "Bound"


def _rollout(live: Object) -> bool:
    status = live.get("status") or {}
    current = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    return bool(current and status.get("availableReplicas", 0) >= live["spec"].get("replicas", 1))


def _definition(live: Object) -> bool:
    conditions = (live.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _phase(live: Object) -> str:
    return str((live.get("status") or {}).get("phase", ""))


_PROBES: dict[str, Callable[[Object], bool]] = {
    "CustomResourceDefinition": _definition,
    "Deployment": _rollout,
    "Namespace": lambda live: _phase(live) == "Active",
    "PersistentVolume": lambda live: _phase(live) in ("Available", "Bound"),
    "PersistentVolumeClaim": _claim,
}
