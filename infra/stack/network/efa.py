"""Network interfaces of an instance at launch, by the rules of EC2's user guide. Pure.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.plan.catalogue import InstanceType


@dataclass(frozen=True)
class Interface:
    """`device` counts per card."""

    card: int
    device: int
    kind: Literal["interface", "efa-only"]


def efa_layout(item: InstanceType) -> tuple[Interface, ...]:
    """Return one plain interface with the node's only address, and an `efa-only` on every card that can carry one.
    `efa-only` interfaces take no address; the one on card 0 is that card's second device."""
    primary = Interface(0, 0, "interface")
    first = [Interface(0, 1, "efa-only")] if item.efa_on_first_card else []
    others = [Interface(card, 0, "efa-only") for card in range(1, item.network_cards)]
    return (primary, *[*first, *others][: item.efa_interfaces])
