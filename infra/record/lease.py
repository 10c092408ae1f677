"""The right to change a campaign, for one holder at a time: an object that S3 itself gives to whoever is first."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ConfigDict

from infra.errors import LeaseHeld, LeaseLost, LeaseUnproven, UserError
from infra.record.holder import Holder
from infra.record.objects import is_missing, is_precondition_failure

log = logging.getLogger("record")
_RACES = 5
_SHORTEST_S, _LONGEST_S = 8.0, 3600.0
"""Below, one hung socket loses the lease (see `Lease`); above, a campaign waits too long for a driver that is gone."""


class RecordPlace(Protocol):
    """Where a campaign's record lies."""

    bucket: str
    campaign: str
    prefix: str


Where = TypeVar("Where", bound=RecordPlace)


class Lapse(BaseModel):
    """A holder whose engine may have left its lock: killed, cut off, or itself forced to end the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    holder: Holder
    until: datetime
    """When its time was over, by its own machine's clock; that clock also dates the locks its engines took."""


class LeaseRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    holder: Holder
    renewed_at: datetime
    ttl_s: float
    released: bool = False
    lapsed: tuple[Lapse, ...] = ()
    """Newest first, as far as they are remembered: what these holders began may still lie about."""


class StoredLease(NamedTuple):
    """A stored lease, its entity tag, and its age in seconds by S3's own clock."""

    record: LeaseRecord
    etag: str
    age_s: float


_LAPSED_KEPT = 8


def lease_ttl(typed: str) -> timedelta:
    """Of a lease, from its seconds as a person wrote them. Raises `UserError` for what no lease can have."""
    try:
        seconds = float(typed)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_S <= seconds <= _LONGEST_S:  # false also of what is no number
        raise UserError(
            "BIVOUAC_LEASE_SECONDS is no life of a lease",
            seen=repr(typed),
            cure=f"set a number from {_SHORTEST_S:g} to {_LONGEST_S:g}, or unset it: 30 will do where S3 is near",
        )
    return timedelta(seconds=seconds)


