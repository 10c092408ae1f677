"""A cluster's settings as EKS shows them, and EKS's names for changes of them."""

from __future__ import annotations

import json
from typing import Any

ONLY_IF_SET = ("encryptionConfig", "zonalShiftConfig")
"""Settings that DescribeCluster leaves out if the cluster was made without them."""
LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
PARAMS = {
    "authenticationMode": "AuthenticationMode",
    "deletionProtection": "DeletionProtection",
    "endpointPrivateAccess": "EndpointPrivateAccess",
    "endpointPublicAccess": "EndpointPublicAccess",
    "logging": "ClusterLogging",
    "publicAccessCidrs": "PublicAccessCidrs",
    "securityGroupIds": "SecurityGroups",
    "subnetIds": "Subnets",
    "upgradePolicy": "UpgradePolicy",
    "zonalShiftConfig": "ZonalShiftConfig",
}
"""Setting -> UpdateParamType."""
KINDS = {
    "authenticationMode": "AccessConfigUpdate",
    "deletionProtection": "DeletionProtectionUpdate",
    "endpointPrivateAccess": "EndpointAccessUpdate",
    "endpointPublicAccess": "EndpointAccessUpdate",
    "logging": "LoggingUpdate",
    "publicAccessCidrs": "EndpointAccessUpdate",
    "securityGroupIds": "VpcConfigUpdate",
    "subnetIds": "VpcConfigUpdate",
    "upgradePolicy": "UpgradePolicyUpdate",
    "zonalShiftConfig": "ZonalShiftConfigUpdate",
}
"""Setting -> UpdateType."""


def logging(before: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Return every log type, enabled ones first; types that are not in the request stay unchanged."""
    on: set[str] = set()
    for setup in (*before.get("clusterLogging", []), *asked.get("clusterLogging", [])):
        types = set(setup.get("types") or [])
        on = on | types if setup.get("enabled") else on - types
    parts = ((True, [one for one in LOG_TYPES if one in on]), (False, [one for one in LOG_TYPES if one not in on]))
    return {"clusterLogging": [{"types": types, "enabled": enabled} for enabled, types in parts if types]}


def kind(changed: list[str]) -> str:
    """Return the UpdateType of a change of these settings."""
    return KINDS[changed[0]] if changed else "ConfigUpdate"


def told(changed: list[str], params: dict[str, Any]) -> list[dict[str, str]]:
    """Return the params of an Update: each setting with its requested value."""
    asked = {**params, **(params.get("resourcesVpcConfig") or {}), **(params.get("accessConfig") or {})}
    return [{"type": PARAMS[name], "value": _text(asked[name])} for name in changed]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
