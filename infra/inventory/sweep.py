"""Sweep: shows what is left of a torn down campaign and removes what is provably its own.

Proof is a tag of the campaign or its cluster, a place in its network, or being its cluster's log group; kinship or a
name is not, and a human judges suspects. The foundation and what is kept on purpose are never touched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.console.progress import Progress
from infra.inventory import ANYTHING, Evidence, Suspicion
from infra.inventory.certify import knowledge
from infra.inventory.evidence import PROVES
from infra.inventory.survey import survey_all
from infra.kinds import KINDS, ResourceKind, Thing, kind_named
from infra.kinds.ec2 import HOLDERS
from infra.kinds.listed import is_gone
from infra.record.payloads.stages import ResidueSwept
from infra.session.context import Context, turns
from infra.spec.names import CAMPAIGN_ID_TAG


def usd_per_hour(kind: str, thing: Thing) -> Decimal | None:
    """Return 0 if it no longer bills by the hour, None if it bills and no price is known."""
    return Decimal(0) if thing.leaving else kind_named(kind).price(thing.traits)


def total(rates: Iterable[Decimal | None]) -> tuple[Decimal, int]:
    """Return the sum of the known rates and the number of unknown ones."""
    rows = list(rates)
    return sum((rate for rate in rows if rate is not None), Decimal(0)), sum(rate is None for rate in rows)


def sum_text(rates: Iterable[Decimal | None]) -> str:
    """Return the sum as text."""
    usd, unknown = total(rates)
    suffix = f", and {unknown} whose price is not in the catalogue" if unknown else ""
    return f"together {rate_text(usd)} USD/h{suffix}"


def rate_text(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.quantize(Decimal('0.001'))}"


PATIENCE_S = 300.0
"""Wait for what is held by something on its way out."""
_PASSES = re.compile(
    r"DependencyViolation|InUse|Conflict|Throttl|LimitExceeded|SlowDown|Internal|Unavailable|IncorrectS"
)
"""Refusals that end when the holder of a resource has gone; all others are final."""
_ORDER = {kind.name: position for position, kind in enumerate(sorted(KINDS, key=lambda one: one.step)) if kind.remove}
_IN_NETWORKS = tuple(kind for kind in KINDS if kind.network or kind.name in HOLDERS)
_BEYOND_DOUBT = frozenset({Evidence.TAG, Evidence.CLUSTER, Evidence.LOGS})
"""A place is missing: somebody else may have put the resource into the network."""


@dataclass(frozen=True)
class Leftover:
    kind: str
    thing: Thing
    evidence: Evidence
    foreign: str = ""
    """Identity on its tag if it is another campaign's of this name: `sweep --orphans` judges it."""

    @property
    def removable(self) -> bool:
        """Return whether it is provably the campaign's and of a kind that we can remove."""
        return kind_named(self.kind).remove is not None and self.evidence in PROVES and not self.foreign

    @property
    def created(self) -> datetime | None:
        return self.thing.created

    @property
    def usd_per_hour(self) -> Decimal | None:
        """Return the hourly price; None where no price is known."""
        return usd_per_hour(self.kind, self.thing)

    def __str__(self) -> str:
        return f"{self.kind} {self.thing.label}" + (f" ({self.thing.doubt})" if self.thing.doubt else "")


@dataclass(frozen=True)
class Sight:
    """Leftovers in the order of removal, suspects, and kinds that could not be looked at with the reason."""

    left: tuple[Leftover, ...]
    suspects: tuple[Suspicion, ...]
    blind: dict[str, str]


@dataclass(frozen=True)
class Swept:
    removed: tuple[Leftover, ...]
    stuck: tuple[tuple[Leftover, str], ...]
    """Resources that were not removed, with AWS's message."""


def order(leftover: Leftover) -> tuple[int, str]:
    """Return the sort key of the order of removal."""
    return _ORDER.get(leftover.kind, len(KINDS)), leftover.thing.id


def beyond_doubt(leftover: Leftover) -> bool:
    """Return whether a teardown removes it without asking: tagged by the campaign or its cluster, or the log group that
    EKS makes again, without tags, when its cluster ends."""
    return leftover.removable and leftover.evidence in _BEYOND_DOUBT


