"""The node's NVLinks: their number, and the errors on them while the collective runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from trainer.contract import GpuExpectation, Probe
from trainer.health.looking import CannotLook, Look, blind, text_of
from trainer.health.parsers import nvidia_smi

_REPLACE = "replace the node: nobody repairs a GPU of an EC2 instance"
_SHOWN = 4


def links_of(text: str, expectation: GpuExpectation) -> Probe:
    """Require all links of the type on every GPU, none inactive."""
    counts = {links.gpu: links.active for links in nvidia_smi.parse_links(text)}
    bad = [f"GPU {gpu}: {active}" for gpu, active in counts.items() if active != expectation.nvlinks]
    if len(counts) != expectation.count:
        bad.append(f"{len(counts)} GPUs listed")
    return Probe(
        name="nvlinks",
        ok=not bad,
        seen="; ".join(bad) or f"{expectation.nvlinks} each",
        wanted=f"{expectation.nvlinks} active links on each of {expectation.count} GPUs",
        cure=_REPLACE if bad else "",
    )


@dataclass(frozen=True)
class LinkErrors:
    """Errors since the driver was loaded, as read at one moment."""

    at_s: float
    counts: dict[tuple[int, int, str], int]
    """(GPU, link, kind) -> errors."""
    blind: str = ""
    """Why the counters could not be read."""


def read_errors(look: Look) -> LinkErrors:
    try:
        counts = nvidia_smi.parse_link_errors(text_of(look("nvidia-smi", "nvlink", "-e"), "nvidia-smi nvlink -e"))
    except CannotLook as error:
        return LinkErrors(time.monotonic(), {}, str(error))
    return LinkErrors(time.monotonic(), counts, "" if counts else "no counters")


def errors_probe(start: LinkErrors, end: LinkErrors, most_per_s: float) -> Probe:
    """Judge the rate at which errors came between two readings. Links correct single errors, so the totals, which also
    count the training of the links when the driver was loaded, are only told."""
    name, target = "nvlink_errors", f"< {most_per_s:g} errors/s of one kind on one link"
    if reason := start.blind or end.blind:
        return blind(name, reason, target)
    took_s = max(end.at_s - start.at_s, 1e-3)
    rates = {key: (count - start.counts.get(key, 0)) / took_s for key, count in end.counts.items()}
    bad = [f"{_link(key)}: {rate:.0f} {key[2]} errors/s" for key, rate in rates.items() if rate >= most_per_s]
    old = [f"{_link(key)}: {count} {key[2]}" for key, count in end.counts.items() if count]
    totals = f"in all since the driver was loaded {_summary(old)}" if old else f"{len(end.counts)} counters at 0"
    return Probe(name=name, ok=not bad, seen="; ".join([_summary(bad), totals] if bad else [totals]), wanted=target,
                 cure=_REPLACE if bad else "")  # fmt: skip


def _link(key: tuple[int, int, str]) -> str:
    return f"GPU {key[0]} link {key[1]}"


def _summary(words: list[str]) -> str:
    suffix = f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + suffix
