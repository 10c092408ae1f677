"""`bivouac offers SPEC`: offers for the nodes with price and time, and whether the quota allows them."""

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
from infra.plan import catalogue
from infra.plan.estimates.clock import GPU_STAGES, seconds
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import survey
from infra.spec.campaign import load

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
                   "id", "~note", title=title, ruled=True)  # fmt: skip
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