def made_by_aws(leftover: Leftover) -> bool:
    """Return whether a service of AWS put it into the campaign's network of its own accord, as EKS its cluster's
    security group."""
    by_eks = leftover.evidence is Evidence.CLUSTER and leftover.kind in HOLDERS
    return leftover.removable and (by_eks or (leftover.evidence is Evidence.PLACE and bool(leftover.thing.maker)))


def look(context: Context, kinds: Sequence[ResourceKind] = ()) -> Sight:
    """Return what is left now, of all kinds unless given, judged as the certificate does."""
    facts = knowledge(context.store, context.names)
    survey, blind = survey_all(context.account, kinds)
    findings = facts.judge(survey)
    left = [
        Leftover(kind, thing, proof, _foreign(thing, context.identity))
        for kind, rows in findings.items()
        for thing, proof in rows
    ]
    in_order = sorted(left, key=order)
    suspects = [thing for thing in facts.suspects(survey) if thing.kind != ANYTHING.name]
    return Sight(tuple(in_order), tuple(suspects), facts.unread(survey) | blind)


def _foreign(thing: Thing, identity: str) -> str:
    identity_tag = str(thing.tags.get(CAMPAIGN_ID_TAG, ""))
    return identity_tag if identity_tag != identity else ""


class Broom(Protocol):
    """Interface that `remove` needs: a `Context`, or an `OrphanKeeper`."""

    account: Account
    progress: Progress

    def guard(self) -> None: ...


def remove(context: Broom, leftovers: Iterable[Leftover]) -> Swept:
    """Remove resources in order under the driver's lease, with retries while something on its way out holds them."""
    open_ones, removals, failures = list(leftovers), list[Leftover](), list[tuple[Leftover, str]]()
    end, words = time.monotonic() + PATIENCE_S, dict[str, str]()
    total = len(open_ones)
    while open_ones and time.monotonic() < end:
        waiting_ones = list[Leftover]()
        for row in open_ones:
            context.guard()
            context.progress.step(f"removing {len(removals)} of {total}: {row}")
            reason = _remove(context, row)
            if reason is None:
                removals.append(row)
            elif _PASSES.search(reason):
                words[row.thing.id] = reason
                waiting_ones.append(row)
            else:
                failures.append((row, reason))
        if waiting_ones and len(waiting_ones) == len(open_ones):
            for _ in turns(2.0):
                context.progress.step(f"{waiting_ones[0]} is held: {words[waiting_ones[0].thing.id]}")
        open_ones = waiting_ones
    return Swept(tuple(removals), (*failures, *((row, words[row.thing.id]) for row in open_ones)))


def _remove(context: Broom, leftover: Leftover) -> str | None:
    """Return None when it is gone, else why not yet."""
    remove = kind_named(leftover.kind).remove
    if remove is None:
        return "resources of this kind cannot be removed here"
    try:
        remove(context.account, leftover.thing)
    except ClientError as error:
        return None if is_gone(error) else f"{error.response['Error']['Code']}: {error.response['Error']['Message']}"
    except BotoCoreError as error:
        return str(error)
    return None


def remove_left(context: Context, *, in_network: bool = False) -> tuple[str, ...]:
    """Remove, after `pulumi destroy` and without asking, what is the campaign's beyond doubt or AWS put into its
    network. `in_network`: during it, only the latter, which holds subnets and VPC."""
    sight = look(context, _IN_NETWORKS) if in_network else look(context)
    rows = [row for row in sight.left if made_by_aws(row) or (not in_network and beyond_doubt(row))]
    removable = [row for row in rows if not row.thing.leaving]
    for kind, reason in sight.blind.items():
        context.progress.note(f"could not look for leftovers: {kind}: {reason}")
    swept = remove(context, removable)
    for row, reason in swept.stuck:
        context.progress.note(f"{row} would not go: {reason}")
    names = tuple(str(row) for row in swept.removed)
    if names:
        context.store.append(ResidueSwept(things=list(names)))
    return names
