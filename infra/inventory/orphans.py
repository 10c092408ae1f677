"""Orphans: resources with the tag of a campaign that is over, across all campaigns of an account and region.

A campaign is over when its record says so, or when its time has run out and neither driver nor steward lives. Resources
with only a name, and the foundation, are never orphans. A campaign that trained and was never archived is only shown:
its file system may hold the one copy of its checkpoints, which only its cluster and network can read. One whose record
is missing may have trained and is held too, except for what bills most and holds no checkpoint. An account-wide
resource, such as a role, is only reported if its tag names another region, or none and the record here does not cover
its birth: a campaign of the same name may live there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

from infra.aws.account import Account
from infra.cluster.steward_config import STEWARD_LEASE
from infra.console.progress import Progress
from infra.errors import LeaseHeld, NotProven
from infra.inventory import ANYTHING, Evidence, is_account_wide
from infra.inventory.certify import survey_all
from infra.inventory.evidence import unread_of
from infra.inventory.stakes import NEVER_HOLD, archived, identity_of, may_hold_checkpoints, refuse_unproven
from infra.inventory.sweep import Left, Swept, order, remove
from infra.kinds import Thing
from infra.record.events import CampaignState, Stage
from infra.record.identity import read_identity
from infra.record.lease import Lease
from infra.record.objects import Unreadable
from infra.record.payloads.stages import Abandoned
from infra.record.store import CampaignStore
from infra.session.session import DRIVER_LEASE, driver_lease, holder_of
from infra.session.state_bucket import refuse_vanished
from infra.spec.names import CAMPAIGN_TAG, EXPIRES_TAG, REGION_TAG, buckets


@dataclass(frozen=True)
class Owner:
    """A campaign whose tag some resource carries."""

    campaign: str
    over: bool
    why: str
    """Why it is over, or who still cares for it."""
    holds: str = ""
    """Things that would be lost, and the command that saves them; empty if none."""
    identity: str = ""
    """Identity on the tags of its resources; empty if they carry none."""
    lost: bool = False
    """Its record is missing or another campaign's of this name: nobody can continue it."""


@dataclass(frozen=True)
class Orphan:
    owner: Owner
    left: Left
    expires: str
    """Expiry by its tag; empty if it has none."""

    @property
    def removable(self) -> bool:
        kept = self.owner.holds and not (self.owner.lost and self.left.kind in NEVER_HOLD)
        return self.left.removable and not kept


@dataclass(frozen=True)
class Elsewhere:
    """A resource with a campaign's tag that is, or may be, of another region."""

    campaign: str
    kind: str
    thing: Thing
    why: str

    def __str__(self) -> str:
        return f"{self.kind} {self.thing.label} of {self.campaign} is left alone: {self.why}"


@dataclass(frozen=True)
class OrphanSight:
    orphans: tuple[Orphan, ...]
    """In the order of removal."""
    cared_for: tuple[Owner, ...]
    """Campaigns that are not over; their resources are left alone."""
    blind: Mapping[str, str]
    elsewhere: tuple[Elsewhere, ...] = ()


@dataclass
class OrphanKeeper:
    """Holds the driver's leases of several campaigns while their orphans are removed."""

    account: Account
    bucket: str
    archive: str
    """Bucket of the archives."""
    progress: Progress
    leases: list[Lease] = field(default_factory=list)

    def guard(self) -> None:
        for lease in self.leases:
            lease.check()

    def store(self, campaign: str) -> CampaignStore:
        return CampaignStore(self.account.client("s3"), self.bucket, campaign, f"strays-{time.time_ns()}")


def keeper(account: Account, progress: Progress) -> OrphanKeeper:
    """Return a keeper for the credentials' account, without leases. Raises `UserError` if all records have vanished."""
    owner = account.identity()["Account"]
    where = buckets(owner, account.region)
    refuse_vanished(account, where.state, owner)
    return OrphanKeeper(account, where.state, where.archive, progress)


