"""Parsers of `nvidia-smi -q -x` and `nvidia-smi nvlink -s` and `-e`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

_NOTHING = ("", "N/A", "[N/A]", "Requested functionality has been deprecated")
_GPU = re.compile(r"^GPU (\d+):")
_SPEED = re.compile(r"^\s*Link (\d+): (?:([\d.]+) GB/s|<?(inactive|off|sleep)>?)", re.IGNORECASE)
_ERRORS = re.compile(r"^\s*Link (\d+): (\w[\w -]*?) Errors?: (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """One GPU; fields are None if the driver says N/A or does not know them."""

    bus_id: str
    product: str
    uuid: str
    memory_mib: float | None
    mig: bool | None
    ecc: bool | None
    uncorrectable_since_boot: int | None
    """Memory errors that ECC could not correct since the driver was loaded; None if unknown."""
    uncorrectable_in_life: int | None
    """The same since the GPU was made."""
    sram_threshold_exceeded: bool | None
    remap_pending: bool | None
    remap_failed: bool | None
    repair_pending: bool
    """Repair of a memory channel or a texture cluster, or retired pages, pending until a reset."""
    unrepairable: bool
    recovery_action: str | None
    """The driver's recommendation; its text for nothing is `None`."""
    throttles: tuple[str, ...]
    """Active reasons for lower clocks, in the tool's words, such as `hw_thermal_slowdown`."""
    pcie_width: tuple[int | None, int | None]
    """Lanes: current, maximum."""
    power_limit_w: tuple[float | None, float | None]
    """Limits: enforced, default."""
    fabric_state: str | None
    fabric_status: str | None


@dataclass(frozen=True)
class Smi:
    driver: str
    cuda: str
    attached: int
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class NvLinks:
    """NVLinks of one GPU: link -> GB/s, 0 when it is inactive."""

    gpu: int
    speeds: dict[int, float]

    @property
    def active(self) -> int:
        return sum(speed > 0 for speed in self.speeds.values())


def parse_query(text: str) -> Smi:
    """Parse `nvidia-smi -q -x`. Raises `ValueError` for any other document."""
    try:
        root = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML of nvidia-smi: {error}: {text[:120]!r}") from error
    if root.tag != "nvidia_smi_log":
        raise ValueError(f"a document <{root.tag}> instead of <nvidia_smi_log>")
    gpus = tuple(_gpu(element) for element in root.findall("gpu"))
    gpu_count = _number(root, "attached_gpus")
    return Smi(
        driver=_text(root, "driver_version") or "",
        cuda=_text(root, "cuda_version") or "",
        attached=len(gpus) if gpu_count is None else int(gpu_count),
        gpus=gpus,
    )


def _gpu(element: ElementTree.Element) -> Gpu:
    waiting = ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending", "retired_pages/pending_retirement",
               "retired_pages/pending_blacklist")  # fmt: skip
    widths = "pci/pci_gpu_link_info/link_widths"
    return Gpu(
        bus_id=element.get("id", ""),
        product=_text(element, "product_name") or "",
        uuid=_text(element, "uuid") or "",
        memory_mib=_number(element, "fb_memory_usage/total"),
        mig=_is(element, "mig_mode/current_mig", "Enabled"),
        ecc=_is(element, "ecc_mode/current_ecc", "Enabled"),
        uncorrectable_since_boot=_uncorrectable(element.find("ecc_errors/volatile")),
        uncorrectable_in_life=_uncorrectable(element.find("ecc_errors/aggregate")),
        sram_threshold_exceeded=_is(element, "ecc_errors/aggregate/sram_threshold_exceeded", "Yes"),
        remap_pending=_is(element, "remapped_rows/remapped_row_pending", "Yes"),
        remap_failed=_is(element, "remapped_rows/remapped_row_failure", "Yes"),
        repair_pending=any(_is(element, path, "Yes") for path in waiting),
        unrepairable=bool(_is(element, "ecc_errors/unrepairable_memory", "Yes")),
        recovery_action=_recovery(element),
        throttles=tuple(_throttles(element)),
        pcie_width=(
            _integer(_number(element, f"{widths}/current_link_width")),
            _integer(_number(element, f"{widths}/max_link_width")),
        ),
        power_limit_w=(
            _number(element, "gpu_power_readings/current_power_limit"),
            _number(element, "gpu_power_readings/default_power_limit"),
        ),
        fabric_state=_text(element, "fabric/state"),
        fabric_status=_text(element, "fabric/status"),
    )


def _uncorrectable(element: ElementTree.Element | None) -> int | None:
    """Return the sum over SRAM and DRAM; newer drivers split SRAM's into parity and SEC-DED."""
    return _sum([_count(child) for child in element if "_uncorrectable" in child.tag]) if element is not None else None


def _recovery(element: ElementTree.Element) -> str | None:
    """Return the driver's recovery action (from 565 on), or one derived from the older reset status."""
    if (action := _text(element, "gpu_recovery_action")) is not None:
        return action
    if _is(element, "gpu_reset_status/reset_required", "Yes"):
        return "Reset"
    if _is(element, "gpu_reset_status/drain_and_reset_recommended", "Yes"):
        return "Drain and Reset"
    return None if element.find("gpu_reset_status") is None else "None"


def _throttles(element: ElementTree.Element) -> Iterator[str]:
    """Yield the active reasons; drivers before 535 call them throttle reasons."""
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for child in element.find(name) if element.find(name) is not None else ():  # type: ignore[union-attr]
            if (child.text or "").strip() == "Active":
                yield child.tag.partition("_reason_")[2]


def _text(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in _NOTHING else text


def _number(element: ElementTree.Element, path: str) -> float | None:
    """Return the leading number, as of `81920 MiB`, `16x`, `1410 MHz`."""
    match = re.match(r"-?[\d.]+", _text(element, path) or "")
    return float(match.group()) if match else None


def _count(element: ElementTree.Element) -> int | None:
    return int(element.text or "") if (element.text or "").strip().isdigit() else None


def _sum(parts: list[int | None]) -> int | None:
    numbers = [number for number in parts if number is not None]
    return sum(numbers) if numbers else None


def _integer(number: float | None) -> int | None:
    return None if number is None else int(number)


def _is(element: ElementTree.Element, path: str, word: str) -> bool | None:
    text = _text(element, path)
    return None if text is None else text == word


def parse_links(text: str) -> tuple[NvLinks, ...]:
    """Parse `nvidia-smi nvlink -s`; empty if no GPU has links."""
    speeds_by_gpu: dict[int, dict[int, float]] = {}
    gpu = -1
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu = int(head.group(1))
            speeds_by_gpu[gpu] = {}
        elif gpu >= 0 and (link := _SPEED.match(line)):
            speeds_by_gpu[gpu][int(link.group(1))] = float(link.group(2) or 0)
    return tuple(NvLinks(number, speeds) for number, speeds in speeds_by_gpu.items())


def parse_link_errors(text: str) -> dict[tuple[int, int, str], int]:
    """Parse `nvidia-smi nvlink -e`: (GPU, link, kind of error such as `CRC`) -> count."""
    counts: dict[tuple[int, int, str], int] = {}
    gpu = -1
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu = int(head.group(1))
        elif gpu >= 0 and (error := _ERRORS.match(line)):
            counts[gpu, int(error.group(1)), error.group(2).strip()] = int(error.group(3))
    return counts
