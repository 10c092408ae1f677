"""The provider's own configuration, from its properties and the environment."""

from __future__ import annotations

import os
from typing import Any

import yaml

from infra.rehearsal.plugins.package import PropertyChange, PropertyFailure
from infra.rehearsal.plugins.wire import UNKNOWN, Props

_SWITCHES = {
    "deleteUnreachable": "PULUMI_K8S_DELETE_UNREACHABLE",
    "skipUpdateUnreachable": "PULUMI_K8S_SKIP_UPDATE_UNREACHABLE",
    "enableConfigMapMutable": "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE",
    "enableSecretMutable": "PULUMI_K8S_ENABLE_SECRET_MUTABLE",
    "enablePatchForce": "PULUMI_K8S_ENABLE_PATCH_FORCE",
    "upsertExistingObjects": "PULUMI_K8S_UPSERT_EXISTING_OBJECTS",
}
_KNOWN = {*_SWITCHES, "kubeconfig", "context", "namespace", "clusterIdentifier", "enableServerSideApply", "version"}
_KNOWN |= {"pluginDownloadURL", "suppressDeprecationWarnings", "suppressHelmHookWarnings"}


def failures(inputs: Props) -> list[PropertyFailure]:
    unknown = sorted(name for name in inputs if name not in _KNOWN and not name.startswith("__"))
    names = ", ".join(sorted(_KNOWN))
    return [
        PropertyFailure(name, f"unknown property '{name}' of the kubernetes provider: known are {names}")
        for name in unknown
    ]


def changes(old: Props, new: Props) -> list[PropertyChange]:
    """Compare configurations: another cluster replaces all its resources, other credentials for it do not."""
    differences = []
    for name in sorted(set(old) | set(new)):
        if old.get(name) == new.get(name) or name == "version":
            continue
        is_other_cluster = name == "clusterIdentifier" or (
            name == "kubeconfig"
            and not new.get("clusterIdentifier")
            and new.get(name) != UNKNOWN
            and server(old.get(name)) != server(new.get(name))
        )
        differences.append(PropertyChange(name, "update", is_other_cluster))
    return differences


def server(text: Any) -> Any:
    """Return the API servers in a kubeconfig, or the text itself if it is a path."""
    try:
        content = yaml.safe_load(str(text))
        return sorted(item["cluster"]["server"] for item in content["clusters"])
    except (yaml.YAMLError, KeyError, TypeError):
        return text


def switch(inputs: Props, name: str) -> bool:
    value = inputs.get(name)
    if value is None:
        value = os.environ.get(_SWITCHES[name], "")
    return str(value).lower() in ("true", "1")
