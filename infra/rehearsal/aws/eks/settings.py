"""A cluster's settings as EKS shows them, and EKS's names for changes of them."""

from __future__ import annotations

import json
from typing import Any

from infra.tables import table

ONLY_IF_SET = ("encryptionConfig", "zonalShiftConfig")
"""Settings that DescribeCluster leaves out if the cluster was made without them."""
LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
UPDATES: dict[str, dict[str, str]] = table("infra.rehearsal.aws.eks", "settings")


def logging(previous: dict[str, Any], requested_logging: dict[str, Any]) -> dict[str, Any]:
    """Return every log type, enabled ones first; types that are not in the request stay unchanged."""
    on: set[str] = set()
    for setup in (*previous.get("clusterLogging", []), *requested_logging.get("clusterLogging", [])):
        types = set(setup.get("types") or [])
        on = on | types if setup.get("enabled") else on - types
    parts = (
        (True, [log_type for log_type in LOG_TYPES if log_type in on]),
        (False, [log_type for log_type in LOG_TYPES if log_type not in on]),
    )
    return {"clusterLogging": [{"types": types, "enabled": switch} for switch, types in parts if types]}


def kind(names: list[str]) -> str:
    """Return the UpdateType of a change of these settings."""
    return UPDATES[names[0]]["update"] if names else "ConfigUpdate"


def update_parameters(names: list[str], params: dict[str, Any]) -> list[dict[str, str]]:
    """Return the params of an Update: each setting with its requested value."""
    requests = {**params, **(params.get("resourcesVpcConfig") or {}), **(params.get("accessConfig") or {})}
    return [{"type": UPDATES[name]["param"], "value": _text(requests[name])} for name in names]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
