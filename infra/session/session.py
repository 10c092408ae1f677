"""The session of a campaign: account, state bucket, record and lease, opened from a spec or from a name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import AwareDatetime, ValidationError
from rich.console import Console

from infra.aws.account import Account
from infra.aws.namesakes import refuse_namesake
from infra.cluster.standing.connection import open_account
from infra.cluster.steward_config import StewardConfig, config_key
from infra.console.progress import Progress
from infra.errors import LeaseHeld, UserError, first_line
from infra.folders import results_folder
from infra.plan.plan import Plan, make_plan
from infra.plan.survey import environment, survey
from infra.record import borrowing
from infra.record.holder import Holder
from infra.record.identity import claim_identity
from infra.record.lease import DRIVER_LEASE, Lease, lease_ttl
from infra.record.objects import Unreadable, or_none
from infra.record.payloads.stages import DriverTookOver
from infra.record.store import CampaignStore
from infra.session.block_clock import clock_of
from infra.session.context import Context
from infra.session.state_bucket import ensure_bucket, refuse_vanished
from infra.spec import names
from infra.spec.campaign import Spec
from trainer.contract.frozen import Frozen

_TYPED = os.environ.get("BIVOUAC_LEASE_SECONDS")
LEASE_TTL = lease_ttl(_TYPED or "30")
"""Time that an unreachable driver keeps its campaign."""
ENGINE_TTL = LEASE_TTL if _TYPED else timedelta(minutes=6)
"""The same while its engine works: a gap of five minutes in the connection interrupts no creation."""
FOUNDATION = "foundation"
_FOUNDATION_WAIT_S = 1800.0
SPEC, PLAN, CLOCK, SITE = "spec.json", "plan.json", "clock.json", "site.json"
STACK_CONFIG = "stack-config.json"
"""Key of the stack's configuration as the driver last used it, for `pulumi` called by hand."""


class CampaignClock(Frozen, extra="ignore"):
    """The content of `CLOCK`."""

    started_at: AwareDatetime
    deadline: AwareDatetime


@dataclass(frozen=True)
class Session:
    """The account, record and driver's lease of a campaign; the lease may not be held."""

    spec: Spec
    account: Account
    operator_arn: str
    buckets: names.Buckets
    store: CampaignStore
    lease: Lease

    def context(self, plan: Plan, console: Console, deadline: datetime, identity: str = "") -> Context:
        return Context(
            spec=self.spec,
            plan=plan,
            account=self.account,
            operator_arn=self.operator_arn,
            buckets=self.buckets,
            store=self.store,
            lease=self.lease,
            progress=Progress(console),
            results=results_folder(self.spec.campaign, self.spec.account, self.spec.region),
            deadline=deadline.replace(microsecond=0),
            identity=identity,
        )


def open_session(spec: Spec, writer: str) -> Session:
    """Return a session without writing or taking a lease; raise `UserError` for foreign credentials, or for a cluster
    that does not know the login."""
    account, identity = open_account(spec)
    folder = f"{spec.bucket_root}campaigns/{spec.campaign}"
    store = CampaignStore(account.client("s3"), spec.buckets.state, spec.campaign, writer, folder)
    return Session(spec, account, identity, spec.buckets, store, driver_lease(store, account))


def driver_lease(store: CampaignStore, account: Account) -> Lease:
    """Return the driver's lease, not yet taken; it is renewed by a client that no hung socket delays."""
    return store.lease(DRIVER_LEASE, LEASE_TTL, s3=account.lease_client(LEASE_TTL))


@contextmanager
def _driving(spec: Spec) -> Iterator[tuple[Session, Holder | None]]:
    """Yield a session that holds its lease and checks it before every AWS call, and the previous holder."""
    session = open_session(spec, _writer())
    if environment(spec).makes_cluster:
        ensure_bucket(session.account, session.buckets.state, spec.account)
    previous = session.lease.acquire()
    session.account.guard = session.lease.check
    try:
        yield session, previous
    finally:
        session.lease.release()
        session.account.guard = None


