"""Sweep: what is left of a torn down campaign, shown, and what is provably its own, removed.

A tag of the campaign or of its cluster, a place in its own network, or being the log group that EKS makes for its
cluster proves it; kinship or a name does not, and what is only suspect is a human's to judge. The foundation and what
is kept on purpose are never touched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.console.progress import Progress
from infra.inventory import ANYTHING, Evidence, Suspicion
from infra.inventory.certify import knowledge, survey_all
from infra.inventory.evidence import PROVES
from infra.inventory.rates import usd_per_hour
from infra.kinds import KINDS, Thing, kind_named
from infra.kinds.listed import is_gone
from infra.session.context import Context, turns
from infra.spec.names import CAMPAIGN_ID_TAG

PATIENCE_S = 300.0
"""For what is held by something that is on its way out."""
_PASSES = re.compile(
    r"DependencyViolation|InUse|Conflict|Throttl|LimitExceeded|SlowDown|Internal|Unavailable|IncorrectS"
)
"""Refusals that may pass when what holds a thing has gone; all others are final."""
_ORDER = {kind.name: position for position, kind in enumerate(sorted(KINDS, key=lambda one: one.step)) if kind.remove}
_BEYOND_DOUBT = frozenset({Evidence.TAG, Evidence.CLUSTER, Evidence.LOGS})
"""A place is not among them: whoever put a thing into the network may want it back."""


@dataclass(frozen=True)
class Left:
    """One thing that is left."""

    kind: str
    thing: Thing
    evidence: Evidence
    foreign: str = ""
    """The identity on its tag, where that is another campaign's of this name: `sweep --orphans` judges it."""

    @property
    def removable(self) -> bool:
        """Whether it may be removed: provably the campaign's, and of a kind that we know how to remove."""
        return kind_named(self.kind).remove is not None and self.evidence in PROVES and not self.foreign

    @property
    def created(self) -> datetime | None:
        return self.thing.created

    @property
    def usd_per_hour(self) -> Decimal | None:
        """What it bills by the hour; None where no price is known."""
        return usd_per_hour(self.kind, self.thing)

    def __str__(self) -> str:
        return f"{self.kind} {self.thing.label}" + (f" ({self.thing.doubt})" if self.thing.doubt else "")


@dataclass(frozen=True)
class Sight:
    """What is left, in the order of removal; suspects; kinds that could not be looked at, and why."""

    left: tuple[Left, ...]
    suspects: tuple[Suspicion, ...]
    blind: dict[str, str]


@dataclass(frozen=True)
class Swept:
    removed: tuple[Left, ...]
    stuck: tuple[tuple[Left, str], ...]
    """What would not go, and AWS's words."""


def order(one: Left) -> tuple[int, str]:
    """In which things let go of each other."""
    return _ORDER.get(one.kind, len(_ORDER)), one.thing.id


def beyond_doubt(one: Left) -> bool:
    """Whether a teardown removes it without asking: what carries the campaign's own tag or its cluster's, and the log
    group that EKS makes again, without tags, when its cluster ends."""
    return one.removable and one.evidence in _BEYOND_DOUBT


def look(context: Context) -> Sight:
    """What is left now, by the same judgement as the certificate's."""
    known = knowledge(context.store, context.names)
    seen, blind = survey_all(context.account)
    found = known.judge(seen)
    left = [Left(kind, one, why, _foreign(one, context.identity)) for kind, rows in found.items() for one, why in rows]
    ordered = sorted(left, key=order)
    suspects = [one for one in known.suspects(seen) if one.kind != ANYTHING.name]
    return Sight(tuple(ordered), tuple(suspects), known.unread(seen) | blind)


def _foreign(one: Thing, identity: str) -> str:
    own = str(one.tags.get(CAMPAIGN_ID_TAG, ""))
    return own if own != identity else ""


class Broom(Protocol):
    """What removing needs: a `Context`, or what stands for several campaigns at once."""

    account: Account
    progress: Progress

    def guard(self) -> None: ...


def remove(context: Broom, wanted: Iterable[Left]) -> Swept:
    """Remove these, in order, again while something on its way out still holds them; each under the driver's lease."""
    open_ones, removed, refused = list(wanted), list[Left](), list[tuple[Left, str]]()
    until, words = time.monotonic() + PATIENCE_S, dict[str, str]()
    total = len(open_ones)
    while open_ones and time.monotonic() < until:
        held = list[Left]()
        for one in open_ones:
            context.guard()
            context.progress.step(f"removing {len(removed)} of {total}: {one}")
            why = _remove(context, one)
            if why is None:
                removed.append(one)
            elif _PASSES.search(why):
                words[one.thing.id] = why
                held.append(one)
            else:
                refused.append((one, why))
        if held and len(held) == len(open_ones):
            for _ in turns(2.0):
                context.progress.step(f"{held[0]} is held: {words[held[0].thing.id]}")
        open_ones = held
    return Swept(tuple(removed), (*refused, *((one, words[one.thing.id]) for one in open_ones)))


def _remove(context: Broom, one: Left) -> str | None:
    """None when it is gone, else why not yet."""
    remove = kind_named(one.kind).remove
    if remove is None:
        return "it is of a kind that nobody here knows how to remove"
    try:
        remove(context.account, one.thing)
    except ClientError as error:
        return None if is_gone(error) else f"{error.response['Error']['Code']}: {error.response['Error']['Message']}"
    except BotoCoreError as error:
        return str(error)
    return None


def remove_left(context: Context) -> tuple[str, ...]:
    """After `pulumi destroy`, without asking: what is the campaign's beyond doubt."""
    sight = look(context)
    mine = [one for one in sight.left if beyond_doubt(one) and not one.thing.leaving]
    for kind, why in sight.blind.items():
        context.progress.note(f"could not look for anything left: {kind}: {why}")
    swept = remove(context, mine)
    for one, why in swept.stuck:
        context.progress.note(f"{one} would not go: {why}")
    return tuple(str(one) for one in swept.removed)
