"""Verdicts on a node's GPUs: the output of their tools compared with the profile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from trainer.contract import AT_LEAST, KERNEL_LOG, GpuExpectation, Limits, Probe
from trainer.health.looking import CannotLook, Look, blind, text_of
from trainer.health.nvlinks import links_of
from trainer.health.parsers import kernel_log, nvidia_smi
from trainer.health.parsers.nvidia_smi import Gpu, Smi

_REPLACE = "replace the node: nobody repairs a GPU of an EC2 instance"


def gpu_probes(expectation: GpuExpectation, limits: Limits, look: Look, driver: str | None = None) -> Iterator[Probe]:
    """Yield all probes of a node's GPUs, in the order in which a person would look. `driver`: the baked version."""
    try:
        smi = nvidia_smi.parse_query(text_of(look("nvidia-smi", "-q", "-x", timeout_s=60), "nvidia-smi"))
    except (CannotLook, ValueError) as error:
        cure = "the image must ask for the driver's `utility` capability: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield blind("gpus", error, f"{expectation.count} {expectation.product}", cure)
    else:
        yield from query_probes(smi, expectation, limits)
        if driver is not None:
            yield version_probe("driver", smi.driver, driver)
    yield _looked("xid", "no fatal Xid", lambda: xid_probe(_kernel_log(look), limits.xids), _KERNEL_CURE)
    if expectation.nvlinks:
        wanted = f"{expectation.nvlinks} active links per GPU"
        yield _looked("nvlinks", wanted, lambda: links_of(_said(look, "nvidia-smi", "nvlink", "-s"), expectation))


def suspicion(look: Look) -> str:
    """Return why a GPU of this node is suspected; empty if none is. What cannot be looked at is suspected."""
    try:
        smi = nvidia_smi.parse_query(text_of(look("nvidia-smi", "-q", "-x", timeout_s=10), "nvidia-smi"))
    except (CannotLook, ValueError) as error:
        return f"its GPUs cannot be looked at: {error}"
    if len(smi.gpus) != smi.attached:
        return f"{len(smi.gpus)} of {smi.attached} GPUs answer"
    judges = {"ecc": lambda gpu: _memory_errors(gpu, 0), "row_remapping": _remapping, "recovery": _recovery}
    wrong = (probe for name, judge in judges.items() if not (probe := _each(name, smi.gpus, judge, "")).ok)
    return next((f"{probe.name}: {probe.seen}" for probe in wrong), "")


def _said(look: Look, *command: str) -> str:
    return text_of(look(*command), " ".join(command))


_KERNEL_CURE = "look at the node's service bivouac-kernel-log, which `image.nodes: bake` and `eks` have"
_KERNEL_BEGINS = "Linux version"


def _kernel_log(look: Look) -> str:
    """Return the kernel's log. Raises `CannotLook` if the node wrote none: an empty file proves nothing."""
    log = _said(look, "cat", KERNEL_LOG)
    if _KERNEL_BEGINS not in log:
        raise CannotLook(f"{KERNEL_LOG} does not hold the kernel's first line")
    return log


def _looked(name: str, wanted: str, probe: Callable[[], Probe], cure: str = "") -> Probe:
    try:
        return probe()
    except (CannotLook, ValueError) as error:
        return blind(name, error, wanted, cure)


