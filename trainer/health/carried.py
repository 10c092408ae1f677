"""Versions of NCCL and its plugin that the image states, compared with those that its processes load.

The GPU driver and EFA's kernel module belong to the node image, and Bivouac's driver knows the baked versions. NCCL and
its plugin belong to the container: each base has its own, so only the image can state them.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from trainer.contract import Probe
from trainer.health.gpus import version_probe
from trainer.health.parsers.fabric import NcclLog

PLUGIN_VARIABLE = "BIVOUAC_OFI_NCCL"
"""Version of aws-ofi-nccl that images/trainer.Dockerfile installed."""
_ANOTHER = "another library is found before the image's own: look at LD_LIBRARY_PATH, LD_PRELOAD, /etc/ld.so.conf.d"


def carried_probes(log: NcclLog | None, environment: Mapping[str, str] = os.environ) -> Iterator[Probe]:
    """Yield the probes of NCCL and its plugin; none if NCCL was not used."""
    if log is None:
        return
    # Only the first rank of all prints NCCL's version.
    yield _version_probe("nccl", log.nccl or loaded_nccl(), wheel_nccl())
    if log.plugin is not None:
        yield _version_probe("aws-ofi-nccl", log.plugin, environment.get(PLUGIN_VARIABLE))


def _version_probe(component: str, version: str | None, stated_version: str | None) -> Probe:
    if version is not None and stated_version is None:
        target = "reported only: the image does not say which one it carries"
        return Probe(name=f"version {component}", ok=True, seen=version, wanted=target)
    return version_probe(component, version, stated_version or "", f"the image carries {stated_version}: {_ANOTHER}")


def wheel_nccl() -> str | None:
    """Return the version of torch's NCCL wheel; None if torch was built with another NCCL."""
    for package in metadata.distributions():
        if re.fullmatch(r"nvidia[-_]nccl[-_]cu\d+", str(package.metadata["Name"])):
            return str(package.version)
    return None


def loaded_nccl() -> str | None:
    """Return the version of the NCCL that torch loads; None if it loads none."""
    import torch  # noqa: F401, it loads the library

    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    major, remainder = divmod(number.value, 10_000)
    return f"{major}.{remainder // 100}.{remainder % 100}"
