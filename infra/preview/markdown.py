"""A preview as a pull request comment: findings first, then losses, costs, changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from infra.engine.consequences import consequence
from infra.engine.drift import Row, StackLook
from infra.engine.explain import difference
from infra.errors import UserError
from infra.plan import checks
from infra.plan.checks.finding import Level
from infra.plan.estimates.cost import HOURS_PER_MONTH
from infra.preview.preview import PlanChange, Preview, loses
from infra.stack.rules import RuleFinding, broken

MARK = "<!-- bivouac preview -->"
"""First line of the comment, by which the next run finds and replaces it."""
_LONGEST = 60_000
"""GitHub takes 65,536 characters."""
_LEVEL = {Level.ERROR: "❌ error", Level.WARNING: "⚠️ warning", Level.INFO: "ℹ️ info"}
_ROWS = 400


def comment(view: Preview) -> str:
    """Return the whole comment, cut at GitHub's limit with a note."""
    text = "\n".join(_lines(view)) + "\n"
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rpartition("\n")[0] + "\n\n_Cut here: the run's log has all of it._\n"


def refusal_comment(title: str, error: UserError) -> str:
    """Return the comment for a refused preview."""
    rows = ((Level.ERROR, title, error.what, str(error.seen or ""), error.cure or ""),)
    return "\n".join([MARK, f"### Bivouac: `{title}`: must not be merged", *_table(rows)]) + "\n"


def checks_comment(title: str, findings: Iterable[checks.Finding]) -> str:
    """Return the comment for a spec with errors."""
    rows = (
        (item.level, f"{item.field} (line {item.line})", f"{item.message} (`{item.rule}`)", item.seen, item.cure)
        for item in findings
    )
    return "\n".join([MARK, f"### Bivouac: `{title}`: must not be merged", *_table(rows)]) + "\n"


def _lines(view: Preview) -> Iterator[str]:
    verdict = "must not be merged" if broken(view.findings) else "changes" if view.differs else "nothing to change"
    yield MARK
    yield f"### Bivouac: campaign `{view.campaign}`: {verdict}"
    yield ""
    yield _summary(view)
    yield from _findings(view.findings)
    yield from _losses([row for look in view.looks for row in look.planned if loses(row)])
    yield from _money(view)
    for look in view.looks:
        yield from _stack(look)


def _summary(view: Preview) -> str:
    parts = []
    for look in view.looks:
        verbs = [row.verb for row in look.planned]
        counts = ", ".join(f"{verbs.count(verb)} to {verb}" for verb in dict.fromkeys(verbs))
        drift = f", {len(look.drifted)} changed by hand" if look.drifted else ""
        parts.append(f"`{look.stack}`: {counts or 'nothing to change'}{drift}")
    return f"{'; '.join(parts)}. As planned the campaign costs **{view.total_usd:,.2f} USD**."


def _findings(findings: tuple[RuleFinding, ...]) -> Iterator[str]:
    if findings:
        yield from _table(
            (item.level, item.resource, f"{item.message} (`{item.rule}`)", item.seen, item.cure) for item in findings
        )


def _table(rows: Iterable[tuple[Level, str, str, str, str]]) -> Iterator[str]:
    yield from ("", "#### Findings", "", "| level | where | what | seen | cure |", "| --- | --- | --- | --- | --- |")
    for level, place, *texts in rows:
        cells = (" ".join(text.replace("|", "\\|").split()) for text in (_LEVEL[level], f"`{place}`", *texts))
        yield f"| {' | '.join(cells)} |"


def _losses(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield from ("", "#### Replaced or deleted though it holds state", "")
    for row in rows:
        paths = ", ".join(f"`{change.path}`" for change in row.changes if change.replaces)
        cause = f", forced by {paths}" if paths else ""
        yield f"- **{row.title}**: {row.verb}{cause}: {consequence(row) or 'what it holds is gone'}"


def _money(view: Preview) -> Iterator[str]:
    if view.changed is not None:
        yield from ("", "#### Cost against the spec before this change", "")
        if not view.changed:
            yield "No line of the bill changes."
        else:
            yield from ("| line | before, USD | after, USD | a month of 730 h, USD |", "| --- | ---: | ---: | ---: |")
            yield from map(_change_row, view.changed)
            yield _change_row(_sum_of(view.changed))
    if view.costs:
        yield from ("", "#### Cost of what would be made or removed", "")
        yield from (f"| what | a month of {HOURS_PER_MONTH} h, USD | this campaign, USD |", "| --- | ---: | ---: |")
        for row in view.costs:
            yield f"| {row.what} | {row.usd_per_month:+,.2f} | {row.usd_per_campaign:+,.2f} |"
        totals = [
            sum((getattr(row, name) for row in view.costs), Decimal(0))
            for name in ("usd_per_month", "usd_per_campaign")
        ]
        yield f"| **together** | {totals[0]:+,.2f} | {totals[1]:+,.2f} |"


def _change_row(change: PlanChange) -> str:
    return f"| {change.what} | {change.before_usd:,.2f} | {change.after_usd:,.2f} | {change.month_usd:+,.2f} |"


def _sum_of(changes: tuple[PlanChange, ...]) -> PlanChange:
    old, new, month = (
        sum((getattr(row, name) for row in changes), Decimal(0)) for name in ("before_usd", "after_usd", "month_usd")
    )
    return PlanChange("**together**", old, new, month)


def _stack(look: StackLook) -> Iterator[str]:
    """Yield the changes, grouped by component, folded."""
    rows = [*look.drifted, *look.planned]
    if not rows:
        return
    yield from ("", f"<details><summary><code>{look.stack}</code>: {len(rows)} resources</summary>", "")
    yield from (f"> {note}" for note in look.notes)
    by_component: dict[str, list[Row]] = {}
    for row in rows[:_ROWS]:
        by_component.setdefault(row.component, []).append(row)
    for component, group in by_component.items():
        yield from (f"**{component}**", "", "```diff")
        for row in group:
            yield from _row(row)
        yield from ("```", "")
    if len(rows) > _ROWS:
        yield f"_and {len(rows) - _ROWS} more_"
    yield "</details>"


def _row(row: Row) -> Iterator[str]:
    sign = {"create": "+", "delete": "-", "deleted": "-"}.get(row.verb, "!")
    by_hand = " by hand" if row.verb in ("deleted", "changed") else ""
    yield f"{sign} {row.title}  {row.verb}{by_hand}{'  holds state' if loses(row) else ''}"
    if row.verb != "create":
        yield from (f"    {line}".replace("```", "'''") for change in row.changes for line in difference(change))
