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


def let_through(entries: Sequence[AclEntry], wanted: Traffic) -> bool:
    """Return True if the ACL lets all of it through."""
    chosen = [one for one in entries if one.egress == wanted.egress and one.protocol in (_ALL, wanted.protocol)]
    return _all_pass(sorted(chosen, key=lambda one: one.number), wanted)


def _all_pass(entries: Sequence[AclEntry], wanted: Traffic) -> bool:
    for position, one in enumerate(entries):
        named = IPv4Network(one.cidr)
        first, last = (0, 65535) if one.protocol == _ALL else (one.first, one.last)
        if not named.overlaps(wanted.cidr) or last < wanted.first or wanted.last < first:
            continue
        if not one.allow:
            return False
        rest = entries[position + 1 :]
        return all(_all_pass(rest, other) for other in _without(wanted, named, first, last))
    return False


def _without(wanted: Traffic, named: IPv4Network, first: int, last: int) -> Iterator[Traffic]:
    """Yield what a rule for these addresses and ports leaves of the traffic."""
    if wanted.first < first:
        yield replace(wanted, last=first - 1)
    if last < wanted.last:
        yield replace(wanted, first=last + 1)
    if not wanted.cidr.subnet_of(named):
        both = replace(wanted, first=max(first, wanted.first), last=min(last, wanted.last))
        for part in wanted.cidr.address_exclude(named):
            yield replace(both, cidr=part)
