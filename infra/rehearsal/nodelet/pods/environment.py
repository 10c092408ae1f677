"""A container's environment, with references resolved and $(NAME) expanded as in Kubernetes.

https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from infra.errors import TemporaryError
from infra.rehearsal.nodelet.client import Object

Lookup = Callable[[str, str], Mapping[str, str] | None]
"""("configmaps" or "secrets", name) -> its data as text, or None if it does not exist."""
REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")
RETRY = timedelta(seconds=2)


class ConfigError(TemporaryError):
    """A missing reference of the container: CreateContainerConfigError."""

    def __init__(self, message: str) -> None:
        super().__init__(message, delay=RETRY)
        self.message = message


def environment(pod: Object, container: Object, base: Mapping[str, str], lookup: Lookup) -> dict[str, str]:
    """Apply envFrom, then env in order, to `base` (image and injected variables). Raises ConfigError."""
    variables = dict(base)
    for source in container.get("envFrom") or []:
        for kind, key in (("configmaps", "configMapRef"), ("secrets", "secretRef")):
            if reference := source.get(key):
                data = _data(kind, reference, lookup)
                variables.update({source.get("prefix", "") + name: text for name, text in data.items()})
    for entry in container.get("env") or []:
        value = _value(pod, container, entry, lookup)
        if value is not None:
            variables[entry["name"]] = expand(value, variables)
    return variables


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)` of known names and `$$` to a dollar; unknown names stay."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return REFERENCE.sub(replaced, text)


def field(pod: Object, path: str) -> str:
    """Return a field of the downward API. Raises ConfigError if it does not exist."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if match := SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        items = (metadata.get(path.partition(".")[2]) or {}).items()
        return "".join(f'{key}="{value}"\n' for key, value in sorted(items))
    plain: dict[str, Any] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName"),
        "status.hostIP": status.get("hostIP"),
        "status.hostIPs": status.get("hostIP"),
        "status.podIP": status.get("podIP"),
        "status.podIPs": status.get("podIP"),
    }
    if path not in plain:
        raise ConfigError(f"unsupported fieldPath {path}")
    return str(plain[path] or "")


def _value(pod: Object, container: Object, entry: Object, lookup: Lookup) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    if reference := source.get("fieldRef"):
        return field(pod, reference["fieldPath"])
    if reference := source.get("resourceFieldRef"):
        kind, _, name = reference["resource"].partition(".")
        return str(((container.get("resources") or {}).get(kind) or {}).get(name, "0"))
    for kind, key in (("configmaps", "configMapKeyRef"), ("secrets", "secretKeyRef")):
        if reference := source.get(key):
            data = _data(kind, reference, lookup)
            if reference["key"] in data:
                return data[reference["key"]]
            if not reference.get("optional"):
                raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")
            return None
    raise ConfigError(f"unsupported source of {entry['name']}: {', '.join(source)}")


def _data(kind: str, reference: Object, lookup: Lookup) -> Mapping[str, str]:
    data = lookup(kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise ConfigError(f'{kind.removesuffix("s")} "{reference["name"]}" not found')
    return data or {}
