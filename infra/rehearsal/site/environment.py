"""The environment of a site's processes: a bare one. What the shell has for AWS, clusters, proxies or Python is meant
for the world outside, which a site cannot reach and must not be led to."""

from __future__ import annotations

import os
from collections.abc import Mapping

from infra.folders import CODE

_PASSED = (
    "AWS_SDK_UA_APP_ID", "COLORTERM", "COLUMNS", "HF_HOME", "HF_HUB_CACHE", "HOME", "LANG", "LANGUAGE",
    "LD_LIBRARY_PATH", "LINES", "LOGNAME", "NO_COLOR", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
    "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""What a person, a terminal and a machine are; `AWS_SDK_UA_APP_ID` only names a caller."""
_FAMILIES = ("BIVOUAC_", "LC_")


def bare(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what of an environment belongs in a site, and where our own code lies."""
    inherited_variables = {
        name: value for name, value in environment.items() if name in _PASSED or name.startswith(_FAMILIES)
    }
    # A file of AWS's outside may name endpoints, proxies and profiles too.
    files = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return inherited_variables | files | {"PYTHONPATH": str(CODE)}
