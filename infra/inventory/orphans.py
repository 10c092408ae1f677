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
from infra.inventory.evidence import unread_of
from infra.inventory.stakes import NEVER_HOLD, identity_of, may_hold_checkpoints, refuse_unproven, sound_archive
from infra.inventory.survey import survey_all
from infra.inventory.sweep import Leftover, Swept, order, remove
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
    left: Leftover
    expires: str
    """Expiry by its tag; empty if it has none."""

    @property
    def removable(self) -> bool:
        must_stay = self.owner.holds and not (self.owner.lost and self.left.kind in NEVER_HOLD)
        return self.left.removable and not must_stay


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
    names = buckets(owner, account.region)
    refuse_vanished(account, names.state, owner)
    return OrphanKeeper(account, names.state, names.archive, progress)


def look(
    keeper: OrphanKeeper, now: datetime | None = None, campaign_only: str | None = None, abandon: bool = False
) -> OrphanSight:
    """Return all orphans of the account and region, or those of `campaign_only`, with the certificate's looks.
    `abandon`: a person has given up by name what they may hold."""
    keeper.progress.step("listing everything in the account")
    survey, blind = survey_all(keeper.account)
    rows = [
        (kind, thing)
        for kind, things in survey.items()
        if kind != ANYTHING.name
        for thing in things
        if thing.tags.get(CAMPAIGN_TAG) and not thing.leaving and campaign_only in (None, thing.tags[CAMPAIGN_TAG])
    ]
    ids = {(kind, thing.id) for kind, thing in rows}
    # Resources that only the tagging service shows are named too, by ARN, for a human.
    rows += [
        (ANYTHING.name, thing)
        for thing in survey.get(ANYTHING.name, ())
        if thing.tags.get(CAMPAIGN_TAG)
        and campaign_only in (None, thing.tags[CAMPAIGN_TAG])
        and not any(_is_arn_of(thing.id, id) for _, id in ids)
    ]
    by_campaign: dict[str, list[tuple[str, Thing]]] = {}
    for kind, thing in rows:
        by_campaign.setdefault(thing.tags[CAMPAIGN_TAG], []).append((kind, thing))
    orphans, cared_for, other_regions = list[Orphan](), list[Owner](), list[Elsewhere]()
    for campaign, things in sorted(by_campaign.items()):
        keeper.progress.step(f"who looks after {campaign}")
        store = keeper.store(campaign)
        foreign = {(kind, thing.id): reason for kind, thing in things if (reason := _other_region(store, kind, thing))}
        other_regions += [
            Elsewhere(campaign, *row, foreign[row[0], row[1].id]) for row in things if _key(row) in foreign
        ]
        own_things = [row for row in things if _key(row) not in foreign]
        if not own_things:
            continue
        for identity, group in _by_identity(own_things).items():
            owner = judge(keeper, store, identity, [thing for _, thing in group], now or datetime.now(UTC), abandon)
            if not owner.over:
                cared_for.append(owner)
                continue
            for kind, thing in group:
                orphans.append(Orphan(owner, Leftover(kind, thing, Evidence.TAG), thing.tags.get(EXPIRES_TAG, "")))
    unread = {kind: words for kind, things in survey.items() if (words := unread_of(things))}
    in_order = tuple(sorted(orphans, key=lambda orphan: order(orphan.left)))
    return OrphanSight(in_order, tuple(cared_for), unread | blind, tuple(other_regions))


def _is_arn_of(arn: str, id: str) -> bool:
    """Return whether the ARN ends in the whole id."""
    return arn == id or arn.endswith((f"/{id}", f":{id}"))


def _by_identity(rows: list[tuple[str, Thing]]) -> dict[str, list[tuple[str, Thing]]]:
    """Group resources by campaign identity: a name may have been used more than once."""
    things, groups = [thing for _, thing in rows], dict[str, list[tuple[str, Thing]]]()
    for kind, thing in rows:
        groups.setdefault(identity_of(kind, thing, things), []).append((kind, thing))
    return groups


