"""Comparison of objects: the program's present and former inputs, and the API server's version."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from infra.rehearsal.plugins.package import Change
from infra.rehearsal.plugins.wire import Props, has_unknown

_TEMPLATED = ("spec.selector",)
IMMUTABLE: dict[str, tuple[str, ...]] = {
    "ClusterRoleBinding": ("roleRef",),
    "ConfigMap": ("data", "binaryData"),
    "CSIDriver": ("spec",),
    "DaemonSet": _TEMPLATED,
    "Deployment": _TEMPLATED,
    "Job": ("spec.selector", "spec.template", "spec.completions", "spec.completionMode"),
    "JobSet": ("spec.replicatedJobs", "spec.network", "spec.successPolicy", "spec.failurePolicy"),
    "PersistentVolume": ("spec.csi", "spec.hostPath", "spec.local", "spec.nfs", "spec.volumeMode"),
    "PersistentVolumeClaim": ("spec.accessModes", "spec.volumeName", "spec.storageClassName", "spec.volumeMode"),
    "Pod": ("spec",),
    "PriorityClass": ("value", "preemptionPolicy"),
    "RoleBinding": ("roleRef",),
    "Secret": ("type", "data", "stringData"),
    "Service": ("spec.clusterIP",),
    "StatefulSet": (*_TEMPLATED, "spec.serviceName", "spec.podManagementPolicy", "spec.volumeClaimTemplates"),
    "StorageClass": ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"),
}
"""Fields that need a new object, as in the real plugin (pulumi-kubernetes: provider/pkg/provider/diff.go)."""
_DEFINITION = "CustomResourceDefinition"
_IDENTITY = ("apiVersion", "kind", "metadata.name", "metadata.namespace")


def changes(kind: str, old: Props, new: Props, mutable: set[str]) -> list[Change]:
    """Compare inputs. `mutable` kinds change their data in place; the real plugin's default is to replace them."""
    forced = (*_IDENTITY, *(() if kind in mutable else IMMUTABLE.get(kind, ())))
    return [
        Change(path, how, any(path == field or path.startswith((f"{field}.", f"{field}[")) for field in forced))
        for path, how in _differences(old, new, "")
    ]


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
    if old == new and not has_unknown(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            if key.startswith("__"):
                continue
            inner = f"{path}.{key}" if path else key
            yield from _differences(old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    else:
        yield path, "add" if old is None else "delete" if new is None else "update"


def as_served(inputs: Props) -> Props:
    """Return a definition's schema in the API server's spelling: Pulumi property names cannot be `x-kubernetes-…`.

    As in the real plugin only definitions are changed: elsewhere such a key is the user's own.
    """
    return dict(_renamed(inputs, "x_kubernetes_", "_", "-")) if inputs.get("kind") == _DEFINITION else inputs


def as_declared(live: Props) -> Props:
    """Reverse `as_served`."""
    return dict(_renamed(live, "x-kubernetes-", "-", "_")) if live.get("kind") == _DEFINITION else live


def _renamed(value: Any, begin: str, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {
            (key.replace(old, new) if key.startswith(begin) else key): _renamed(inner, begin, old, new)
            for key, inner in value.items()
        }
    return [_renamed(inner, begin, old, new) for inner in value] if isinstance(value, list) else value


def overlay(wanted: Any, live: Any) -> Any:
    """Return the values that a refresh records: the wanted one if the server agrees, else the server's.

    Fields that the program never set are left out; zero values, which the server omits, are kept.
    """
    if isinstance(wanted, dict) and isinstance(live, dict):
        kept = {key: value for key, value in wanted.items() if key not in live and (not value or key == "stringData")}
        return kept | {key: overlay(value, live[key]) for key, value in wanted.items() if key in live}
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        return [overlay(one, other) for one, other in zip(wanted, live, strict=True)]
    return wanted if _same_quantity(wanted, live) else live


def imported(live: Props) -> Props:
    """Return inputs that would create this object."""
    own = ("name", "namespace", "labels", "annotations", "finalizers")
    metadata = {key: value for key, value in live["metadata"].items() if key in own}
    return {**{key: value for key, value in live.items() if key not in ("status", "metadata")}, "metadata": metadata}


_UNITS = {letter: Decimal(10) ** power for letter, power in zip("mkMGTP", (-3, 3, 6, 9, 12, 15), strict=True)}
_UNITS |= {f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTP", 1)}


def _same_quantity(one: Any, other: Any) -> bool:
    """Compare quantities: the API server writes `1000m` as `1`."""
    return one == other or (_quantity(one) is not None and _quantity(one) == _quantity(other))


def _quantity(value: Any) -> Decimal | None:
    text = str(value)
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit)), "")
    try:
        return Decimal(text.removesuffix(unit)) * _UNITS.get(unit, Decimal(1))
    except InvalidOperation:
        return None
