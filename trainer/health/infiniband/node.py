"""A node's own InfiniBand or RoCE: its ports, its cables, and what the container needs to use them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainer.contract import Probe
from trainer.health.infiniband.findings import CABLE_CURE, MANAGER_CURE, RIGHTS_CURE, finding, several
from trainer.health.infiniband.links import parse_links
from trainer.health.infiniband.ports import ETHERNET, INFINIBAND, SYSFS, Port, default_interface, read_ports
from trainer.health.infiniband.settings import PortChoice, choose, derive, settings_probe
from trainer.health.looking import CannotLook, Look, blind, text_of

DEVICES = Path("/dev/infiniband")
WITHOUT_DEVICES = "the container has no /dev/infiniband, so RoCE was not asked for"
_DEVICE_CURE = "the pod must request its cluster's rdma/… resource, or mount /dev/infiniband"
_MEMORY_CURE = "set LimitMEMLOCK=infinity for the nodes' container runtime (containerd's unit file), and restart it"
_IPC_LOCK = 14
"""Number of the capability in linux/capability.h."""
_DISABLED_CURE = "somebody switched the port off: ibportstate LID PORT enable, or ip link set DEVICE up"


def choice_of(look: Look, sysfs: Path = SYSFS, devices: Path = DEVICES) -> PortChoice:
    """Return the node's ports for the gang's traffic; none on a node without InfiniBand and RoCE.

    An Ethernet adapter of a model that knows RoCE may be a plain network card: it is one where the container has no
    device for RDMA. InfiniBand without a device is a fault.
    """
    choice = choose(read_ports(look, sysfs), default_interface(), os.environ.get("NCCL_IB_HCA", ""))
    if devices.is_dir() or any(port.layer == INFINIBAND for port in choice.ports):
        return choice
    return PortChoice((), {**choice.left_out, **{port.name: WITHOUT_DEVICES for port in choice.ports}})


def nccl_environment(choice: PortChoice) -> dict[str, str]:
    """Return NCCL's variables for this node; none where NCCL takes the right ports by itself, or a person has written
    them into one of NCCL's files, over which the environment would win."""
    return derive(choice) if choice.left_out and not _names_ports_in_a_file() else {}


def _names_ports_in_a_file() -> bool:
    """Return whether a file of NCCL's does, or may: one that cannot be read could name them.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html has the files.
    """
    names = ("/etc/nccl.conf", os.path.expanduser("~/.nccl.conf"), os.environ.get("NCCL_CONF_FILE", ""))
    try:
        texts = [Path(name).read_text(errors="replace") for name in names if os.path.lexists(name)]
    except OSError:
        return True
    return any(line.strip().startswith("NCCL_IB_HCA") for text in texts for line in text.splitlines())


def infiniband_probes(
    choice: PortChoice, look: Look, environment: Mapping[str, str] = os.environ, ports: int = 0, rdma: bool = False
) -> Iterator[Probe]:
    """Judge a node's ports; nothing where it has none, unless it must have `rdma`. `ports`: active ones that it must
    have; 0 for one port or more of each adapter."""
    plain = [port for port, reason in choice.left_out.items() if reason == WITHOUT_DEVICES]
    if rdma and not choice.usable and all(port.layer == ETHERNET and port.state for port in choice.ports):
        yield _missing_probe(choice)
        return
    if plain:
        yield blind("infiniband_devices", f"{several(plain)}: {WITHOUT_DEVICES}", "NCCL over RoCE", _DEVICE_CURE)
    if not choice.ports:
        return
    unread = [port.name for port in choice.ports if not port.state]
    if unread or (not choice.usable and all(port.layer == ETHERNET for port in choice.ports)):
        cause = f"{several(unread)} tells no state" if unread else "no Ethernet port that may be RoCE's is active"
        yield blind("infiniband_ports", cause, "an active port of each adapter", RIGHTS_CURE)
        return
    yield _ports_probe(choice, ports)
    if rdma:
        yield memory_probe()
    waiting = [f"{port.name} {port.state}, SM lid {port.sm_lid}" for port in choice.ports if port.waits_for_manager]
    yield finding("infiniband_subnet_manager", waiting, "every port is configured",
                  "a subnet manager that has configured every port", MANAGER_CURE)  # fmt: skip
    yield _links_probe(choice.usable, look)
    yield settings_probe(choice, environment)


