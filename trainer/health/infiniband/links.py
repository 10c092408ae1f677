"""The cables of a fabric, by `iblinkinfo`, and a port's error counters, by `perfquery`."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
        near = LinkEnd(match["guid"], match["name"], int(match["port"]))
        far = LinkEnd(match["peer_guid"], match["peer_name"], int(match["peer_port"]))
        could_be = " ".join(match["hints"].replace("Could be", " ").split())
        link = Cable((near, far), match["width"] or "", match["speed"] or "", match["state"], could_be)
        links.setdefault(frozenset({(near.guid, near.port), (far.guid, far.port)}), link)
    return tuple(links.values())


def parse_counters(text: str) -> dict[str, int]:
    """Parse `perfquery`: name of a counter -> value since it was last reset."""
    return {name: int(value) for name, value in _COUNTER.findall(text)}