@contextmanager
def opened(spec: Spec, plan: Plan, console: Console, site_document: dict[str, Any] | None) -> Iterator[Context]:
    """Open the campaign of this spec, new or continued, and hold the driver's lease.

    Raises `UserError` for foreign credentials, another spec under this name, or a new name that a role of the account
    has; `LeaseHeld` with another driver.
    """
    if spec.borrows_nodes:
        borrowing.refuse_elsewhere(spec)
    with _driving(spec) as (session, previous):
        store = session.store
        exists = store.has(SPEC)
        if not exists and environment(spec).makes_cluster:
            refuse_namesake(session.account, spec.campaign)
        clock = _clock(store, spec, plan, session.account)
        # The identity comes before the spec, so that every record with a spec has one.
        identity = claim_identity(store, is_adopted=exists).identity
        try:
            store.claim_spec(spec.model_dump_json(), spec_key(store.state().version))
        except Unreadable:
            if stored_spec(store) != spec:
                raise
        if spec.borrows_nodes:
            borrowing.remember(spec)
        store.put_if_absent(f"{store.prefix}/{CLOCK}", clock.model_dump_json().encode())
        store.put_if_absent(f"{store.prefix}/{PLAN}", plan.model_dump_json(indent=1).encode())
        if site_document is not None:
            store.put_json(SITE, site_document)
        if previous is not None:
            holders = {"holder": str(session.lease.holder), "previous": str(previous)}
            store.append(DriverTookOver(**holders, who=session.operator_arn))
        yield session.context(plan, console, clock.deadline, identity)


@contextmanager
def opened_for_images(spec: Spec, plan: Plan, console: Console, life: timedelta) -> Iterator[Context]:
    """Open account, state bucket and driver's lease without recording a campaign's spec or clock.

    `life` is the deadline of the images' resources. Raises as `opened` does.
    """
    with _driving(spec) as (session, _):
        yield session.context(plan, console, datetime.now(UTC) + life)


def foundation_lease(context: Context) -> AbstractContextManager[Lease]:
    """Hold the foundation, which all campaigns of the account share: one driver changes it, the others wait."""
    return foundation_held(context.store, context.account, context.progress)


@contextmanager
def foundation_held(store: CampaignStore, account: Account, progress: Progress) -> Iterator[Lease]:
    """`foundation_lease` for callers without a campaign; `store` is any store of the state bucket."""
    foundation = CampaignStore(store.s3, store.bucket, FOUNDATION, store.writer, folder=FOUNDATION)
    lease = driver_lease(foundation, account)
    end = time.monotonic() + _FOUNDATION_WAIT_S
    while True:
        try:
            lease.acquire()
            break
        except LeaseHeld as error:
            if time.monotonic() > end:
                raise
            progress.step(f"another campaign's driver holds the foundation: {error.seen}")
            time.sleep(0.5)
    try:
        yield lease
    finally:
        lease.release()


def has_begun(account: Account, spec: Spec) -> bool:
    """Return True if a campaign of this name has a record; read-only."""
    folder = f"{spec.bucket_root}campaigns/{spec.campaign}"
    return CampaignStore(account.client("s3"), spec.buckets.state, spec.campaign, "", folder).has(SPEC)


class NoSuchCampaign(UserError):
    """The account and region have no record of this name."""


