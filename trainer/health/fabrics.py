"""The node's EFA devices, and the proof by NCCL's log that the collective used all of them, or all of InfiniBand's."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from trainer.contract import Probe
from trainer.health.gpus import version_probe
from trainer.health.infiniband.findings import finding
from trainer.health.looking import CannotLook, Look, blind, text_of
from trainer.health.parsers import fabric
from trainer.health.parsers.fabric import NcclLog

SYSFS = Path("/sys/class/infiniband")
_CURE = "the launch template's interfaces and the pod's request of vpc.amazonaws.com/efa must both name all of them"
_NCCL_CURE = (
    "the image needs aws-ofi-nccl on its library path, the pod its EFA devices and huge pages; for GPUDirect RDMA the "
    "node needs efa_nv_peermem or DMA-BUF, and nothing may set NCCL_NET_GDR_LEVEL"
)

_VERBS_CURE = (
    "the pod needs /dev/infiniband and unlimited memlock, the image libibverbs with its provider (rdma-core); nothing "
    "may set NCCL_IB_DISABLE, NCCL_NET=Socket, or an NCCL_IB_HCA that leaves ports out; for GPUDirect RDMA the node "
    "needs nvidia-peermem or DMA-BUF"
)


def efa_probes(count: int, look: Look, sysfs: Path = SYSFS) -> Iterator[Probe]:
    """Count the EFA devices of the kernel and of libfabric; yield nothing if the type has none."""
    if not count:
        return
    yield _count_probe("efa_devices", of_sysfs(sysfs), count, "in /sys/class/infiniband")
    for name in ("/opt/amazon/efa/bin/fi_info", "fi_info"):
        try:
            output = look(name, "-p", "efa", "-t", "FI_EP_RDM")
        except CannotLook:
            continue
        # It ends with an error when it finds no device: count 0.
        yield _count_probe("efa_libfabric", fabric.parse_fi_info(output.text), count, "by fi_info")
        return
    yield blind("efa_libfabric", "there is no fi_info in the image", f"{count} devices", "bake the EFA installer in")


def of_sysfs(sysfs: Path) -> tuple[str, ...]:
    """Return Amazon's RDMA devices."""
    if not sysfs.is_dir():
        return ()
    devices = []
    for device in sorted(sysfs.iterdir()):
        try:
            vendor = (device / "device" / "vendor").read_text().strip()
        except OSError:
            continue
        if vendor == fabric.EFA_VENDOR:
            devices.append(device.name)
    return tuple(devices)


def _count_probe(name: str, devices: tuple[str, ...], count: int, source: str) -> Probe:
    ok = len(devices) == count
    return Probe(
        name=name, ok=ok, seen=f"{len(devices)} {source}", wanted=f"{count} EFA devices", cure="" if ok else _CURE
    )


def nccl_probe(log: NcclLog, count: int, gpudirect: bool = False) -> Probe:
    """Require the EFA provider, all devices, GPUDirect if the type has it, and no channel between nodes over another
    network.

    The line is `NET/OFI Selected provider is efa, fabric is efa-direct (found N nics)`. A fallback to sockets is ten
    times slower and appears only there.
    """
    wrong = []
    if log.providers != ("efa",):
        wrong.append(f"provider {', '.join(log.providers) or 'none'}")
    elif log.nics != (count,):
        finding = f"found {' and '.join(map(str, log.nics))} devices"
        wrong.append(finding if log.nics else "NCCL does not say how many devices it found")
    networks = [name for name in (*log.networks, *log.channels) if "Libfabric" not in name]
    if networks:
        wrong.append(f"network {', '.join(dict.fromkeys(networks))}")
    elif not log.networks and not log.channels:
        wrong.append("NCCL names no network")
    ends = sum(log.channels.values())
    # The same words on all nodes: if the image lacks it, no node is to blame.
    if gpudirect and ends and not log.gdr_channels:
        wrong.append("no channel between nodes by GPUDirect RDMA: all go through the hosts' memory")
    direct = f", {log.gdr_channels} of {ends} channel ends by GPUDirect" if ends else ""
    using = f"provider efa{' (' + ', '.join(log.fabrics) + ')' if log.fabrics else ''}, {count} devices{direct}"
    return Probe(
        name="nccl_efa",
        ok=not wrong,
        seen="; ".join(wrong) or using,
        wanted=f"provider efa with {count} devices{' by GPUDirect RDMA' if gpudirect else ''} and no other network",
        cure=_NCCL_CURE if wrong else "",
    )


def infiniband_nccl_probe(log: NcclLog, ports: Collection[str], gpudirect: bool = False) -> Probe:
    """Require NCCL's own transport for InfiniBand and RoCE over all these ports, and no channel over TCP.

    The line is `NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:…`, with RoCE in the place of IB; a fall
    back says `NET/IB : No device found.` and `NET/Socket : Using [0]eth0:…`, and then trains at a tenth of the speed.
    `ports`: names such as `mlx5_0:1`.
    """
    networks = dict.fromkeys((*log.networks, *log.channels))
    wrong = [f"network {name}" for name in networks if not name.startswith("IB")]
    if wrong or not networks:
        wrong += [f"TCP through {interfaces}" for interfaces in log.tcp]
        wrong += ["NCCL found no device of InfiniBand or RoCE"] if log.without_verbs else []
    for row in log.verbs_ports:
        if unused_ports := sorted(set(ports) - set(row)):
            wrong.append(f"{len(row)} of {len(ports)} ports used, not {', '.join(unused_ports)}")
    if not wrong and not (networks and log.verbs_ports):
        wrong.append("NCCL does not say which network and which ports it uses")
    ends = sum(log.channels.values())
    if gpudirect and ends and not log.gdr_channels:
        wrong.append("no channel between nodes by GPUDirect RDMA: all go through the hosts' memory")
    names = ", ".join(ports)
    target = f"NCCL's network IB over {names} and no TCP"
    return finding("nccl_infiniband", wrong, f"{'/'.join(log.link_layers)} over {names}", target, _VERBS_CURE)


def kernel_module(look: Look) -> str | None:
    """Return the version of the kernel's EFA module; None if unknown."""
    try:
        version = text_of(look("cat", "/sys/module/efa/version"), "efa")
    except CannotLook:
        return None
    # Amazon's module says 2.17.3g where its package and installer say 2.17.3.
    number = re.match(r"\d+(\.\d+)*", version.strip())
    return number and number[0]


PLUGIN_VARIABLE = "BIVOUAC_OFI_NCCL"
"""Version of aws-ofi-nccl that images/trainer.Dockerfile installed."""
_ANOTHER = "another library is found before the image's own: look at LD_LIBRARY_PATH, LD_PRELOAD, /etc/ld.so.conf.d"


def carried_probes(log: NcclLog | None, environment: Mapping[str, str] = os.environ) -> Iterator[Probe]:
    """Yield the probes of NCCL and its plugin, which the container carries; none if NCCL was not used.

    The node image has the GPU driver and EFA's kernel module, and Bivouac's driver knows the baked versions. NCCL and
    its plugin come with the container: each base has its own, so only the image can state them.
    """
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
