"""`bivouac offers SPEC`: offers for the nodes with price and time, and whether the quota allows them.

`bivouac block buy SPEC OFFERING` buys a capacity block, which is paid at once and never given back. It belongs to the
foundation: no stack holds it, and no teardown touches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from infra import target
from infra.cli.answers import write_json
from infra.cli.options import site_steps, stderr
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.tables import Listing
from infra.console.terminal import ask_yes
from infra.errors import UserError
from infra.plan import catalogue
from infra.plan.estimates.clock import GPU_STAGES, seconds
from infra.plan.plan import Plan, make_plan
from infra.plan.purchase import SCALE_DOWN
from infra.plan.survey import survey
from infra.plan.zones import control_plane_zones
from infra.spec.campaign import Capacity, Spec, load
from infra.spec.names import buckets

if TYPE_CHECKING:
    from infra.aws.market import Choice


def offers_command(path: Path, types: Sequence[str] | None, more: bool, as_json: bool, console: Console) -> int:
    """List offers. Exit code 0 if at least one choice holds all nodes, else 1."""
    spec = load(path).spec
    target.enter_for(spec, site_steps(stderr))
    from infra.aws.account import Account
    from infra.aws.cost_tag import cost_tag
    from infra.aws.market import alternatives, look

    item = catalogue.instance_type(spec.nodes.instance_type)
    type_names = list(dict.fromkeys([*(types or [item.name]), *(alternatives(item) if more else ())]))
    account = Account(spec.region)
    account.refuse_foreign(spec.account)
    aside = Progress(stderr)
    with aside.stage("offers", f"{spec.nodes.count} nodes in {spec.region}; reads only"):
        market = look(account, spec, type_names, gpu_time(make_plan(spec, survey(spec))), aside.step)
        aside.step("checking that AWS's bills know the campaign's tag")
        tag_state = cost_tag(account)
    if as_json:
        write_json(console, market.model_dump() | {"budget_tag": tag_state.model_dump()})
    else:
        table(market.choices, f"{spec.nodes.count} nodes for {spec.campaign}").show(console)
        console.print(f"GPU nodes are planned for {market.hours} h; a block must last {market.block_hours} h")
        for question in market.unanswered:
            say(console, f"AWS did not answer {question}")
        say(console, tag_state.sentence())
        console.print("a block is bought by `bivouac block buy SPEC OFFERING`; prices are AWS's current ones")
    return 0 if any(choice.fits is not False for choice in market.choices) else 1


def gpu_time(plan: Plan) -> timedelta:
    """Return the planned time of the GPU nodes."""
    return timedelta(seconds=float(seconds(plan.clock, *GPU_STAGES)))


def table(choices: Iterable[Choice], title: str) -> Listing:
    """Return a table: choices that hold all nodes first, the cheapest of them on top."""
    rows = Listing("type", "zone", "capacity", ">USD/h a node", ">USD in all", "starts", "ends", ">vCPUs free", "fits",
                   "id", "~note", title=title, has_rule=True)  # fmt: skip
    for choice in sorted(choices, key=lambda choice: (choice.fits is False, choice.usd is None, choice.usd or 0)):
        quota = "" if choice.quota is None else f"{choice.quota.free} of {choice.quota.vcpus}"
        places = f"{choice.places} places" if choice.places is not None else quota
        fits = {True: "yes", False: "no", None: "not known"}[choice.fits]
        rows.row(choice.instance_type, choice.zone, choice.capacity, _usd(choice.usd_per_hour, 4), _usd(choice.usd, 2),
                 _moment(choice.starts), _moment(choice.ends), places, fits, choice.id or "", choice.note)  # fmt: skip
    return rows


def _usd(amount: Decimal | None, digits: int) -> str:
    return "-" if amount is None else f"{amount:,.{digits}f}"


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}Z"


if TYPE_CHECKING:
    from infra.aws.account import Account
    from infra.aws.block_purchase import Offering, Purchase


def buy_command(path: Path, offering: str, consent: bool, as_json: bool, console: Console) -> int:
    """Buy a block. Exit code 0 when it is bought, now or before. Raises `UserError` if it must not be."""
    spec = load(path).spec
    if spec.nodes.capacity is not Capacity.CAPACITY_BLOCK:
        cure = "write capacity: capacity-block"
        raise UserError("the spec does not use a capacity block", seen=spec.nodes.capacity, cure=cure)
    target.enter_for(spec, site_steps(stderr))
    from infra.aws.account import Account
    from infra.aws.block_purchase import Counter
    from infra.preview.read_only import read_only_context
    from infra.session.session import ensure_bucket, foundation_lease

    plan = make_plan(spec, survey(spec))
    ensure_bucket(Account(spec.region), buckets(spec.account, spec.region).state, spec.account)
    # Without the spec's reservation: the record knows what was bought.
    nodes = spec.nodes.model_copy(update={"reservation_id": None})
    context = read_only_context(spec.model_copy(update={"nodes": nodes}), plan, stderr)
    with foundation_lease(context) as lease:
        counter = Counter(context.account, lease.store, spec.campaign, lease.check)
        with context.progress.stage("block", "earlier purchases for this campaign"):
            former = counter.standing(context.progress.note)
        if former is not None:
            if former.offering.id != offering:
                end = former.offering.ends.isoformat(timespec="minutes")
                block = f"{former.reservation_id} until {end}, {former.offering.fee_usd} USD, bought by {former.who}"
                cure = f"write nodes.reservation_id: {former.reservation_id}; a second block needs another campaign"
                raise UserError("the campaign has a block already", seen=block, cure=cure)
            return _show(former, "was bought before", as_json, console)
        choice = _offering_now(context.account, spec, plan, offering)
        _confirm(choice, spec, consent, stderr)
        with context.progress.stage("block", f"buying {choice.id} for {choice.fee_usd} USD"):
            purchase = counter.buy(choice, context.operator_arn, context.progress.step)
    return _show(purchase, "is bought", as_json, console)


def _offering_now(account: Account, spec: Spec, plan: Plan, offering: str) -> Offering:
    """Return the offering as EC2 has it now. Raises `UserError` if it is gone or too short."""
    from infra.aws.block_purchase import offering_of
    from infra.aws.blocks import refuse_unfit
    from infra.aws.market import block_offerings
    from infra.aws.zones import zones_of

    offerings = [offering_of(candidate) for candidate in block_offerings(account, spec, gpu_time(plan))]
    choice = next((candidate for candidate in offerings if candidate.id == offering), None)
    if choice is None:
        raise UserError(
            "EC2 has no such offering now",
            seen=f"{offering}; there are {', '.join(candidate.id for candidate in offerings) or 'none'}",
            cure=f"`bivouac offers SPEC` lists them: {spec.nodes.count} x {spec.nodes.instance_type}",
        )
    control_plane_zones(spec, zones_of(account))  # refuses a zone without clusters: a block is never given back
    refuse_unfit(choice.as_block(), spec, datetime.now(UTC), timedelta(seconds=float(seconds(plan.clock, *GPU_STAGES))))
    return choice


def _confirm(offering: Offering, spec: Spec, consent: bool, aside: Console) -> None:
    aside.print(f"offering   {offering.id}: {offering.count} x {offering.instance_type} in {offering.zone}")
    aside.print(f"starts     {offering.starts.isoformat(timespec='minutes')}")
    end = (offering.ends - SCALE_DOWN).isoformat(timespec="minutes")
    aside.print(
        f"ends       {offering.ends.isoformat(timespec='minutes')}; nodes until {end}: EKS takes them away then"
    )
    aside.print(f"price      {offering.fee_usd:,} USD, charged at once; {offering.usd_per_hour} USD per node and hour")
    aside.print("a block cannot be cancelled, changed or given back, whatever happens to the campaign")
    if offering.fee_usd > spec.money.budget_usd:
        raise UserError(
            "the block costs more than the campaign's budget",
            seen=f"{offering.fee_usd} USD, budget {spec.money.budget_usd} USD",
            cure="raise money.budget_usd, or take fewer nodes or days",
        )
    if not target.spends(spec) or consent:
        return
    if not ask_yes(f"Spend {offering.fee_usd:,} USD?", aside):
        raise UserError("nothing was bought", seen="no", cure="answer yes, or give --yes")


def _show(purchase: Purchase, outcome: str, as_json: bool, console: Console) -> int:
    block = purchase.offering
    if as_json:
        write_json(console, purchase.model_dump())
        return 0
    say(
        console,
        f"{purchase.reservation_id} {outcome}; for the spec:\nnodes:\n  capacity: capacity-block\n"
        f"  reservation_id: {purchase.reservation_id}\n  block_end: {block.ends.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}\n"
        f"  block_fee_usd: {block.fee_usd}\n"
        f"  usd_per_hour: {block.usd_per_hour} # {block.fee_usd} USD for the whole block",
    )
    return 0
