"""A preview as a pull request comment: findings first, then losses, costs, changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from infra.engine.consequences import consequence
from infra.engine.drift import Look, Row
from infra.engine.explain import CostChange, difference
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


def of(seen: Preview) -> str:
    """Return the whole comment, cut at GitHub's limit with a note."""
    text = "\n".join(_lines(seen)) + "\n"
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rpartition("\n")[0] + "\n\n_Cut here: the run's log has all of it._\n"


def refused(what: str, error: UserError) -> str:
    """Return the comment for a refused preview."""
    rows = ((Level.ERROR, what, error.what, str(error.seen or ""), error.cure or ""),)
    return "\n".join([MARK, f"### Bivouac: `{what}`: must not be merged", *_table(rows)]) + "\n"


def of_checks(what: str, found: Iterable[checks.Finding]) -> str:
    """Return the comment for a spec with errors."""
    rows = (
        (one.level, f"{one.field} (line {one.line})", f"{one.message} (`{one.rule}`)", one.seen, one.cure)
        for one in found
    )
    return "\n".join([MARK, f"### Bivouac: `{what}`: must not be merged", *_table(rows)]) + "\n"


def _lines(seen: Preview) -> Iterator[str]:
    verdict = "must not be merged" if broken(seen.findings) else "changes" if seen.differs else "nothing to change"
    yield MARK
    yield f"### Bivouac: campaign `{seen.campaign}`: {verdict}"
    yield ""
    yield _summary(seen)
    yield from _findings(seen.findings)
    yield from _lost([row for each in seen.looks for row in each.planned if loses(row)])
    yield from _money(seen)
    for each in seen.looks:
        yield from _stack(each)


def _summary(seen: Preview) -> str:
    said = []
    for each in seen.looks:
        verbs = [row.verb for row in each.planned]
        counted = ", ".join(f"{verbs.count(verb)} to {verb}" for verb in dict.fromkeys(verbs))
        drifted = f", {len(each.drifted)} changed by hand" if each.drifted else ""
        said.append(f"`{each.stack}`: {counted or 'nothing to change'}{drifted}")
    return f"{'; '.join(said)}. As planned the campaign costs **{seen.total_usd:,.2f} USD**."


def _findings(found: tuple[RuleFinding, ...]) -> Iterator[str]:
    if found:
        yield from _table(
            (one.level, one.resource, f"{one.message} (`{one.rule}`)", one.seen, one.cure) for one in found
        )


def _table(rows: Iterable[tuple[Level, str, str, str, str]]) -> Iterator[str]:
    yield from ("", "#### Findings", "", "| level | where | what | seen | cure |", "| --- | --- | --- | --- | --- |")
    for level, where, *rest in rows:
        yield f"| {' | '.join(_cell(text) for text in (_LEVEL[level], f'`{where}`', *rest))} |"


def _lost(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield from ("", "#### Replaced or deleted though it holds state", "")
    for row in rows:
        forced = ", ".join(f"`{one.path}`" for one in row.changes if one.replaces)
        why = f", forced by {forced}" if forced else ""
        yield f"- **{row.title}**: {row.verb}{why}: {consequence(row) or 'what it holds is gone'}"


def _money(seen: Preview) -> Iterator[str]:
    if seen.changed is not None:
        yield from ("", "#### Cost against the spec before this change", "")
        if not seen.changed:
            yield "No line of the bill changes."
        else:
            yield from ("| line | before, USD | after, USD | a month of 730 h, USD |", "| --- | ---: | ---: | ---: |")
            yield from map(_changed, seen.changed)
            yield _changed(_together(seen.changed))
    if seen.costs:
        yield from ("", "#### Cost of what would be made or removed", "")
        yield from (f"| what | a month of {HOURS_PER_MONTH} h, USD | this campaign, USD |", "| --- | ---: | ---: |")
        yield from map(_cost, seen.costs)
        whole = [
            sum((getattr(one, name) for one in seen.costs), Decimal(0))
            for name in ("usd_per_month", "usd_per_campaign")
        ]
        yield f"| **together** | {whole[0]:+,.2f} | {whole[1]:+,.2f} |"


def _changed(one: PlanChange) -> str:
    return f"| {one.what} | {one.before_usd:,.2f} | {one.after_usd:,.2f} | {one.month_usd:+,.2f} |"


def _together(several: tuple[PlanChange, ...]) -> PlanChange:
    before, after, month = (
        sum((getattr(one, name) for one in several), Decimal(0)) for name in ("before_usd", "after_usd", "month_usd")
    )
    return PlanChange("**together**", before, after, month)


def _cost(one: CostChange) -> str:
    return f"| {one.what} | {one.usd_per_month:+,.2f} | {one.usd_per_campaign:+,.2f} |"


def _stack(seen: Look) -> Iterator[str]:
    """Yield the changes, grouped by component, folded."""
    rows = [*seen.drifted, *seen.planned]
    if not rows:
        return
    yield from ("", f"<details><summary><code>{seen.stack}</code>: {len(rows)} resources</summary>", "")
    yield from (f"> {note}" for note in seen.notes)
    by_component: dict[str, list[Row]] = {}
    for row in rows[:_ROWS]:
        by_component.setdefault(row.component, []).append(row)
    for component, several in by_component.items():
        yield from (f"**{component}**", "", "```diff")
        for row in several:
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


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
