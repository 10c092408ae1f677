"""`bivouac sweep --orphans`: shows leftovers of this account's dead campaigns with their price; removes them after a
yes."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.console import Console

from infra.aws.account import Account
from infra.cli.answers import write_json
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.tables import Listing
from infra.console.terminal import ask_yes
from infra.errors import NotProven, UserError
from infra.inventory import orphans
from infra.inventory.orphans import Orphan, OrphanSight
from infra.inventory.sweep import Swept, rate_text, sum_text


@dataclass(frozen=True)
class Forgotten:
    """A campaign that is known by its tags alone."""

    campaign: str
    abandon: bool
    """A person has given up by name what it may hold."""
    unknown: UserError
    """Raised if no tag names it either."""


def orphans_command(region: str, consent: bool, json: bool, console: Console, owner: Forgotten | None = None) -> int:
    """Sweep orphans. Exit code 0 when none are left, 74 while some are, or could not be looked for. `owner`: one
    campaign whose record is missing. Raises `UserError` if the state bucket has vanished."""
    abandon = owner is not None and owner.abandon
    quiet = Console(file=io.StringIO()) if json else console
    keeper = orphans.keeper(Account(region), Progress(quiet))
    with keeper.progress.stage("sweep", f"what {owner.campaign if owner else 'dead campaigns'} left in {region}"):
        sight = orphans.look(keeper, campaign_only=owner.campaign if owner else None, abandon=abandon)
    if owner is not None and not (sight.orphans or sight.cared_for or sight.elsewhere or sight.blind):
        raise owner.unknown
    _show(sight, quiet)
    leftovers = [row for row in sight.orphans if row.removable]
    swept = Swept((), ())
    if leftovers and (consent or (not json and ask_yes(f"Remove {len(leftovers)}?", console))):
        with keeper.progress.stage("sweep", f"removing {len(leftovers)}"):
            swept = orphans.clear(keeper, leftovers, abandon)
        for row, reason in swept.stuck:
            say(quiet, f"left: {row}: {reason}")
    gone_ids = {(row.kind, row.thing.id) for row in swept.removed}
    remain = [row for row in sight.orphans if (row.left.kind, row.left.thing.id) not in gone_ids]
    if json:
        write_json(console, _facts(sight, swept))
    elif swept.removed:
        console.print(f"{len(swept.removed)} removed, {len(remain)} left")
    return NotProven.exit_code if remain or sight.blind else 0


def _show(sight: OrphanSight, console: Console) -> None:
    if not sight.orphans:
        console.print("no dead campaign left anything")
    else:
        table = Listing("campaign", "kind", "what", "until", ">USD/h", "~sweep")
        for row in sight.orphans:
            rate = rate_text(row.left.usd_per_hour)
            table.row(row.owner.campaign, row.left.kind, row.left.thing.label, row.expires, rate, _fate(row))
        table.show(console)
        say(console, sum_text(row.left.usd_per_hour for row in sight.orphans))
        for owner in dict.fromkeys(row.owner for row in sight.orphans):
            say(console, f"{owner.campaign} is over: {owner.why}")
            if owner.holds:
                say(console, f"{owner.campaign} is {owner.holds}")
                rates = [row.left.usd_per_hour for row in sight.orphans if row.owner == owner and not row.removable]
                say(console, f"keeping it costs, {sum_text(rates)}")
    for owner in sight.cared_for:
        say(console, f"{owner.campaign} is left alone: {owner.why}")
    for alien in sight.elsewhere:
        say(console, str(alien))
    for kind, reason in sight.blind.items():
        say(console, f"could not look: {kind}: {reason}")


def _fate(row: Orphan) -> str:
    if row.removable:
        return "removes it"
    if row.owner.holds:
        return "holds it: nobody knows what it holds" if row.owner.lost else "leaves it: not archived"
    return "leaves it: remove it by hand"


def _facts(sight: OrphanSight, swept: Swept) -> dict[str, object]:
    rows = [
        {
            "campaign": row.owner.campaign, "identity": row.owner.identity, "why": row.owner.why,
            "kind": row.left.kind, "id": row.left.thing.id, "name": row.left.thing.name, "expires": row.expires,
            "usd_per_hour": row.left.usd_per_hour, "removable": row.removable, "holds": row.owner.holds,
        }
        for row in sight.orphans
    ]  # fmt: skip
    return {
        "orphans": rows, "left_alone": {owner.campaign: owner.why for owner in sight.cared_for},
        "elsewhere": [
            {"campaign": row.campaign, "kind": row.kind, "id": row.thing.id, "why": row.why}
            for row in sight.elsewhere
        ],
        "removed": [str(row) for row in swept.removed],
        "stuck": [{"what": str(row), "why": reason} for row, reason in swept.stuck],
        "could_not_look": dict(sight.blind),
    }  # fmt: skip
