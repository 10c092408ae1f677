"""Verdicts on a node's GPUs: the output of their tools compared with the profile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from trainer.contract import AT_LEAST, KERNEL_LOG, GpuExpectation, Limits, Probe
from trainer.health.looking import CannotLook, Look, blind, text_of
from trainer.health.nvlinks import links_of
from trainer.health.parsers import kernel_log, nvidia_smi
from trainer.health.parsers.nvidia_smi import Gpu, Smi

TOOL_CURE = "the image must ask for the driver's `utility` capability: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_REPLACE = "replace the node: nobody repairs a GPU of an EC2 instance"


def gpu_probes(expectation: GpuExpectation, limits: Limits, look: Look, driver: str | None = None) -> Iterator[Probe]:
    """Yield all probes of a node's GPUs, in the order in which a person would look. `driver`: the baked version."""
    try:
        smi = nvidia_smi.parse_query(text_of(look("nvidia-smi", "-q", "-x", timeout_s=60), "nvidia-smi"))
    except (CannotLook, ValueError) as error:
        yield blind("gpus", error, f"{expectation.count} {expectation.product}", TOOL_CURE)
    else:
        yield from query_probes(smi, expectation, limits)
        if driver is not None:
            yield version_probe("driver", smi.driver, driver)
    yield _probe_or_blind("xid", "no fatal Xid", lambda: xid_probe(_kernel_log(look), limits.xids), _KERNEL_CURE)
    if expectation.nvlinks:
        target = f"{expectation.nvlinks} active links per GPU"
        yield _probe_or_blind(
            "nvlinks", target, lambda: links_of(_output_of(look, "nvidia-smi", "nvlink", "-s"), expectation)
        )


def identities(look: Look) -> tuple[str, ...]:
    """Return the UUIDs of the node's GPUs, which stay those of the hardware; empty if they cannot be read."""
    try:
        smi = nvidia_smi.parse_query(text_of(look("nvidia-smi", "-q", "-x", timeout_s=60), "nvidia-smi"))
    except (CannotLook, ValueError):
        return ()
    return tuple(gpu.uuid for gpu in smi.gpus if gpu.uuid)


def bus_addresses(look: Look) -> frozenset[str]:
    """Return the PCI addresses of the GPUs that the driver shows here, as the kernel writes them: `0000:9b:00.0`.

    Raises `CannotLook` or `ValueError`.
    """
    smi = nvidia_smi.parse_query(text_of(look("nvidia-smi", "-q", "-x", timeout_s=60), "nvidia-smi"))
    # The tool writes eight digits of the domain, the kernel as few as it needs but four.
    parts = (gpu.bus_id.lower().partition(":") for gpu in smi.gpus)
    return frozenset(f"{int(domain, 16):04x}:{slot}" for domain, _, slot in parts)


def suspicion(look: Look) -> str:
    """Return why a GPU of this node is suspected; empty if none is. What cannot be looked at is suspected."""
    try:
        smi = nvidia_smi.parse_query(text_of(look("nvidia-smi", "-q", "-x", timeout_s=10), "nvidia-smi"))
    except (CannotLook, ValueError) as error:
        return f"its GPUs cannot be looked at: {error}"
    if len(smi.gpus) != smi.attached:
        return f"{len(smi.gpus)} of {smi.attached} GPUs answer"
    judges = {"ecc": lambda gpu: _memory_errors(gpu, 0), "row_remapping": _remapping, "recovery": _recovery}
    wrong = (probe for name, judge in judges.items() if not (probe := _probe_all(name, smi.gpus, judge, "")).ok)
    return next((f"{probe.name}: {probe.seen}" for probe in wrong), "")


def _output_of(look: Look, *command: str) -> str:
    return text_of(look(*command), " ".join(command))


_KERNEL_CURE = "look at the node's service bivouac-kernel-log, which `image.nodes: bake` and `eks` have"
_KERNEL_BEGINS = "Linux version"


def _kernel_log(look: Look) -> str:
    """Return the kernel's log. Raises `CannotLook` if the node wrote none: an empty file proves nothing."""
    log = _output_of(look, "cat", KERNEL_LOG)
    if _KERNEL_BEGINS not in log:
        raise CannotLook(f"{KERNEL_LOG} does not hold the kernel's first line")
    return log


def _probe_or_blind(name: str, target: str, probe: Callable[[], Probe], cure: str = "") -> Probe:
    try:
        return probe()
    except (CannotLook, ValueError) as error:
        return blind(name, error, target, cure)


