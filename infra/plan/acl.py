"""Evaluation of a network ACL. Pure. Rules are tried by number; the first that matches a packet decides, and what none
matches is denied. https://docs.aws.amazon.com/vpc/latest/userguide/nacl-rules.html"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from infra.plan.facts import AclEntry

_ALL = "-1"


@dataclass(frozen=True)
class Traffic:
    """Packets of one protocol in one direction; `cidr` is the other side's."""

    egress: bool
    protocol: str
    first: int
    last: int
    cidr: IPv4Network


def let_through(entries: Sequence[AclEntry], traffic: Traffic) -> bool:
    """Return True if the ACL lets all of it through."""
    relevant = [
        entry for entry in entries if entry.egress == traffic.egress and entry.protocol in (_ALL, traffic.protocol)
    ]
    return _all_pass(sorted(relevant, key=lambda entry: entry.number), traffic)


def _all_pass(entries: Sequence[AclEntry], traffic: Traffic) -> bool:
    for position, entry in enumerate(entries):
        network = IPv4Network(entry.cidr)
        first_port, last_port = (0, 65535) if entry.protocol == _ALL else (entry.first, entry.last)
        if not network.overlaps(traffic.cidr) or last_port < traffic.first or traffic.last < first_port:
            continue
        if not entry.allow:
            return False
        later_entries = entries[position + 1 :]
        return all(
            _all_pass(later_entries, remainder) for remainder in _outside(traffic, network, first_port, last_port)
        )
    return False


def _outside(traffic: Traffic, network: IPv4Network, first_port: int, last_port: int) -> Iterator[Traffic]:
    """Yield what a rule for these addresses and ports leaves of the traffic."""
    if traffic.first < first_port:
        yield replace(traffic, last=first_port - 1)
    if last_port < traffic.last:
        yield replace(traffic, first=last_port + 1)
    if not traffic.cidr.subnet_of(network):
        overlap = replace(traffic, first=max(first_port, traffic.first), last=min(last_port, traffic.last))
        for part in traffic.cidr.address_exclude(network):
            yield replace(overlap, cidr=part)
