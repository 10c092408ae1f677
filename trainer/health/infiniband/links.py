"""The cables of a fabric, by `iblinkinfo`, and a port's error counters, by `perfquery`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainer.contract import Probe
from trainer.health.infiniband.findings import CABLE_CURE, RIGHTS_CURE, finding, several
from trainer.health.infiniband.ports import INFINIBAND, Port
from trainer.health.looking import CannotLook, Look, blind, text_of

_LINE = re.compile(
    r'^(?P<guid>0x[0-9a-f]+)\s+"\s*(?P<name>[^"]*)"\s+\d+\s+(?P<port>\d+)\[[^]]*\]\s+'
    r"==\(\s*(?:(?P<width>\d+X)\s+(?P<speed>[\d.]+ Gbps)\s+)?(?P<state>\w+)/\s*(?P<physical>\w+)\s*\)==>"
    r'(?:\s+(?P<peer_guid>0x[0-9a-f]+)\s+\d+\s+(?P<peer_port>\d+)\[[^]]*\]\s+"\s*(?P<peer_name>[^"]*)"'
    r"\s+\((?P<hints>[^)]*)\))?"
)
_COUNTER = re.compile(r"^(\w+):\.*(\d+)\s*$", re.MULTILINE)
INITIALIZE = "Initialize"
"""`iblinkinfo`'s word for a link that no subnet manager has configured."""


@dataclass(frozen=True)
class LinkEnd:
    guid: str
    """Of an adapter's port, or of a switch."""
    name: str
    """The node's description: an adapter's begins with its host's name."""
    port: int

    def __str__(self) -> str:
        return f"{self.name} ({self.guid}) port {self.port}"


@dataclass(frozen=True)
class Cable:
    ends: tuple[LinkEnd, LinkEnd]
    width: str
    """`4X`."""
    speed: str
    """Of one lane: `53.125 Gbps`."""
    state: str
    """`Active`, `Initialize`, `Armed`."""
    could_be: str
    """The better width or speed that both ends support; empty if the link has both."""

    @property
    def shortfall(self) -> str:
        return f"{self.width} {self.speed}, could be {self.could_be}"


def parse_links(text: str) -> tuple[Cable, ...]:
    """Parse `iblinkinfo -l` (infiniband-diags): each connected cable once, though the tool lists it from both ends."""
    links: dict[frozenset[tuple[str, int]], Cable] = {}
    for match in filter(None, map(_LINE.match, text.splitlines())):
        if match["peer_guid"] is None:
            continue
        near_end = LinkEnd(match["guid"], match["name"], int(match["port"]))
        far_end = LinkEnd(match["peer_guid"], match["peer_name"], int(match["peer_port"]))
        could_be = " ".join(match["hints"].replace("Could be", " ").split())
        link = Cable((near_end, far_end), match["width"] or "", match["speed"] or "", match["state"], could_be)
        links.setdefault(frozenset({(near_end.guid, near_end.port), (far_end.guid, far_end.port)}), link)
    return tuple(links.values())


def parse_counters(text: str) -> dict[str, int]:
    """Parse `perfquery`: name of a counter -> value since it was last reset."""
    return {name: int(value) for name, value in _COUNTER.findall(text)}


_MOST = {
    "SymbolErrorCounter": 10,
    "LinkErrorRecoveryCounter": 0,
    "LinkDownedCounter": 0,
    "PortRcvErrors": 10,
}
"""Most new errors of a sound port in the minute of a collective. The tens are the thresholds of ibqueryerrors
(/etc/infiniband-diags/error_thresholds); a link that retrains in that minute does so in the training too."""

_FULL = {
    "SymbolErrorCounter": 2**16 - 1,
    "LinkErrorRecoveryCounter": 2**8 - 1,
    "LinkDownedCounter": 2**8 - 1,
    "PortRcvErrors": 2**16 - 1,
}
"""Where they stop to count (InfiniBand Architecture Specification, PortCounters)."""


@dataclass(frozen=True)
class PortErrors:
    """The counters of all ports at one moment."""

    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(port, counter) -> errors since the counter was last reset."""
    blind: str = ""
    """Why they could not be read."""


def read_errors(ports: Sequence[Port], look: Look) -> PortErrors:
    """Read the counters of the InfiniBand ports; RoCE has none of them."""
    counts: dict[tuple[str, str], int] = {}
    for port in ports:
        if port.layer == INFINIBAND:
            try:
                text = text_of(look("perfquery", "-C", port.adapter, "-P", str(port.number)), "perfquery")
            except CannotLook as error:
                return PortErrors(blind=str(error))
            counts |= {(port.name, name): count for name, count in parse_counters(text).items() if name in _MOST}
    return PortErrors(counts)


def errors_probe(start: PortErrors, end: PortErrors) -> Probe:
    """Judge what came between two readings; what was there before is only told, for a cable may have been replaced."""
    name, target = "infiniband_errors", "no new link errors while the collective runs"
    if reason := start.blind or end.blind or ("" if end.counts else "perfquery names no counter of errors"):
        return blind(name, reason, target, RIGHTS_CURE)
    growth = {key: count - start.counts.get(key, 0) for key, count in end.counts.items()}
    bad = [f"{port}: {number} {counter}" for (port, counter), number in growth.items() if number > _MOST[counter]]
    full = [f"{port}: {counter}" for (port, counter), count in end.counts.items() if count >= _FULL[counter]]
    if full and not bad:
        return blind(name, f"counters that are full: {several(full)}", target, "set them to 0: perfquery -R")
    old = [f"{port}: {count} {counter}" for (port, counter), count in end.counts.items() if count]
    fine = f"none new; since they were reset {several(old)}" if old else f"{len(end.counts)} counters at 0"
    return finding(name, bad, fine, target, CABLE_CURE)