def query_probes(smi: Smi, expectation: GpuExpectation, limits: Limits) -> Iterator[Probe]:
    """Yield the probes of `nvidia-smi -q -x`: number, kind, memory errors, pending resets, clocks, lanes, switch."""
    # A whole word: an L40S is not an L4.
    pattern = re.compile(rf"\b{re.escape(expectation.product)}\b")
    fitting = [card for card in smi.gpus if pattern.search(card.product)]
    names = ", ".join(sorted({card.product for card in smi.gpus})) or "none"
    yield Probe(
        name="gpus",
        ok=len(fitting) == smi.attached == expectation.count,
        seen=f"{smi.attached} attached: {names}",
        wanted=f"{expectation.count} {expectation.product}",
        cure=_REPLACE,
    )
    yield _probe_all(
        "gpu_memory",
        smi.gpus,
        lambda gpu: _memory(gpu, expectation.memory_gib),
        f">= {expectation.memory_gib:.0f} GiB each",
    )
    yield _probe_all("mig", smi.gpus, lambda gpu: "partitioned" if gpu.mig else None, "not partitioned")
    yield _probe_all("ecc_mode", smi.gpus, lambda gpu: "off" if gpu.ecc is False else None, "on")
    maximum = limits.uncorrectable_errors
    target = f"<= {maximum} uncorrectable errors since boot, none over the GPU's own threshold"
    yield _probe_all("ecc", smi.gpus, lambda gpu: _memory_errors(gpu, maximum), target)
    yield _probe_all("row_remapping", smi.gpus, _remapping, "nothing failed, nothing waits for a reset")
    yield _probe_all("recovery", smi.gpus, _recovery, "the driver recommends nothing")
    yield _probe_all(
        "throttling", smi.gpus, lambda gpu: _slowdown(gpu, limits.slowdowns), "no slowdown by hardware or heat"
    )
    lanes = None if expectation.pcie is None else expectation.pcie.lanes
    yield _probe_all("clock_limits", smi.gpus, lambda gpu: _limits(gpu, lanes), "power limit and lanes as built")
    if expectation.nvswitch:
        yield _probe_all("fabric_manager", smi.gpus, _fabric, "Completed, Success")


def _probe_all(name: str, gpus: Iterable[Gpu], judge: Callable[[Gpu], str | None], target: str) -> Probe:
    """Make one probe over all GPUs; `judge` returns the fault of one, or None."""
    bad = [f"GPU {number} ({gpu.bus_id}): {wrong}" for number, gpu in enumerate(gpus) if (wrong := judge(gpu))]
    return Probe(name=name, ok=not bad, seen="; ".join(bad) or "all well", wanted=target, cure=_REPLACE if bad else "")


def _memory(gpu: Gpu, wanted_gib: float) -> str | None:
    if gpu.memory_mib is None or gpu.memory_mib / 1024 >= wanted_gib:
        return None
    return f"{gpu.memory_mib / 1024:.1f} GiB"


def _memory_errors(gpu: Gpu, maximum: int) -> str | None:
    if (gpu.uncorrectable_since_boot or 0) > maximum:
        return f"{gpu.uncorrectable_since_boot} uncorrectable since boot, {gpu.uncorrectable_in_life} in its life"
    if gpu.sram_threshold_exceeded:
        return f"SRAM errors over NVIDIA's threshold, {gpu.uncorrectable_in_life} uncorrectable in its life"
    return "memory that cannot be repaired" if gpu.unrepairable else None


def _remapping(gpu: Gpu) -> str | None:
    if gpu.remap_failed:
        return "a row could not be remapped"
    if gpu.remap_pending or gpu.repair_pending:
        return "a repair waits for a reset"
    return None


def _recovery(gpu: Gpu) -> str | None:
    return None if gpu.recovery_action in (None, "None") else gpu.recovery_action


def _slowdown(gpu: Gpu, slowdowns: Iterable[str]) -> str | None:
    return ", ".join(reason for reason in gpu.throttles if reason in slowdowns) or None


def _limits(gpu: Gpu, lanes: int | None) -> str | None:
    """Return the fault of the link or of the power limit; `lanes`: where the type has fewer than the card."""
    width, full = gpu.pcie_width
    full = lanes or full
    limit, default = gpu.power_limit_w
    if width is not None and full is not None and width < full:
        return f"PCIe x{width} of x{full}"
    if limit is not None and default is not None and limit < default:
        return f"power limit {limit:.0f} W of {default:.0f} W"
    return None


def _fabric(gpu: Gpu) -> str | None:
    if gpu.fabric_state is None:  # GPUs before Hopper do not register with their switch
        return None
    if (gpu.fabric_state, gpu.fabric_status) == ("Completed", "Success"):
        return None
    return f"{gpu.fabric_state}, {gpu.fabric_status or 'no status'}"


def xid_probe(log: str, xids: Mapping[str, Iterable[int]]) -> Probe:
    """Fail on fatal events; only report others, since the node's GPUs have answered."""
    events = kernel_log.parse(log, xids)
    fatal = list(dict.fromkeys(str(event) for event in events if event.fatal))
    reports = list(dict.fromkeys(str(event) for event in events if not event.fatal))
    return Probe(
        name="xid",
        ok=not fatal,
        seen="; ".join([*fatal, *(f"not fatal: {event}" for event in reports)]) or "none",
        wanted="no fatal Xid or SXid in the kernel log",
        cure=_REPLACE if fatal else "",
    )


def version_probe(component: str, version: str | None, target: str, cure: str | None = None) -> Probe:
    """Compare versions by whole parts: `580` matches 580.159.03, `2.30.4` matches 2.30.4 but not 2.30.40. `target` with
    `AT_LEAST` is a floor."""
    name = f"version {component}"
    if version is None or not _numbers(version):
        return blind(name, "its version is unknown" + (f": {version}" if version else ""), target)
    if target.startswith(AT_LEAST):
        floor = _numbers(target)
        fits = _numbers(version) + [0] * len(floor) >= floor
        cure = "name a newer AMI in image.nodes, or write `nodes: eks` for AWS's newest, or `nodes: bake`"
    else:
        fits = [*_parts(version)][: len(_parts(target))] == _parts(target)
        cure = cure or f"images/versions.yaml says {target}; bake again, or correct the file"
    return Probe(name=name, ok=fits, seen=version, wanted=target, cure="" if fits else cure)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _parts(version: str) -> list[str]:
    return version.removeprefix("v").replace("-", ".").replace("+", ".").split(".")
