"""What this image carries by its own statement, held against what its processes really load.

The node's driver and EFA's kernel module are the node image's, and the driver knows what was baked. NCCL and its plugin
are the container's: each base brings its own, so that only the image can say which ones it was built with.
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
    """Of NCCL and its plugin; nothing where NCCL was not used."""
    if log is None:
        return
    # Only the first rank of all prints NCCL's version.
    yield _carried("nccl", log.nccl or loaded_nccl(), wheel_nccl())
    if log.plugin is not None:
        yield _carried("aws-ofi-nccl", log.plugin, environment.get(PLUGIN_VARIABLE))


def _carried(component: str, seen: str | None, stated: str | None) -> Probe:
    if seen is not None and stated is None:
        wanted = "reported only: the image does not say which one it carries"
        return Probe(name=f"version {component}", ok=True, seen=seen, wanted=wanted)
    return version_probe(component, seen, stated or "", f"the image carries {stated}: {_ANOTHER}")


def wheel_nccl() -> str | None:
    """Version of the wheel that torch brings NCCL in; None where torch was built against another one."""
    for one in metadata.distributions():
        if re.fullmatch(r"nvidia[-_]nccl[-_]cu\d+", str(one.metadata["Name"])):
            return str(one.version)
    return None


def loaded_nccl() -> str | None:
    """Of the library that a process with torch gets; None where torch has none."""
    import torch  # noqa: F401, the library is found where torch has found it

    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    major, rest = divmod(number.value, 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"
