"""Rules about budget, deadline and prices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.plan.estimates.clock import UNTIL_ARCHIVED, longest_seconds, seconds
from infra.plan.estimates.cost import DATA_NODES
from infra.plan.estimates.figure import cents
from infra.spec import duration
from infra.spec.campaign import Capacity

STALE_AFTER = timedelta(days=90)
PRICED_REGION = "us-east-1"


def cost_within_budget(case: Case) -> Iterator[Draft]:
    """The planned cost does not exceed the budget."""
    guess, budget = case.estimate, case.spec.money.budget_usd
    if guess is not None and guess.usd > budget:
        detail = f"{guess.usd:,} USD planned, {cents(budget):,} USD allowed"
        cure = "raise the budget, or plan less: see bivouac plan"
        yield error("money.budget_usd", "the plan costs more than the budget", seen=detail, cure=cure)


def cost_at_deadline(case: Case) -> Iterator[Draft]:
    """In the worst case the deadline ends the spending before the budget is spent."""
    guess, money = case.estimate, case.spec.money
    if guess is None or guess.usd > money.budget_usd or guess.usd_at_deadline <= money.budget_usd:
        return
    yield warning(
        "money.deadline",
        "GPU nodes that stay up until the deadline cost more than the budget",
        seen=f"{guess.usd_at_deadline:,} USD after {duration.text(money.deadline)}",
        cure="write an earlier deadline, or accept that only the steward guards the budget",
    )


def deadline_margin(case: Case) -> Iterator[Draft]:
    """The work on GPU nodes ends before AWS sets their node group to zero, even if AWS takes its longest."""
    guess, deadline = case.estimate, case.spec.money.deadline
    if guess is None:
        return
    work_time = _timedelta(seconds(guess.stages, *UNTIL_ARCHIVED))
    longest = _timedelta(longest_seconds(guess.stages, *UNTIL_ARCHIVED))
    detail = f"{duration.text(work_time)} planned, {duration.text(longest)} at most, deadline {duration.text(deadline)}"
    if work_time > deadline:
        cure = f"write {duration.text(_hours_above(max(longest, work_time * 1.25)))} or more"
        yield error("money.deadline", "comes before training and archive are done", seen=detail, cure=cure)
    elif longest > deadline:
        cure = f"write {duration.text(_hours_above(longest))} or more: docs/waits.md lists what AWS may take"
        yield warning("money.deadline", "comes too early if AWS takes its longest", seen=detail, cure=cure)
    elif work_time * 1.1 > deadline:
        cure = f"write {duration.text(_hours_above(work_time * 1.25))}: failures take time too"
        yield warning("money.deadline", "leaves less than a tenth to spare", seen=detail, cure=cure)


def known_prices(case: Case) -> Iterator[Draft]:
    """A line without a price is missing from the planned cost; GPU nodes without a price would have no budget."""
    fee = case.spec.nodes.block_fee_usd is not None and case.spec.nodes.capacity is Capacity.CAPACITY_BLOCK
    for line in case.estimate.lines if case.estimate else ():
        if line.priced:
            continue
        if line.gpu and not fee:
            yield error(
                "nodes.instance_type",
                f"no price is known for: {line.name}; neither plan, nor budget, nor steward would count them",
                seen=f"{line.formula}, capacity: {case.spec.nodes.capacity}",
                cure="write nodes.usd_per_hour: what one node costs you by the hour",
            )
        else:
            own_price = "write nodes.usd_per_hour: what one node costs you"
            cure = own_price if line.gpu else "add it to the catalogue's prices"
            yield warning(
                "nodes.instance_type" if line.gpu else _field_of(line.name),
                f"no price is known for: {line.name}; planned cost and budget leave it out",
                seen=line.formula,
                cure=cure,
            )


def price_age(case: Case) -> Iterator[Draft]:
    """The catalogue's prices are recent."""
    gpus = min((offer.as_of for offer in case.facts.offers), default=case.today)
    dated_cures = (
        (gpus, "`bivouac catalogue refresh --write` takes over AWS's prices of GPU nodes"),
        (case.facts.prices.as_of, "for other prices compare infra/plan/catalogue/prices.yaml with AWS's price pages"),
    )
    stale = [(day, cure) for day, cure in dated_cures if case.today - day > STALE_AFTER]
    if stale:
        oldest = min(day for day, _ in stale)
        yield warning(
            "money.budget_usd",
            f"the catalogue's prices are older than {STALE_AFTER.days} days",
            seen=f"as of {oldest}, {(case.today - oldest).days} days",
            cure="; ".join(cure for _, cure in stale),
        )


def price_region(case: Case) -> Iterator[Draft]:
    """The catalogue's prices are of one region; for GPU nodes it is the region of the last refresh."""
    instance, region = case.facts.instance, case.spec.region
    own_price = case.spec.nodes.usd_per_hour is not None
    gpus = region if instance is None or own_price else instance.price.region or PRICED_REGION
    foreign = [
        f"{nodes} are those of {origin}"
        for nodes, origin in (("GPU nodes", gpus), ("the rest", PRICED_REGION))
        if origin != region
    ]
    if foreign:
        cure = "expect another cost; `bivouac catalogue refresh --write` there, or write nodes.usd_per_hour"
        yield warning("region", f"the catalogue's prices of {', of '.join(foreign)}", seen=region, cure=cure)


def budget_alarm(case: Case) -> Iterator[Draft]:
    """The budget's alarm has a recipient."""
    address = case.spec.money.alarm_email
    if address is None and case.spec.money.alarm_topic_arn is None:
        cure = "add alarm_email or alarm_topic_arn: someone who can act"
        yield info("money.alarm_email", "the budget alarms nobody", seen="nothing", cure=cure)
    elif address is not None and not _is_address(address):
        yield error("money.alarm_email", "this is no e-mail address", seen=address, cure="write name@host.domain")


def budget_year(case: Case) -> Iterator[Draft]:
    """AWS's budget counts by calendar year: the campaign ends in the year in which it begins."""
    money, block_end = case.spec.money, case.spec.nodes.block_end
    begun_days = timedelta(days=-(-money.deadline // timedelta(days=1)))
    last_day = max(case.today + begun_days, block_end.date() if block_end else case.today)
    if last_day.year != case.today.year:
        message = "AWS's budget restarts on 1 January: alarms and freeze do not count what was spent before"
        cure = "rely on the steward's own count, or end before the new year"
        yield info("money.deadline", message, seen=f"from {case.today} to {last_day}", cure=cure)


def _is_address(text: str) -> bool:
    return text.count("@") == 1 and not text.startswith("@") and "." in text.partition("@")[2]


def _field_of(line: str) -> str:
    fields = {"FSx for Lustre": "storage.shared", DATA_NODES: "data.prepare.instance_type"}
    return fields.get(line, "nodes.system_instance_type")


def _timedelta(amount: Decimal) -> timedelta:
    return timedelta(seconds=int(amount))


def _hours_above(span: timedelta) -> timedelta:
    return timedelta(hours=-(-span // timedelta(hours=1)))