class Lease(Generic[Where]):
    """The right to mutate, for one holder at a time: taken, renewed and given back by conditional write.

    `check()` before every mutation: it raises `LeaseLost` once the lease is not provably ours any more, judged by
    our own monotonic time since the last renewal, so that a process that was stopped and continued stops touching.

    It is renewed every `ttl`/5; a renewal that failed is begun again after `ttl`/20. With a client of two tries, each
    of `ttl`/3 (`Account.lease_client`), one socket may hang to its end and the second try still has its whole time
    (`ttl`/5 + 2 `ttl`/3, and a second between them) for any `ttl` of 8 s or more (`lease_ttl` takes none below); so has
    an S3 that answers so late.

    `patient`: one that was not renewed in time is not lost but unproven, and `check` raises `LeaseUnproven`. While S3
    is away nobody else can take it either; once it answers, the renewal's condition says whether anybody did.
    """

    def __init__(self, store: Where, role: str, ttl: timedelta, holder: Holder, s3: Any, patient: bool = False) -> None:
        self.store, self.role, self.ttl, self.holder, self.s3 = store, role, ttl, holder, s3
        self.patient = patient
        self.key = f"{store.prefix}/leases/{role}.json"
        self._etag: str | None = None
        self._renewed = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None
        self._refusal = "no answer yet"
        """Of the newest renewal that failed, in words."""
        self.lapsed: tuple[Lapse, ...] = ()
        """Earlier holders that left unclean, as far as the lease remembers."""
        self.unclean = False
        """An engine of ours was ended by force: set before that, told to our successors at release."""
        self.acquired = 0.0
        """When we took it, in seconds of CLOCK_BOOTTIME."""

    @property
    def covers_until(self) -> float:
        """Until when it is ours unless renewed, in seconds of CLOCK_BOOTTIME; the past when it is lost."""
        return 0.0 if self._lost is not None else self._renewed + self.ttl.total_seconds()

    def current(self) -> StoredLease | None:
        try:
            answer = self.s3.get_object(Bucket=self.store.bucket, Key=self.key)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        record = LeaseRecord.model_validate_json(answer["Body"].read())
        return StoredLease(record, answer["ETag"], _age_s(answer, record))

    def acquire(self) -> Holder | None:
        """Take the lease; returns the previous holder when it was taken over from one that is gone.

        Raises `LeaseHeld` naming a living holder.
        """
        found = self.current()
        previous, self._etag = None, None
        if found is not None:
            record, self._etag, age = found
            self.lapsed = record.lapsed
            if not record.released and record.holder != self.holder:
                if age < record.ttl_s and not record.holder.provably_gone():
                    raise LeaseHeld(
                        f"campaign {self.store.campaign} already has a {self.role}",
                        seen=f"{record.holder}, renewed {age:.0f} s ago",
                        cure=f"watch it with `bivouac status {self.store.campaign}`, or wait until it is gone "
                        f"(its lease runs out after {record.ttl_s:.0f} s)",
                    )
                previous = record.holder
                self._remember(previous, record.renewed_at + timedelta(seconds=record.ttl_s))
        self._write(released=False)
        self.acquired = _monotonic()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{self.role}", daemon=True)
        self._thread.start()
        return previous

    def _remember(self, holder: Holder, until: datetime) -> None:
        self.lapsed = (Lapse(holder=holder, until=until), *self.lapsed)[:_LAPSED_KEPT]

    def check(self) -> None:
        """Raises `LeaseLost` or, of a patient lease, `LeaseUnproven`."""
        late = _monotonic() - self._renewed
        if self._lost is None and late > self.ttl.total_seconds():
            if self.patient:
                raise LeaseUnproven(
                    f"the {self.role} lease of {self.store.campaign} has not been renewed for {late:.0f} s",
                    seen=self._refusal,
                    cure="nothing is touched until S3 takes its renewal",
                    delay=self.ttl / 20,
                )
            self._lost = "it was not renewed in time (the process was stopped, or S3 could not be reached)"
        if self._lost is not None:
            raise LeaseLost(
                f"the {self.role} lease of {self.store.campaign} is lost",
                seen=self._lost,
                cure="nothing more is touched; run the same command again to continue",
            )

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._etag is not None and self._lost is None:
            if self.unclean:
                self._remember(self.holder, datetime.now(UTC))
            try:
                self._write(released=True)
            except (ClientError, BotoCoreError, LeaseLost, LeaseHeld):
                self._lost = "gone at release"

    def _write(self, *, released: bool) -> None:
        """Raises `LeaseHeld` where another holder was quicker."""
        if not any(self._written(released) for _ in range(_RACES)):
            raise LeaseHeld(f"the {self.role} of {self.store.campaign} races with itself", seen=self.holder)

    def _written(self, released: bool) -> bool:
        """One conditional write; false where an earlier one of ours had landed unheard: now it is known."""
        record = LeaseRecord(
            holder=self.holder,
            renewed_at=datetime.now(UTC),
            ttl_s=self.ttl.total_seconds(),
            released=released,
            lapsed=self.lapsed,
        )
        condition: dict[str, str] = {"IfMatch": self._etag} if self._etag else {"IfNoneMatch": "*"}
        begun = _monotonic()
        try:
            answer = self.s3.put_object(
                Bucket=self.store.bucket, Key=self.key, Body=record.model_dump_json().encode(), **condition
            )
        except ClientError as error:
            if not is_precondition_failure(error):
                raise
            found = self.current()
            if found is not None and found.record == record:
                # Our own write landed, only its answer was lost, and the client tried again.
                self._etag, self._renewed = found.etag, begun
                return True
            if found is not None and found.record.holder == self.holder and not found.record.released:
                # An earlier one landed of which no try ever heard; this one failed by it, or (409) raced with it.
                self._etag = found.etag
                return False
            raise LeaseHeld(
                f"another {self.role} of {self.store.campaign} was quicker",
                seen=found.record.holder if found else "nobody",
                cure="watch it with `bivouac status`",
            ) from error
        self._etag, self._renewed = answer["ETag"], begun
        return True

    def _renew(self) -> None:
        pause: timedelta | None = self.ttl / 5
        while pause is not None and not self._stop.wait(pause.total_seconds()):
            pause = self.renew()

    def renew(self) -> timedelta | None:
        """One renewal; the time until the next, None when the lease is lost."""
        try:
            with suppress(LeaseUnproven):
                self.check()
            self._write(released=False)
        except LeaseLost:
            return None  # `check` keeps why
        except LeaseHeld as error:
            self._lost = str(error)
            return None
        except Exception as error:
            # S3 out of reach: `check` judges by age; the next round tries again, soon.
            self._refusal = str(error)[:300]
            log.info("the %s lease was not renewed, that is tried again: %s", self.role, error)
            return self.ttl / 20
        return self.ttl / 5


def _age_s(answer: dict[str, Any], record: LeaseRecord) -> float:
    """Since the lease was written: both moments by S3's clock, so that no machine's own clock can steal a lease."""
    asked = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    written = answer.get("LastModified")
    if asked and isinstance(written, datetime):
        # Both are whole seconds: less one, so that a lease is never thought older than it is.
        return max(0.0, (parsedate_to_datetime(asked) - written).total_seconds() - 1.0)
    return (datetime.now(UTC) - record.renewed_at).total_seconds()


def _monotonic() -> float:
    """Goes on while the machine sleeps: a lease does not outlive a closed lid."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
