"""The pilot: one GPU node that proves itself before the others are asked for. Pure: the rule, and what it saves."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from infra.plan.estimates.figure import Figure, cents, figure, round_to
from infra.plan.purchase import RESERVED
from infra.spec.campaign import Spec

PILOT_FROM = 4
"""Fewest GPU nodes for a pilot of its own accord: with fewer, the others' time costs less than ten minutes' delay."""
PILOT_TAKES = timedelta(minutes=10)
"""As long as preflight without a pilot: a node joins in 6 minutes and proves itself in 4."""


def pilot_first(spec: Spec) -> bool:
    """Return whether one GPU node starts before the others.

    Waiting nodes bill on demand and on spot, so a fault that all share costs the time of one instead of all. A
    reservation or a block bills in any case, and a block's time runs: there all nodes start at once, as in a cluster
    that stands.
    """
    if spec.borrows_nodes:
        return False
    choice = spec.preflight.pilot
    if choice == "auto":
        return spec.nodes.count >= PILOT_FROM and spec.nodes.capacity not in RESERVED
    return choice and spec.nodes.count > 1


def pilot_words(spec: Spec) -> str:
    """Return the pilot's part of preflight's time, or why a large gang has none."""
    if pilot_first(spec):
        return f"; before that a pilot, 1 of {spec.nodes.count} nodes, {PILOT_TAKES.total_seconds() / 60:g}"
    bills = spec.preflight.pilot == "auto" and spec.nodes.count >= PILOT_FROM
    return f"; no pilot first: {spec.nodes.capacity} bills in any case" if bills else ""


def pilot_figures(spec: Spec, usd_per_hour: Decimal, idle_usd_per_hour: Decimal) -> tuple[Figure, ...]:
    """Return what a pilot saves at most and what it costs; nothing without one. Rates with and without GPU nodes."""
    if not pilot_first(spec):
        return ()
    other_nodes, hours = spec.nodes.count - 1, Decimal(PILOT_TAKES.total_seconds()) / 3600
    node, idle_rate = (usd_per_hour - idle_usd_per_hour) / spec.nodes.count, idle_usd_per_hour
    price = f"{round_to(node, 4)} USD/h"
    minutes = int(PILOT_TAKES.total_seconds() / 60)
    saving = f"{other_nodes} nodes x {price} x {minutes} min: what they would bill until a fault of all showed"
    costs = f"(1 node x {price} + {round_to(idle_rate, 4)} USD/h beside it) x {minutes} min, where nothing is wrong"
    return (
        figure("saves at most", cents(other_nodes * node * hours), "USD", saving),
        figure("costs", cents((node + idle_rate) * hours), "USD", costs),
        figure("takes", minutes, "min", "the node joins 6, probes, imports and all-reduce 4"),
    )
