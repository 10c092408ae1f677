"""Which network interfaces an instance gets at launch. Pure; the rules are those of EC2's user guide.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.catalogue import InstanceType


@dataclass(frozen=True)
class Interface:
    """`device` counts per card."""

    card: int
    device: int
    kind: Literal["interface", "efa-only"]


def efa_layout(item: InstanceType) -> tuple[Interface, ...]:
    """One plain interface with the node's only address, and an `efa-only` on every card that can carry one.

    `efa-only` interfaces take no address; the one on card 0 is that card's second device.
    """
    primary = Interface(0, 0, "interface")
    first = [Interface(0, 1, "efa-only")] if item.efa_on_first_card else []
    others = [Interface(card, 0, "efa-only") for card in range(1, item.network_cards)]
    return (primary, *[*first, *others][: item.efa_interfaces])


def layout_problems(item: InstanceType, layout: tuple[Interface, ...]) -> list[str]:
    """What EC2 would refuse, or what would leave a fabric slower than the type offers; empty for a sound layout."""
    problems = []
    efas = [one for one in layout if one.kind == "efa-only"]
    if len({(one.card, one.device) for one in layout}) != len(layout):
        problems.append("two interfaces share a card and device index")
    if layout[:1] != (Interface(0, 0, "interface"),):
        problems.append("card 0, device 0 must be the plain primary interface")
    if len(efas) != item.efa_interfaces:
        problems.append(f"{len(efas)} EFA devices where {item.name} has {item.efa_interfaces}")
    if len({one.card for one in efas}) != len(efas):
        problems.append("more than one EFA device on a card")
    if not item.efa_on_first_card and any(one.card == 0 for one in efas):
        problems.append("card 0 carries no EFA")
    for card in range(item.network_cards):
        if sum(one.card == card for one in layout) > item.interfaces_per_card:
            problems.append(f"card {card} holds at most {item.interfaces_per_card} interfaces")
    if any(one.card >= item.network_cards for one in layout):
        problems.append(f"{item.name} has only {item.network_cards} cards")
    return problems