def query_probes(smi: Smi, expectation: GpuExpectation, limits: Limits) -> Iterator[Probe]:
    """Yield the probes of `nvidia-smi -q -x`: number, kind, memory errors, pending resets, clocks, lanes, switch."""
    # A whole word: an L40S is not an L4.
    named = re.compile(rf"\b{re.escape(expectation.product)}\b")
    fitting = [one for one in smi.gpus if named.search(one.product)]
    names = ", ".join(sorted({one.product for one in smi.gpus})) or "none"
    yield Probe(
        name="gpus",
        ok=len(fitting) == smi.attached == expectation.count,
        seen=f"{smi.attached} attached: {names}",
        wanted=f"{expectation.count} {expectation.product}",
        cure=_REPLACE,
    )
    yield _each(
        "gpu_memory",
        smi.gpus,
        lambda gpu: _memory(gpu, expectation.memory_gib),
        f">= {expectation.memory_gib:.0f} GiB each",
    )
    yield _each("mig", smi.gpus, lambda gpu: "partitioned" if gpu.mig else None, "not partitioned")
    yield _each("ecc_mode", smi.gpus, lambda gpu: "off" if gpu.ecc is False else None, "on")
    most = limits.uncorrectable_errors
    wanted = f"<= {most} uncorrectable errors since boot, none over the GPU's own threshold"
    yield _each("ecc", smi.gpus, lambda gpu: _memory_errors(gpu, most), wanted)
    yield _each("row_remapping", smi.gpus, _remapping, "nothing failed, nothing waits for a reset")
    yield _each("recovery", smi.gpus, _recovery, "the driver recommends nothing")
    yield _each(
        "throttling", smi.gpus, lambda gpu: _throttled(gpu, limits.slowdowns), "no slowdown by hardware or heat"
    )
    lanes = None if expectation.pcie is None else expectation.pcie.lanes
    yield _each("clock_limits", smi.gpus, lambda gpu: _limits(gpu, lanes), "power limit and lanes as built")
    if expectation.nvswitch:
        yield _each("fabric_manager", smi.gpus, _fabric, "Completed, Success")


def _each(name: str, gpus: Iterable[Gpu], judge: Callable[[Gpu], str | None], wanted: str) -> Probe:
    """Make one probe over all GPUs; `judge` returns the fault of one, or None."""
    bad = [f"GPU {number} ({gpu.bus_id}): {wrong}" for number, gpu in enumerate(gpus) if (wrong := judge(gpu))]
    return Probe(name=name, ok=not bad, seen="; ".join(bad) or "all well", wanted=wanted, cure=_REPLACE if bad else "")


def _memory(gpu: Gpu, wanted_gib: float) -> str | None:
    if gpu.memory_mib is None or gpu.memory_mib / 1024 >= wanted_gib:
        return None
    return f"{gpu.memory_mib / 1024:.1f} GiB"


def _memory_errors(gpu: Gpu, most: int) -> str | None:
    if (gpu.uncorrectable_since_boot or 0) > most:
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


def _throttled(gpu: Gpu, slowdowns: Iterable[str]) -> str | None:
    return ", ".join(one for one in gpu.throttles if one in slowdowns) or None


def _limits(gpu: Gpu, wired: int | None) -> str | None:
    """Return the fault of the link or of the power limit; `wired`: lanes where the type has fewer than the card."""
    width, full = gpu.pcie_width
    full = wired or full
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
    fatal = list(dict.fromkeys(str(one) for one in events if one.fatal))
    other = list(dict.fromkeys(str(one) for one in events if not one.fatal))
    return Probe(
        name="xid",
        ok=not fatal,
        seen="; ".join([*fatal, *(f"not fatal: {one}" for one in other)]) or "none",
        wanted="no fatal Xid or SXid in the kernel log",
        cure=_REPLACE if fatal else "",
    )


def version_probe(component: str, seen: str | None, wanted: str, cure: str | None = None) -> Probe:
    """Compare versions by whole parts: `580` matches 580.159.03, `2.30.4` matches 2.30.4 but not 2.30.40. `wanted` with
    `AT_LEAST` is a floor."""
    name = f"version {component}"
    if seen is None:
        return blind(name, "its version is unknown", wanted)
    if wanted.startswith(AT_LEAST):
        fits = _numbers(seen) >= _numbers(wanted)
        cure = "name a newer AMI in image.nodes, or write `nodes: eks` for AWS's newest, or `nodes: bake`"
    else:
        fits = [*_parts(seen)][: len(_parts(wanted))] == _parts(wanted)
        cure = cure or f"images/versions.yaml says {wanted}; bake again, or correct the file"
    return Probe(name=name, ok=fits, seen=seen, wanted=wanted, cure="" if fits else cure)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _parts(version: str) -> list[str]:
    return version.removeprefix("v").replace("-", ".").replace("+", ".").split(".")