def _key(row: tuple[str, Thing]) -> tuple[str, str]:
    return row[0], row[1].id


def _other_region(store: CampaignStore, kind: str, thing: Thing) -> str:
    """Return why this is, or may be, of another region than the record's; empty if it is not."""
    place = thing.tags.get(REGION_TAG)
    if not is_account_wide(kind, thing) or place == store.region:
        return ""
    if place is not None:
        return f"it is of {place}: `bivouac sweep --orphans --region {place}` judges it there"
    events = store.events()
    if events and thing.created is not None and events[0].at <= thing.created <= events[-1].at:
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
        record = read_identity(store)
    except Unreadable as error:
        if not abandon:
            return Owner(campaign, False, f"{error}; `bivouac sweep {campaign} --abandon` gives it up")
        record = None
    of_record = not identity or (record is not None and record.identity == identity)
    state = store.state() if of_record else CampaignState()
    if Stage.TEARDOWN in state.finished_stages:
        return Owner(campaign, True, "its record says that it was torn down", identity=identity)
    if abandon:
        return Owner(campaign, True, "it is given up by name, with all that it may hold", identity=identity)
    ends = [moment for thing in things if (moment := _moment(thing.tags.get(EXPIRES_TAG))) is not None]
    if not ends:
        return Owner(campaign, False, "no tag tells when it expires, and no record that it was torn down")
    end = max(ends)
    if end > now:
        return Owner(campaign, False, f"its time runs until {end:%Y-%m-%d %H:%M} UTC")
    reason = f"its time ran out {end:%Y-%m-%d %H:%M} UTC and nobody looks after it"
    is_lost = state.tells_nothing and not state.abandoned
    stakes = (
        _unknown(keeper, campaign, identity, of_record or record is None)
        if is_lost
        else _unproven(store, state, campaign)
    )
    return Owner(campaign, True, reason, stakes, identity, is_lost)


def _unknown(keeper: OrphanKeeper, campaign: str, identity: str, missing: bool) -> str:
    """Return what may be lost without a record: only an archive of this identity proves that nothing is."""
    if sound_archive(keeper.account, keeper.archive, campaign, identity) is not None:
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


def clear(keeper: OrphanKeeper, orphans: list[Orphan], abandon: bool = False) -> Swept:
    """Remove orphans under the driver's lease of each campaign, each judged again under it. A campaign whose driver or
    steward is back, or that has something to lose by now, keeps everything."""
    removals, failures = list[Leftover](), list[tuple[Leftover, str]]()
    with ExitStack() as stack:
        free = list[Orphan]()
        owners: dict[tuple[str, str], Owner | str] = {}
        for orphan in orphans:
            key = orphan.owner.campaign, orphan.owner.identity
            if key not in owners:
                things = [row.left.thing for row in orphans if (row.owner.campaign, row.owner.identity) == key]
                owners[key] = _take(keeper, *key, things, stack, abandon)
            owner = owners[key]
            if isinstance(owner, Owner) and Orphan(owner, orphan.left, orphan.expires).removable:
                free.append(orphan)
            else:
                failures.append((orphan.left, owner if isinstance(owner, str) else owner.holds or "it stays"))
        swept = remove(keeper, [row.left for row in free])
        removals += swept.removed
        failures += swept.stuck
    return Swept(tuple(removals), tuple(failures))


def _take(
    keeper: OrphanKeeper, campaign: str, identity: str, things: list[Thing], stack: ExitStack, abandon: bool
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
        stack.callback(lease.release)
        stack.callback(keeper.leases.remove, lease)
    now = datetime.now(UTC)
    owner = _living(store, STEWARD_LEASE) or _by_record(keeper, store, identity, things, now, abandon)
    if not owner.over:
        return f"campaign {campaign}: {owner.why}"
    if abandon:
        store.append(Abandoned(identity=identity))
    return owner


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