def memory_probe(status: Path = Path("/proc/self/status"), limit: int | None = None) -> Probe:
    """Require that the container may pin memory without limit, or has IPC_LOCK: NCCL registers its buffers. `limit`:
    bytes, -1 for none; None asks the kernel."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    name, target = "infiniband_memlock", "no limit on pinned memory"
    capabilities = next((line.split()[1] for line in _lines(status) if line.startswith("CapEff:")), None)
    if limit != resource.RLIM_INFINITY and capabilities is None:
        return blind(name, f"{status} tells no capabilities", target, _MEMORY_CURE)
    may_lock = limit == resource.RLIM_INFINITY or bool(int(capabilities or "0", 16) >> _IPC_LOCK & 1)
    bad = [] if may_lock else [f"{limit / 2**20:g} MiB, without IPC_LOCK"]
    return finding(name, bad, target, target, _MEMORY_CURE)


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines() if file.is_file() else []


def _missing_probe(choice: PortChoice) -> Probe:
    """Return the failure of a node without a port for RDMA: each that it has with its state, or why it is none."""
    places = [f"{port.name} {port.state}" for port in choice.ports]
    places += [f"{name}: {reason}" for name, reason in choice.left_out.items()]
    findings = places or ["no adapter in /sys/class/infiniband"]
    return finding("infiniband_rdma", findings, "", "a usable port of InfiniBand or RoCE", _DEVICE_CURE)


def _ports_probe(choice: PortChoice, spec_count: int) -> Probe:
    """Require an active port of each adapter: half of the adapters is half of the bandwidth, and NCCL says nothing."""
    active_adapters = {port.adapter for port in choice.usable}
    down = [port for port in choice.ports if port.state == "Down"]
    idle = [port for port in down if port.adapter not in active_adapters]
    if spec_count > len(choice.usable):
        idle = down
    bad = [f"{port.name} {port.state}, {port.physical_state}" for port in idle]
    if spec_count > len(choice.usable) and not bad:
        bad = [f"{len(choice.usable)} active ports in all"]
    if not choice.usable and not bad and not any(port.waits_for_manager for port in choice.ports):
        bad = [f"{port.name} {port.state}" for port in choice.ports]
    adapters = len({port.adapter for port in choice.ports})
    fine = f"{len(choice.usable)} active ports on {len(active_adapters)} of {adapters} adapters"
    target = f"{spec_count} active ports" if spec_count else f"an active port of each of {adapters} adapters"
    cure = _DISABLED_CURE if idle and all(port.physical_state == "Disabled" for port in idle) else CABLE_CURE
    return finding("infiniband_ports", bad, fine, target, cure)


def _links_probe(ports: Sequence[Port], look: Look) -> Probe:
    """Compare each port's cable with what both its ends support, and equal adapters with each other."""
    name, target = "infiniband_links", "every link as wide and as fast as both its ends support"
    bad, places = [], []
    for port in ports:
        fastest = max(peer.rate_gbit_s for peer in ports if peer.model == port.model)
        if port.rate_gbit_s < fastest:
            bad.append(f"{port.name}: {port.rate_gbit_s:g} Gbit/s, another {port.model or 'port'} has {fastest:g}")
    try:
        for port in (port for port in ports if port.layer == INFINIBAND):
            # The walk ends at the port's switch, and so lists one cable, from this end.
            command = ("iblinkinfo", "-l", "-C", port.adapter, "-P", str(port.number), "-D", "0", "-n", "1")
            links = parse_links(text_of(look(*command), "iblinkinfo"))
            if not links:
                raise CannotLook(f"iblinkinfo lists no cable of {port.name}")
            for link in links:
                places.append(f"{port.name} at {link.ends[1]}")
                bad += [f"{places[-1]}: {link.shortfall}"] if link.could_be else []
    except CannotLook as error:
        # What the ports say by themselves is judged all the same.
        if not bad:
            return blind(name, error, target, RIGHTS_CURE)
    return finding(name, bad, several(places) or f"{len(ports)} ports of one speed", target, CABLE_CURE)