def look(
    keeper: OrphanKeeper, now: datetime | None = None, only: str | None = None, abandon: bool = False
) -> OrphanSight:
    """Return all orphans of the account and region, or of `only` one campaign, with the certificate's looks. `abandon`:
    a person has given up by name what they may hold."""
    keeper.progress.step("listing everything in the account")
    seen, blind = survey_all(keeper.account)
    tagged = [
        (kind, one)
        for kind, things in seen.items()
        if kind != ANYTHING.name
        for one in things
        if one.tags.get(CAMPAIGN_TAG) and not one.leaving and only in (None, one.tags[CAMPAIGN_TAG])
    ]
    known = {(kind, one.id) for kind, one in tagged}
    # Resources that only the tagging service shows are named too, by ARN, for a human.
    tagged += [
        (ANYTHING.name, one)
        for one in seen.get(ANYTHING.name, ())
        if one.tags.get(CAMPAIGN_TAG)
        and only in (None, one.tags[CAMPAIGN_TAG])
        and not any(_is_arn_of(one.id, id) for _, id in known)
    ]
    by_campaign: dict[str, list[tuple[str, Thing]]] = {}
    for kind, one in tagged:
        by_campaign.setdefault(one.tags[CAMPAIGN_TAG], []).append((kind, one))
    orphans, cared_for, elsewhere = list[Orphan](), list[Owner](), list[Elsewhere]()
    for campaign, things in sorted(by_campaign.items()):
        keeper.progress.step(f"who looks after {campaign}")
        store = keeper.store(campaign)
        others = {(kind, one.id): why for kind, one in things if (why := _elsewhere(store, kind, one))}
        elsewhere += [Elsewhere(campaign, *row, others[row[0], row[1].id]) for row in things if _key(row) in others]
        own = [row for row in things if _key(row) not in others]
        if not own:
            continue
        for identity, group in _by_identity(own).items():
            owner = judge(keeper, store, identity, [one for _, one in group], now or datetime.now(UTC), abandon)
            if not owner.over:
                cared_for.append(owner)
                continue
            for kind, one in group:
                orphans.append(Orphan(owner, Left(kind, one, Evidence.TAG), one.tags.get(EXPIRES_TAG, "")))
    unread = {kind: words for kind, things in seen.items() if (words := unread_of(things))}
    ordered = tuple(sorted(orphans, key=lambda one: order(one.left)))
    return OrphanSight(ordered, tuple(cared_for), unread | blind, tuple(elsewhere))


def _is_arn_of(arn: str, id: str) -> bool:
    """Return whether the ARN ends in the whole id."""
    return arn == id or arn.endswith((f"/{id}", f":{id}"))


def _by_identity(rows: list[tuple[str, Thing]]) -> dict[str, list[tuple[str, Thing]]]:
    """Group resources by campaign identity: a name may have been used more than once."""
    things, groups = [one for _, one in rows], dict[str, list[tuple[str, Thing]]]()
    for kind, one in rows:
        groups.setdefault(identity_of(kind, one, things), []).append((kind, one))
    return groups


def _key(row: tuple[str, Thing]) -> tuple[str, str]:
    return row[0], row[1].id


def _elsewhere(store: CampaignStore, kind: str, one: Thing) -> str:
    """Return why this is, or may be, of another region than the record's; empty if it is not."""
    place = one.tags.get(REGION_TAG)
    if not is_account_wide(kind, one) or place == store.region:
        return ""
    if place is not None:
        return f"it is of {place}: `bivouac sweep --orphans --region {place}` judges it there"
    events = store.events()
    if events and one.created is not None and events[0].at <= one.created <= events[-1].at:
        return ""
    return "neither a tag nor a record tells its region; remove it by hand if nobody uses it"


def judge(
    keeper: OrphanKeeper, store: CampaignStore, identity: str, things: list[Thing], now: datetime, abandon: bool = False
) -> Owner:
    """Return the campaign's owner and whether it is over. A living driver or steward counts more than any date."""
    return _living(store, DRIVER_LEASE, STEWARD_LEASE) or _by_record(keeper, store, identity, things, now, abandon)


def _living(store: CampaignStore, *roles: str) -> Owner | None:
    for role in roles:
        holder = holder_of(store, role)
        if holder is not None and holder.endswith("(living)"):
            return Owner(store.campaign, False, f"its {role} lives: {holder}")
    return None


