"""A network ACL against a packet-by-packet reading of the same rules."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv4Network

import pytest

from infra.plan.acl import Traffic, let_through
from infra.plan.facts import AclEntry
from tests.unit.plan.checks.existing_network import OPEN, entry

HTTPS = Traffic(True, "6", 443, 443, IPv4Network("0.0.0.0/0"))


def test_the_default_acl_lets_all_through_and_an_empty_one_nothing() -> None:
    assert let_through(OPEN, HTTPS) and not let_through((), HTTPS)


def test_a_denial_of_another_port_or_of_a_later_number_blocks_nothing() -> None:
    ssh = entry(10, True, False, (22, 22), protocol="6")
    late = entry(200, True, False, (443, 443), protocol="6")
    assert let_through((ssh, late, *OPEN), HTTPS)
    assert not let_through((entry(10, True, False, (443, 443), "10.0.0.0/8", "6"), *OPEN), HTTPS)


def packet_passes(entries: list[AclEntry], egress: bool, protocol: str, port: int, address: IPv4Address) -> bool:
    for one in sorted(entries, key=lambda one: one.number):
        fits = one.egress == egress and one.protocol in ("-1", protocol) and address in IPv4Network(one.cidr)
        if fits and (one.protocol == "-1" or one.first <= port <= one.last):
            return one.allow
    return False


@pytest.mark.parametrize("seed", range(60))
def test_traffic_passes_exactly_where_each_of_its_packets_does(seed: int) -> None:
    """The world is small: eight addresses and eight ports, so that every packet can be tried."""
    dice = random.Random(seed)
    cidrs = [str(net) for length in (29, 30, 31) for net in IPv4Network("10.0.0.0/29").subnets(new_prefix=length)]
    entries = []
    for number in range(dice.randint(1, 6)):
        ports = sorted((dice.randint(0, 7), dice.randint(0, 7)))
        entries.append(
            entry(number, dice.random() < 0.8, dice.random() < 0.8, (ports[0], ports[1]), dice.choice(cidrs),
                  dice.choice(["-1", "6", "17"]))
        )  # fmt: skip
    for cidr in cidrs:
        for first in range(8):
            for last in range(first, 8):
                traffic = Traffic(True, "6", first, last, IPv4Network(cidr))
                packets = [(port, address) for port in range(first, last + 1) for address in IPv4Network(cidr)]
                assert let_through(entries, traffic) == all(
                    packet_passes(entries, True, "6", port, address) for port, address in packets
                ), (entries, traffic)