def record_of(campaign: str, region: str) -> CampaignStore:
    """Return the record of an existing campaign; raise `NoSuchCampaign` with the existing names if there is none. A
    campaign in an existing cluster is known where it was opened, and has no region."""
    if (spec := borrowing.recall(campaign)) is not None and (store := open_session(spec, _writer()).store).has(SPEC):
        return store
    account = Account(region)
    identity = account.identity()
    bucket = names.buckets(identity["Account"], region).state
    store = CampaignStore(account.client("s3"), bucket, campaign, _writer())
    if not store.has(SPEC):
        refuse_vanished(account, bucket, identity["Account"])
        raise NoSuchCampaign(
            "there is no such campaign here",
            seen=f"{campaign} in account {identity['Account']}, {region}",
            cure=f"campaigns there: {', '.join(campaigns(account, bucket)) or 'none'}; or give --region; if its record "
            f"was lost, `bivouac sweep {campaign}` shows what it left",
        )
    return store


def campaigns(account: Account, bucket: str) -> list[str]:
    pages = account.client("s3").get_paginator("list_objects_v2")
    listing = or_none(lambda: list(pages.paginate(Bucket=bucket, Prefix="campaigns/", Delimiter="/"))) or []
    names_found = [item["Prefix"].split("/")[1] for page in listing for item in page.get("CommonPrefixes", ())]
    # A bake ahead of its campaign leaves a lease there, but no spec.
    return [name for name in names_found if CampaignStore(account.client("s3"), bucket, name, "").has(SPEC)]


def spec_key(version: int) -> str:
    """Return the key of a spec in the record: the first one, or a relaunch's."""
    return SPEC if version == 0 else f"specs/{version}.json"


def plan_key(version: int) -> str:
    return PLAN if version == 0 else f"plans/{version}.json"


def stored_spec(store: CampaignStore) -> Spec:
    """Return the spec in force; if it cannot be read, the steward's copy of it. Raises `Unreadable` without either."""
    version = store.state().version
    try:
        return Spec.model_validate(store.get_json(spec_key(version)))
    except (Unreadable, ValidationError) as error:
        key = f"{store.prefix}/{spec_key(version)}"
        store.unread[key] = first_line(error)
        if (config := store.figures(config_key(version), StewardConfig)) is None:
            raise Unreadable(key, error) from error
        return config.spec


def stored_plan(store: CampaignStore, spec: Spec) -> Plan:
    """Return the plan in force; one that is missing or cannot be read is made again."""
    return store.figures(plan_key(store.state().version), Plan) or make_plan(spec, survey(spec))


def stored_deadline(store: CampaignStore) -> datetime | None:
    """Return the recorded deadline; None before there is one. One that cannot be read is reckoned from the begin."""
    try:
        clock = store.model(CLOCK, CampaignClock)
    except Unreadable as error:
        store.unread[error.key] = error.why
        return (store.state().started_at or datetime.now(UTC)) + stored_spec(store).money.deadline
    return None if clock is None else clock.deadline


def _clock(store: CampaignStore, spec: Spec, plan: Plan, account: Account) -> CampaignClock:
    """Return the recorded clock, or a new one; it is absolute, so that a restart of the driver does not move it.

    Raises `UserError` for a new campaign that does not fit its capacity block, before its name is taken.
    """
    if (deadline_stored := stored_deadline(store)) is not None:
        return CampaignClock(started_at=datetime.now(UTC), deadline=deadline_stored)
    now = datetime.now(UTC)
    try:
        start, deadline = clock_of(account, spec, plan, now)
    except UserError:
        if not store.has(SPEC):
            raise
        start, deadline = now, now + spec.money.deadline  # the campaign exists already and is opened to end it
    return CampaignClock(started_at=start, deadline=deadline)


def _writer() -> str:
    """Return a name for this process, which writes its own sequence of events."""
    return f"driver-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}"


def holder_of(store: CampaignStore, role: str) -> str | None:
    """Return a description of a lease's present holder; None if there is none."""
    role_lease = store.lease(role, LEASE_TTL).current()
    if role_lease is None or role_lease.record.released:
        return None
    record = role_lease.record
    state = "gone" if record.holder.provably_gone() or role_lease.age_s > record.ttl_s else "living"
    return f"{record.holder}, renewed {role_lease.age_s:.0f} s ago ({state})"
