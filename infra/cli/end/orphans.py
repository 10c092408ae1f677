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
from infra.console.terminal import agreed
from infra.errors import NotProven, UserError
from infra.inventory import orphans
from infra.inventory.orphans import Orphan, OrphanSight
from infra.inventory.rates import shown, together
from infra.inventory.sweep import Swept


@dataclass(frozen=True)
class Forgotten:
    """A campaign that is known by its tags alone."""

    campaign: str
    abandon: bool
    """A person has given up by name what it may hold."""
    unknown: UserError
    """Raised if no tag names it either."""


def orphans_command(region: str, yes: bool, json: bool, console: Console, only: Forgotten | None = None) -> int:
    """Sweep orphans. Exit code 0 when none are left, 74 while some are, or could not be looked for. `only`: one
    campaign whose record is missing. Raises `UserError` if the state bucket has vanished."""
    abandon = only is not None and only.abandon
    quiet = Console(file=io.StringIO()) if json else console
    keeper = orphans.keeper(Account(region), Progress(quiet))
    with keeper.progress.stage("sweep", f"what {only.campaign if only else 'dead campaigns'} left in {region}"):
        seen = orphans.look(keeper, only=only.campaign if only else None, abandon=abandon)
    if only is not None and not (seen.orphans or seen.cared_for or seen.elsewhere or seen.blind):
        raise only.unknown
    _show(seen, quiet)
    wanted = [one for one in seen.orphans if one.removable]
    swept = Swept((), ())
    if wanted and (yes or (not json and agreed(f"Remove {len(wanted)}?", console))):
        with keeper.progress.stage("sweep", f"removing {len(wanted)}"):
            swept = orphans.clear(keeper, wanted, abandon)
        for one, why in swept.stuck:
            say(quiet, f"left: {one}: {why}")
    gone = {(one.kind, one.thing.id) for one in swept.removed}
    remain = [one for one in seen.orphans if (one.left.kind, one.left.thing.id) not in gone]
    if json:
        write_json(console, _facts(seen, swept))
    elif swept.removed:
        console.print(f"{len(swept.removed)} removed, {len(remain)} left")
    return NotProven.exit_code if remain or seen.blind else 0


def _show(seen: OrphanSight, console: Console) -> None:
    if not seen.orphans:
        console.print("no dead campaign left anything")
    else:
        table = Listing("campaign", "kind", "what", "until", ">USD/h", "~sweep")
        for one in seen.orphans:
            rate = shown(one.left.usd_per_hour)
            table.row(one.owner.campaign, one.left.kind, one.left.thing.label, one.expires, rate, _fate(one))
        table.show(console)
        say(console, together(one.left.usd_per_hour for one in seen.orphans))
        for owner in dict.fromkeys(one.owner for one in seen.orphans):
            say(console, f"{owner.campaign} is over: {owner.why}")
            if owner.holds:
                say(console, f"{owner.campaign} is {owner.holds}")
                rates = [one.left.usd_per_hour for one in seen.orphans if one.owner == owner and not one.removable]
                say(console, f"keeping it costs, {together(rates)}")
    for owner in seen.cared_for:
        say(console, f"{owner.campaign} is left alone: {owner.why}")
    for other in seen.elsewhere:
        say(console, str(other))
    for kind, why in seen.blind.items():
        say(console, f"could not look: {kind}: {why}")


def _fate(one: Orphan) -> str:
    if one.removable:
        return "removes it"
    if one.owner.holds:
        return "holds it: nobody knows what it holds" if one.owner.lost else "leaves it: not archived"
    return "leaves it: remove it by hand"


def _facts(seen: OrphanSight, swept: Swept) -> dict[str, object]:
    rows = [
        {
            "campaign": one.owner.campaign, "identity": one.owner.identity, "why": one.owner.why,
            "kind": one.left.kind, "id": one.left.thing.id, "name": one.left.thing.name, "expires": one.expires,
            "usd_per_hour": one.left.usd_per_hour, "removable": one.removable, "holds": one.owner.holds,
        }
        for one in seen.orphans
    ]  # fmt: skip
    return {
        "orphans": rows, "left_alone": {owner.campaign: owner.why for owner in seen.cared_for},
        "elsewhere": [
            {"campaign": one.campaign, "kind": one.kind, "id": one.thing.id, "why": one.why} for one in seen.elsewhere
        ],
        "removed": [str(one) for one in swept.removed],
        "stuck": [{"what": str(one), "why": why} for one, why in swept.stuck], "could_not_look": dict(seen.blind),
    }  # fmt: skip
