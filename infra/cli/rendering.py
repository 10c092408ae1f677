"""Prints findings and plans as tables for people; machines read the models' JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.text import Text

from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.console.words import size
from infra.errors import UserError
from infra.folders import cache_root, keep
from infra.plan.checks import Finding, Level
from infra.plan.estimates.clock import UNTIL_ARCHIVED, longest_seconds
from infra.plan.estimates.figure import Figure, cents
from infra.plan.plan import Plan
from infra.spec import duration

_PRICES = "price-age"
_STYLE = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}


def print_findings(console: Console, file: Path, findings: tuple[Finding, ...]) -> None:
    """Print a block per finding: place and level, message, the value seen, and the cure; then a count. Old prices are
    one line a day."""
    for old in (candidate for candidate in findings if candidate.rule == _PRICES and _is_first_today(_PRICES)):
        cure = f"; {old.cure}" if _has_credentials() else ""
        say(console, f"{old.message}: {old.seen}{cure}")
    findings = tuple(candidate for candidate in findings if candidate.rule != _PRICES)
    for finding in findings:
        head = Text.assemble(
            (f"{file}:{finding.line}", "bold"), "  ", (finding.level.upper(), _STYLE[finding.level]), "  ",
            (finding.field, "bold"), f" {finding.message}", ("  [" + finding.rule + "]", "dim"),
        )  # fmt: skip
        console.print(head, soft_wrap=True)
        console.print(Text.assemble(("    seen  ", "dim"), finding.seen), soft_wrap=True)
        console.print(Text.assemble(("    cure  ", "dim"), finding.cure), soft_wrap=True)
    console.print(_verdict(file, findings), soft_wrap=True)


def _has_credentials() -> bool:
    """Return whether environment or files name AWS credentials, without the third of a second that botocore takes."""
    names = ("ACCESS_KEY_ID", "CONFIG_FILE", "PROFILE", "SHARED_CREDENTIALS_FILE", "WEB_IDENTITY_TOKEN_FILE")
    # Builds and containers of AWS's get theirs from an address.
    addresses = ("CONTAINER_CREDENTIALS_FULL_URI", "CONTAINER_CREDENTIALS_RELATIVE_URI")
    variables = {f"AWS_{name}" for name in (*names, *addresses)}
    files = (Path(os.path.expanduser(f"~/.aws/{name}")) for name in ("credentials", "config"))
    return bool(variables & os.environ.keys()) or any(file.is_file() for file in files)


def _is_first_today(label: str) -> bool:
    """Return True once a day for each `what` on this machine, and always where that cannot be noted."""
    today = datetime.now(UTC).date().isoformat()
    try:
        note = cache_root() / f"shown-{label}"
        last_day = note.read_text() if note.is_file() else ""
        return last_day != today and (keep(note, today, lambda _: None) or True)
    except (OSError, ValueError, UserError):
        return True


_MADE = "Cost and clock are AWS's; a rehearsal spends nothing and goes faster."
_BORROWED = (
    "Cost is nodes.usd_per_hour alone: cluster, volumes, S3 and network are on their owner's bill. No campaign has met "
    "such a cluster yet: the clock is an estimate, without waits for nodes that are in use."
)


def print_plan(console: Console, plan: Plan) -> None:
    """Print cost, clock, tiers and cadence, each figure with its formula."""
    shape = plan.layout
    console.print(
        Text.assemble(
            (f"{plan.campaign}", "bold"),
            f" on {plan.target}: {shape.nodes} nodes x {shape.ranks_per_node} ranks = {shape.world_size} ranks,"
            f" accumulation {shape.accumulation}",
        ),
        soft_wrap=True,
    )
    for table in _plan_tables(plan):
        console.print()
        table.show(console)
    console.print(Text(_MADE if plan.makes_cluster else _BORROWED, "dim"))


def _plan_tables(plan: Plan) -> Iterable[Listing]:
    yield _figures("Work", plan.work)
    clock = Listing("stage", ">time", ">at most", "~formula", title="Clock", has_rule=True)
    for stage in plan.clock:
        clock.row(stage.stage, _seconds(stage.seconds), _seconds(longest_seconds((stage,))), stage.formula)
    clock.add_section()
    longest, until_archived = longest_seconds(plan.clock), longest_seconds(plan.clock, *UNTIL_ARCHIVED)
    clock.row(
        "all stages",
        _seconds(plan.totals.clock.value),
        _seconds(longest),
        "if AWS takes its longest" if plan.makes_cluster else "",
        style="bold",
    )
    deadline = f"deadline {duration.text(plan.deadline)}"
    clock.row("until archived", _seconds(plan.totals.gpu_clock.value), _seconds(until_archived), deadline)
    if plan.block is not None:
        for label, moment, reason in (
            ("train until", plan.block.train_until, "nodes until - one interval - archive"),
            ("nodes until", plan.block.nodes_until, "the block's end - 40 min: EKS takes them away then"),
            ("block ends", plan.block.ends, "spec: nodes.block_end"),
        ):
            clock.row(label, f"{moment.astimezone(UTC):%m-%d %H:%M}Z", "", reason)
    yield clock
    if plan.pilot:
        yield _figures("Pilot: one GPU node proves itself before the others are asked for", plan.pilot)
    yield _cost(plan)
    tiers = Listing(
        "tier", "~where", ">one", ">keep", ">needed", ">of", "~formula", title="Checkpoint tiers", has_rule=True
    )
    for tier in plan.tiers:
        room = size(tier.capacity_bytes) if tier.capacity_bytes is not None else ""
        tiers.row(
            tier.name, tier.where, size(tier.checkpoint_bytes), str(tier.keep), size(tier.needed_bytes), room,
            tier.formula,
        )  # fmt: skip
    yield tiers
    yield _figures("Checkpoint cadence", plan.cadence)


def _cost(plan: Plan) -> Listing:
    table = Listing("what", ">USD", "~formula", title="Cost", has_rule=True)
    for line in plan.cost:
        table.row(line.name, f"{line.usd:,}" if line.priced else "unknown", line.formula)
    table.add_section()
    totals = plan.totals
    source = f"prices as of {plan.prices_as_of}" if plan.makes_cluster else "spec: nodes.usd_per_hour, or no price"
    table.row("planned", f"{cents(totals.usd.value):,}", source, style="bold")
    table.row("budget", f"{cents(plan.budget_usd):,}", "spec: money.budget_usd")
    for figure in (totals.usd_per_hour, totals.usd_per_hour_idle):
        table.row(figure.name, f"{cents(figure.value):,}/h", figure.formula)
    table.row("at the deadline", f"{cents(totals.usd_at_deadline.value):,}", totals.usd_at_deadline.formula)
    if (launch := totals.usd_of_dead_launch) is not None:
        table.row(launch.name, f"{cents(launch.value):,}", launch.formula)
    return table


def _figures(title: str, figures: tuple[Figure, ...]) -> Listing:
    table = Listing("figure", ">value", "unit", "~formula", title=title, has_rule=True)
    for item in figures:
        table.row(item.name, f"{item.value:,f}", item.unit, item.formula)
    return table


def _verdict(file: Path, findings: tuple[Finding, ...]) -> Text:
    counts = [
        f"{number} {level}{'s' if number > 1 and level is not Level.INFO else ''}"
        for level in (Level.ERROR, Level.WARNING, Level.INFO)
        if (number := sum(finding.level is level for finding in findings))
    ]
    bad = any(finding.level is Level.ERROR for finding in findings)
    return Text.assemble(
        (f"{file}: ", "bold"),
        ("cannot be run" if bad else "can be run", "bold red" if bad else "bold green"),
        f" ({', '.join(counts)})" if counts else " (nothing found)",
    )


def _seconds(amount: Decimal) -> str:
    return duration.text(timedelta(seconds=float(amount)))
