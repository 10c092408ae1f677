"""The provider's own configuration: the SDK sends everything except strings as JSON text."""

from __future__ import annotations

import json
from typing import Any

from infra.rehearsal.plugins.package import PropertyChange, PropertyFailure
from infra.rehearsal.plugins.wire import UNKNOWN, Props

_TEXT = {
    "accessKey",
    "secretKey",
    "token",
    "profile",
    "region",
    "retryMode",
    "stsRegion",
    "version",
    "pluginDownloadURL",
}
_JSON = {"defaultTags", "endpoints", "maxRetries", "s3UsePathStyle", "allowedAccountIds"}
_CHECKS_OF_THE_REAL_PLUGIN = {
    "skipCredentialsValidation",
    "skipMetadataApiCheck",
    "skipRegionValidation",
    "skipRequestingAccountId",
}
_KNOWN = _TEXT | _JSON | _CHECKS_OF_THE_REAL_PLUGIN


def failures(inputs: Props) -> list[PropertyFailure]:
    unknown = sorted(name for name in inputs if name not in _KNOWN and not name.startswith("__"))
    names = ", ".join(sorted(_KNOWN))
    return [
        PropertyFailure(name, f"unknown property '{name}' of the aws provider: known are {names}") for name in unknown
    ]


def changes(old: Props, new: Props) -> list[PropertyChange]:
    names = sorted(name for name in set(old) | set(new) if old.get(name) != new.get(name) and name != "version")
    return [PropertyChange(name, "update", replaces=name == "region") for name in names]


def parse(inputs: Props) -> Props:
    return {name: _parse(value) if name in _JSON else value for name, value in inputs.items() if value != UNKNOWN}


def _parse(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value else value