def _by_record(
    keeper: OrphanKeeper, store: CampaignStore, identity: str, things: list[Thing], now: datetime, abandon: bool
) -> Owner:
    campaign = store.campaign
    try:
        known = read_identity(store)
    except Unreadable as error:
        if not abandon:
            return Owner(campaign, False, f"{error}; `bivouac sweep {campaign} --abandon` gives it up")
        known = None
    of_record = not identity or (known is not None and known.identity == identity)
    state = store.state() if of_record else CampaignState()
    if Stage.TEARDOWN in state.finished_stages:
        return Owner(campaign, True, "its record says that it was torn down", identity=identity)
    if abandon:
        return Owner(campaign, True, "it is given up by name, with all that it may hold", identity=identity)
    ends = [moment for one in things if (moment := _moment(one.tags.get(EXPIRES_TAG))) is not None]
    if not ends:
        return Owner(campaign, False, "no tag tells when it expires, and no record that it was torn down")
    last = max(ends)
    if last > now:
        return Owner(campaign, False, f"its time runs until {last:%Y-%m-%d %H:%M} UTC")
    why = f"its time ran out {last:%Y-%m-%d %H:%M} UTC and nobody looks after it"
    lost = state.tells_nothing and not state.abandoned
    holds = (
        _unknown(keeper, campaign, identity, of_record or known is None) if lost else _unproven(store, state, campaign)
    )
    return Owner(campaign, True, why, holds, identity, lost)


def _unknown(keeper: OrphanKeeper, campaign: str, identity: str, missing: bool) -> str:
    """Return what may be lost without a record: only an archive of this identity proves that nothing is."""
    if archived(keeper.account, keeper.archive, campaign, identity) is not None:
        return ""
    if not may_hold_checkpoints(keeper.account, campaign):
        return ""
    record = "its record is missing" if missing else f"the record of that name is not of campaign {identity}"
    return (
        f"held: {record}, so it may have trained, and no archive of {identity or 'it, which carries no identity,'} is "
        "proven. What may hold checkpoints stays, with the network to read it from; "
        f"`bivouac sweep {campaign} --abandon` gives it up"
    )


def _unproven(store: CampaignStore, state: CampaignState, campaign: str) -> str:
    """Return what is not archived, by the teardown's rule."""
    try:
        refuse_unproven(state, campaign, read_identity(store))
    except NotProven as error:
        return (
            f"not archived: {error.seen}; `bivouac down {campaign}` archives what is sound and tears down; "
            "with --abandon it is lost"
        )
    return ""


def clear(keeper: OrphanKeeper, wanted: list[Orphan], abandon: bool = False) -> Swept:
    """Remove orphans under the driver's lease of each campaign, each judged again under it. A campaign whose driver or
    steward is back, or that has something to lose by now, keeps everything."""
    removed, stuck = list[Left](), list[tuple[Left, str]]()
    with ExitStack() as held:
        free = list[Orphan]()
        judged: dict[tuple[str, str], Owner | str] = {}
        for orphan in wanted:
            key = orphan.owner.campaign, orphan.owner.identity
            if key not in judged:
                things = [one.left.thing for one in wanted if (one.owner.campaign, one.owner.identity) == key]
                judged[key] = _take(keeper, *key, things, held, abandon)
            owner = judged[key]
            if isinstance(owner, Owner) and Orphan(owner, orphan.left, orphan.expires).removable:
                free.append(orphan)
            else:
                stuck.append((orphan.left, owner if isinstance(owner, str) else owner.holds or "it stays"))
        swept = remove(keeper, [one.left for one in free])
        removed += swept.removed
        stuck += swept.stuck
    return Swept(tuple(removed), tuple(stuck))


def _take(
    keeper: OrphanKeeper, campaign: str, identity: str, things: list[Thing], held: ExitStack, abandon: bool
) -> Owner | str:
    """Return its owner, judged again under its lease, or why its resources must not be removed."""
    store = keeper.store(campaign)
    if all(lease.store.campaign != campaign for lease in keeper.leases):
        lease = driver_lease(store, keeper.account)
        try:
            lease.acquire()
        except LeaseHeld:
            return f"campaign {campaign} has a driver again"
        keeper.leases.append(lease)
        held.callback(lease.release)
        held.callback(keeper.leases.remove, lease)
    now = datetime.now(UTC)
    owner = _living(store, STEWARD_LEASE) or _by_record(keeper, store, identity, things, now, abandon)
    if not owner.over:
        return f"campaign {campaign}: {owner.why}"
    if abandon:
        store.append(Abandoned(identity=identity))
    return owner


def _moment(text: str | None) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
