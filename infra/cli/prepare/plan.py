"""`bivouac plan SPEC`: cost, time and checkpoints of the campaign. No network."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import Checked, checked
from infra.cli.rendering import print_plan
from infra.console.plain_console import say
from infra.errors import UserError
from infra.plan.checks import failed
from infra.plan.estimates.clock import UNTIL_ARCHIVED, longest_seconds
from infra.plan.estimates.figure import cents
from infra.plan.plan import Plan, make_plan
from infra.spec import duration
from infra.spec.campaign import Spec


def plan_command(path: Path, json: bool, console: Console) -> int:
    """Print a plan, if one can be made. Exit code 0, or 64 when the spec has errors. `json`: one object on stdout: the
    plan without errors (`Plan.model_validate` reads it back), else the findings as `bivouac check` prints them."""
    check = checked(path)
    bad, plan = failed(check.findings), _plan(check)
    if json and plan is not None and not bad:
        write_json(console, plan.model_dump())
        return 0
    if plan is not None and check.spec is not None and not json:
        for word, sentence in summary(plan, check.spec):
            say(console, f"{word:<8} {sentence}")
        console.print()
        print_plan(console, plan)
        console.print()
    show(path, check.findings, json, console)
    return UserError.exit_code if bad else 0


def _plan(check: Checked) -> Plan | None:
    """Return the plan, None if the spec's errors leave no layout."""
    if check.spec is None or check.facts is None:
        return None
    try:
        return make_plan(check.spec, check.facts)
    except UserError:
        if failed(check.findings):
            return None
        raise


def summary(plan: Plan, spec: Spec) -> tuple[tuple[str, str], ...]:
    """Return five pairs of a word and a sentence."""
    return (
        ("cost", _cost(plan)), ("time", _time(plan)), ("cadence", _cadence(plan, spec)), ("risk", _risk(plan)),
        ("decided", _decisions(plan, spec)),
    )  # fmt: skip


def _cost(plan: Plan) -> str:
    totals = plan.totals
    unknown = f"; no price is known for {', '.join(plan.unpriced)}" if plan.unpriced else ""
    return (
        f"{cents(totals.usd.value):,} USD planned of a budget of {cents(plan.budget_usd):,} USD, at most "
        f"{cents(totals.usd_at_deadline.value):,} USD when the deadline ends it{unknown}"
    )


def _time(plan: Plan) -> str:
    longest = f"{_text(longest_seconds(plan.clock, *UNTIL_ARCHIVED))} if AWS takes its longest; "
    longest = longest if plan.makes_cluster else ""
    return (
        f"{_text(plan.totals.clock.value)} in all, {_text(plan.totals.gpu_clock.value)} until archived, "
        f"{longest}"
        f"the deadline is {duration.text(plan.deadline)}"
    )


def _cadence(plan: Plan, spec: Spec) -> str:
    shared = plan.checkpoint.shared_every
    part = "all" if shared == 1 else f"one in {shared}"
    interval_text = f"{plan.checkpoint.every_steps:,} steps ({_text(_interval(plan))})"
    if spec.storage.shared is None:
        return f"a checkpoint every {interval_text}, {part} in S3"
    copy_interval = _text(plan.figure("archive every").value)
    return f"a checkpoint every {interval_text}, {part} on the shared tier, a copy in S3 every {copy_interval}"


def _risk(plan: Plan) -> str:
    mtbf_s = plan.figure("MTBF of the job").value * 3600
    losses = plan.figure("training time").value / mtbf_s
    lost_text = _interval(plan) * plan.checkpoint.shared_every
    return (
        f"{losses:.2g} node losses expected while it trains; one costs at most {_text(lost_text)} of training "
        f"(what came after the newest checkpoint on the shared tier) and the restart"
    )


def _decisions(plan: Plan, spec: Spec) -> str:
    shared = spec.storage.shared
    explicit = spec.model_fields_set | {f"money.{name}" for name in spec.money.model_fields_set}
    defaults = [
        ("checkpoint cadence derived", plan.checkpoint_derived),
        (f"deadline {duration.text(plan.deadline)}", "money.deadline" not in explicit),
        (f"nodes {spec.nodes.capacity}", plan.makes_cluster and "capacity" not in spec.nodes.model_fields_set),
        (f"on an error {spec.on_stop}", "on_stop" not in explicit),
        (f"one node lost in {spec.recovery.node_mtbf_hours:g} h",
         "node_mtbf_hours" not in spec.recovery.model_fields_set),
        (f"shared tier {0 if shared is None else shared.capacity_gib} GiB", "storage" not in explicit),
    ]  # fmt: skip
    return ", ".join(words for words, is_default in defaults if is_default) or "nothing: the spec decides everything"


def _interval(plan: Plan) -> Decimal:
    return plan.figure("step time").value * plan.checkpoint.every_steps


def _text(seconds: Decimal) -> str:
    return duration.text(timedelta(seconds=round(float(seconds))))
