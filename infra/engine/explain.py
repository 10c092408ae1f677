"""Prints drift and plans: grouped by component, differences shortened, losses with their consequence."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.markup import escape

from infra.engine.consequences import consequence
from infra.engine.drift import SHORT, UNKNOWN, PropertyDifference, Row, StackLook, as_document, short
from infra.engine.refusal import Refusal
from infra.plan.estimates.cost import HOURS_PER_MONTH
from infra.plan.plan import Plan

_LINES = 8
_SIGN = {"create": "+", "update": "~", "replace": "±", "delete": "-", "deleted": "-", "changed": "~"}
_WORD = {"deleted": "deleted by hand", "changed": "changed by hand"}
_BILLS = {
    ("Cluster", "cluster"): "EKS control plane",
    ("NatGateway", "nat"): "NAT gateway",
    ("LustreFileSystem", "shared"): "FSx for Lustre",
    ("NodeGroup", "system-nodes"): "system node",
    ("NodeGroup", "gpu-nodes"): "GPU nodes",
}


@dataclass(frozen=True)
class CostChange:
    """Change of the bill by a created or deleted resource, by the plan's line."""

    what: str
    usd_per_hour: Decimal
    usd_per_month: Decimal
    usd_per_campaign: Decimal


def difference(change: PropertyDifference) -> list[str]:
    """Return one line, or the differing lines of two long documents."""
    old, new = as_document(change.before), as_document(change.after)
    forces = "  (forces a replacement)" if change.replaces else ""
    long = max(len(short(change.before)), len(short(change.after))) >= SHORT
    if not (long and isinstance(old, dict | list) and isinstance(new, dict | list)):
        return [f"{change.path}: {short(change.before)} -> {short(change.after)}{forces}"]
    left, right = (json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (old, new))
    lines = [line for line in difflib.unified_diff(left, right, n=0, lineterm="") if line[:2] not in ("--", "++", "@@")]
    sides = [[line for line in lines if line.startswith(sign)] for sign in "-+"]
    lines_shown = [line for side in sides for line in side[: _LINES // 2]]
    ellipsis = [f"… and {len(lines) - len(lines_shown)} lines more"] if len(lines) > len(lines_shown) else []
    return [f"{change.path}:{forces}", *(f"  {line}" for line in lines_shown), *ellipsis]


def print_drift(console: Console, looks: Iterable[StackLook], campaign: str) -> None:
    """Print the drift of the stacks."""
    for look in looks:
        for note in look.notes:
            console.print(f"{look.stack}: {escape(note)}")
        if not look.drifted:
            console.print(f"{look.stack}: {look.resources} resources, no drift")
            continue
        console.print(f"{look.stack}: {len(look.drifted)} of {look.resources} resources have drifted")
        _print_rows(console, look.drifted, explain=True)
    if any(look.drifted for look in looks):
        console.print(f"`bivouac repair {campaign}` shows the repair and carries it out after a yes")


def print_plan(console: Console, looks: Iterable[StackLook]) -> None:
    """Print what an `up` would do."""
    for look in looks:
        if not look.planned:
            console.print(f"{look.stack}: nothing to change")
            continue
        verbs = [row.verb for row in look.planned]
        counts = ", ".join(f"{verbs.count(verb)} to {verb}" for verb in _SIGN if verb in verbs)
        console.print(f"{look.stack}: {counts}")
        _print_rows(console, look.planned, explain=False)


def print_refusals(console: Console, refusals: Iterable[Refusal]) -> None:
    for refusal in refusals:
        console.print(f"[red]refused[/] {escape(str(refusal))}; cure: {escape(refusal.cure)}")


def print_costs(console: Console, changes: Iterable[CostChange]) -> None:
    rows = tuple(changes)
    for row in rows:
        console.print(
            f"  {row.usd_per_month:+12,.2f} USD a month of {HOURS_PER_MONTH} h  {row.usd_per_campaign:+11,.2f} USD "
            f"for this campaign as planned  {row.what}"
        )
    if len(rows) > 1:
        month, campaign = sum(x.usd_per_month for x in rows), sum(x.usd_per_campaign for x in rows)
        console.print(
            f"  {month:+12,.2f} USD a month of {HOURS_PER_MONTH} h  {campaign:+11,.2f} USD "
            f"for this campaign as planned  together"
        )


def cost_changes(looks: Iterable[StackLook], plan: Plan, endpoints: int) -> tuple[CostChange, ...]:
    """Return cost changes by the plan's hourly lines; GPU nodes count as if all were up, though they start at none.
    `endpoints`: number of interface endpoints that the plan counts."""
    lines = {line.name: line for line in plan.cost}
    costs = list[CostChange]()
    for row in (row for look in looks for row in look.planned):
        sign = {"create": 1, "delete": -1}.get(row.verb, 0)
        name, part = _BILLS.get((row.kind.rpartition(":")[2], row.name)), Decimal(1)
        if row.kind.endswith(":VpcEndpoint") and row.name != "s3":
            name, part = "interface endpoints", Decimal(1) / max(1, endpoints)
        if sign and name in lines and lines[name].priced:
            line, share = lines[name], sign * part
            hourly = line.usd_per_hour * share
            costs.append(CostChange(name, hourly, hourly * HOURS_PER_MONTH, line.usd * share))
    return tuple(costs)


def as_facts(looks: Iterable[StackLook], refusals: Iterable[Refusal]) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "stacks": [
            {
                "stack": look.stack,
                "resources": look.resources,
                "notes": list(look.notes),
                "drifted": [_fact(row) | {"consequence": consequence(row)} for row in look.drifted],
                "planned": [_fact(row) for row in look.planned],
            }
            for look in looks
        ],
        "refused": [{"resource": refusal.row.title, "urn": refusal.row.urn, "why": refusal.why, "cure": refusal.cure}
                    for refusal in refusals],
    }  # fmt: skip


def _fact(row: Row) -> dict[str, Any]:
    """Return a row as JSON; values that only AWS will give are None and marked unknown."""
    changes: list[Mapping[str, Any]] = [
        asdict(change) | {"after": None, "unknown": True} if change.after == UNKNOWN else asdict(change)
        for change in row.changes
    ]
    return {"resource": row.title, "type": row.kind, "component": row.component, "urn": row.urn,
            "verb": row.verb, "changes": changes}  # fmt: skip


def _print_rows(console: Console, rows: Iterable[Row], *, explain: bool) -> None:
    by_component: dict[str, list[Row]] = {}
    for row in rows:
        by_component.setdefault(row.component, []).append(row)
    for component, group in by_component.items():
        console.print(f"  [bold]{escape(component)}[/]")
        for row in group:
            means = f": {consequence(row)}" if explain and consequence(row) else ""
            word = _WORD.get(row.verb, row.verb)
            console.print(f"    {_SIGN[row.verb]} {escape(row.title)} [dim]{word}[/]{escape(means)}", soft_wrap=True)
            for line in (line for change in row.changes for line in difference(change)):
                console.print(f"        {escape(line)}", soft_wrap=True)
