"""The right to change a campaign: an object that S3's conditional writes give to one holder at a time."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import ValidationError

from infra.errors import LeaseHeld, LeaseLost, LeaseUnproven, UserError
from infra.record.holder import UNKNOWN, Holder
from infra.record.objects import is_precondition_failure, or_none
from trainer.contract.frozen import Frozen

log = logging.getLogger("record")
_RACES = 5
_SHORTEST_S, _LONGEST_S = 8.0, 3600.0
"""A shorter lease is lost by one hung socket (see `Lease`); a longer one outlives a dead driver for too long."""


class RecordPlace(Protocol):
    bucket: str
    campaign: str
    prefix: str


Where = TypeVar("Where", bound=RecordPlace)


DRIVER_LEASE = "driver"
"""Role of whoever drives a campaign, and of the closer while it ends one."""


class Lapse(Frozen):
    """A holder that may have left its engine's lock: killed, cut off, or forced to end the engine."""

    holder: Holder
    until: datetime
    """End of its lease by its own machine's clock, which also dates the locks of its engines."""


class LeaseRecord(Frozen):
    holder: Holder
    renewed_at: datetime
    ttl_s: float
    released: bool = False
    lapsed: tuple[Lapse, ...] = ()
    """Earlier holders that may have left locks or resources; newest first, limited in number."""


class StoredLease(NamedTuple):
    """A stored lease, its entity tag, and its age in seconds by S3's clock."""

    record: LeaseRecord
    etag: str
    age_s: float

    @property
    def living(self) -> bool:
        """True while its holder may act."""
        return not self.record.released and self.age_s <= self.record.ttl_s and not self.record.holder.provably_gone()


_LAPSED_KEPT = 8
_EXPIRED = re.compile(r"Expired|Token has expired|refresh failed", re.IGNORECASE)
"""Words of S3, or of whoever renews credentials, about those that are over."""


def lease_ttl(text: str) -> timedelta:
    """Parse the duration of a lease from seconds; raise `UserError` if it is no number or out of range."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_S <= seconds <= _LONGEST_S:  # also false for NaN
        raise UserError(
            "BIVOUAC_LEASE_SECONDS is no valid duration of a lease",
            seen=repr(text),
            cure=f"set a number from {_SHORTEST_S:g} to {_LONGEST_S:g}, or unset it: 30 is enough if S3 is near",
        )
    return timedelta(seconds=seconds)


class Lease(Generic[Where]):
    """The right to mutate, for one holder at a time: taken, renewed and given back by conditional writes.

    Call `check()` before every mutation. It raises `LeaseLost` once the lease is not provably ours, judged by our own
    monotonic time since the last renewal; so a process that was stopped and continued changes nothing more.

    It is renewed every `ttl`/5, or `ttl`/20 after a failed renewal. With a client of two tries, each of `ttl`/3
    (`Account.lease_client`), one socket may hang or S3 may answer so late, and the second try still has its whole time
    (`ttl`/5 + 2 `ttl`/3, and a second between them) if `ttl` is 8 s or more, which `lease_ttl` requires.

    `lasting` lets it last longer for a while; the pace of its renewal stays.

    A `patient` lease that was not renewed in time is unproven, not lost: `check` raises `LeaseUnproven`. While S3 is
    unreachable nobody else can take it; later the renewal's condition tells whether somebody did.
    """

    def __init__(self, store: Where, role: str, ttl: timedelta, holder: Holder, s3: Any, patient: bool = False) -> None:
        self.store, self.role, self.ttl, self.holder, self.s3 = store, role, ttl, holder, s3
        self.patient = patient
        self._usual = self._wanted = ttl
        self._longer = list[timedelta]()
        """Of the blocks of `lasting` that are under way, on any thread."""
        self._choosing, self._writing = threading.Lock(), threading.Lock()
        self.key = f"{store.prefix}/leases/{role}.json"
        self._etag: str | None = None
        self._renewed = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None
        self._refusal: str | None = None
        """Error of the newest renewal, if it failed."""
        self.lapsed: tuple[Lapse, ...] = ()
        """Earlier holders that left unclean, from the lease record."""
        self.unclean = False
        """True before we end an engine of ours by force; the release records it for later holders."""
        self.acquired = 0.0
        """Time of acquisition in seconds of CLOCK_BOOTTIME."""

    @property
    def covers_until(self) -> float:
        """End of the lease without renewal, in seconds of CLOCK_BOOTTIME; 0 if it is lost."""
        return 0.0 if self._lost is not None else self._renewed + self.ttl.total_seconds()

    def current(self) -> StoredLease | None:
        answer = or_none(lambda: self.s3.get_object(Bucket=self.store.bucket, Key=self.key))
        if answer is None:
            return None
        try:
            record = LeaseRecord.model_validate_json(answer["Body"].read())
        except ValidationError:
            # Somebody may hold it, and for as long as a lease can last.
            record = LeaseRecord(holder=UNKNOWN, renewed_at=datetime.now(UTC), ttl_s=_LONGEST_S)
        return StoredLease(record, answer["ETag"], _age_s(answer, record))

    def acquire(self) -> Holder | None:
        """Take the lease; return the previous holder if it is gone and did not release it.

        Raises `LeaseHeld` with a living holder.
        """
        lease = self.current()
        previous, self._etag = None, None
        if lease is not None:
            record, self._etag, age = lease
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
        self._write(is_release=False)
        self.acquired = _monotonic()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{self.role}", daemon=True)
        self._thread.start()
        return previous

    def _remember(self, holder: Holder, advice: datetime) -> None:
        self.lapsed = (Lapse(holder=holder, until=advice), *self.lapsed)[:_LAPSED_KEPT]

    @contextmanager
    def lasting(self, ttl: timedelta) -> Iterator[None]:
        """Let the lease last for `ttl` after each renewal in this block, if that is longer: a gap in the connection to
        S3 does not end what is under way. Blocks may overlap, on several threads. It counts once S3 has it: other
        holders wait as long as it says there."""
        with self._choosing:
            self._longer.append(ttl)
        try:
            self._choose()  # a signal may come while it is written
            yield
        finally:
            with self._choosing:
                self._longer.remove(ttl)
            self._choose()

    def _choose(self) -> None:
        with self._choosing:
            self._wanted = max([self._usual, *self._longer])
            self.ttl = min(self.ttl, self._wanted)
        self.renew()

    def check(self) -> None:
        """Raise `LeaseLost`, or `LeaseUnproven` for a patient lease."""
        late = _monotonic() - self._renewed
        if self._lost is None and late > self.ttl.total_seconds():
            if self.patient:
                raise LeaseUnproven(
                    f"the {self.role} lease of {self.store.campaign} has not been renewed for {late:.0f} s",
                    seen=self._refusal or "no answer yet",
                    cure="nothing is changed until S3 accepts its renewal",
                    delay=self._usual / 20,
                )
            reason = self._refusal or "the process was stopped, or S3 could not be reached"
            self._lost = f"it was not renewed in time ({reason})"
        if self._lost is not None:
            advice = (
                "renew the credentials (for instance `aws sso login`), then " if _EXPIRED.search(self._lost) else ""
            )
            raise LeaseLost(
                f"the {self.role} lease of {self.store.campaign} is lost",
                seen=self._lost,
                cure=f"nothing more is changed; {advice}run the same command again to continue",
            )

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._etag is not None and self._lost is None:
            if self.unclean:
                self._remember(self.holder, datetime.now(UTC))
            try:
                self._write(is_release=True)
            except (ClientError, BotoCoreError, LeaseLost, LeaseHeld):
                self._lost = "gone at release"
            else:
                self._lost = "it was given back"

    def _write(self, *, is_release: bool) -> None:
        """Raise `LeaseHeld` if another holder was quicker."""
        with self._writing:
            if self._stop.is_set() and not is_release:  # a renewal would take it again
                raise LeaseHeld(f"the {self.role} lease of {self.store.campaign} is being given back", seen=self.holder)
            is_accepted = any(self._write_once(is_release) for _ in range(_RACES))
        if not is_accepted:
            raise LeaseHeld(f"the {self.role} of {self.store.campaign} races with itself", seen=self.holder)

    def _write_once(self, is_release: bool) -> bool:
        """Make one conditional write; return False if an earlier write of ours, now known, made its condition fail."""
        record = LeaseRecord(
            holder=self.holder,
            renewed_at=datetime.now(UTC),
            ttl_s=self._wanted.total_seconds(),
            released=is_release,
            lapsed=self.lapsed,
        )
        condition: dict[str, str] = {"IfMatch": self._etag} if self._etag else {"IfNoneMatch": "*"}
        start = _monotonic()
        try:
            answer = self.s3.put_object(
                Bucket=self.store.bucket, Key=self.key, Body=record.model_dump_json().encode(), **condition
            )
        except ClientError as error:
            if not is_precondition_failure(error):
                raise
            lease = self.current()
            if lease is not None and lease.record == record:
                # Our own write succeeded; only its answer was lost, and the client tried again.
                self._etag, self._renewed, self.ttl = lease.etag, start, timedelta(seconds=record.ttl_s)
                return True
            if lease is not None and lease.record.holder == self.holder and not lease.record.released:
                # An earlier write of ours succeeded without an answer; this one failed its condition or (409) raced it.
                self._etag = lease.etag
                return False
            raise LeaseHeld(
                f"another {self.role} of {self.store.campaign} was quicker",
                seen=lease.record.holder if lease else "nobody",
                cure="watch it with `bivouac status`",
            ) from error
        self._etag, self._renewed, self.ttl = answer["ETag"], start, timedelta(seconds=record.ttl_s)
        return True

    def _renew(self) -> None:
        pause: timedelta | None = self._usual / 5
        while pause is not None and not self._stop.wait(pause.total_seconds()):
            pause = self.renew()

    def renew(self) -> timedelta | None:
        """Renew once; return the time until the next renewal, None if the lease is lost."""
        try:
            with suppress(LeaseUnproven):
                self.check()
            self._write(is_release=False)
        except LeaseLost:
            return None  # `check` keeps the reason
        except LeaseHeld as error:
            if not self._stop.is_set():
                self._lost = str(error)
            return None
        except Exception as error:
            # S3 cannot be reached: the next round tries again soon, and `check` judges by age.
            self._refusal = str(error)[:300]
            log.info("the %s lease was not renewed, that is tried again: %s", self.role, error)
            return self._usual / 20
        self._refusal = None
        return self._usual / 5


def _age_s(answer: dict[str, Any], record: LeaseRecord) -> float:
    """Return the age of a lease. Both times are S3's, so that no machine's wrong clock can steal a lease."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    modified_at = answer.get("LastModified")
    if date and isinstance(modified_at, datetime):
        # Both are whole seconds; one is subtracted so that the age is never overestimated.
        return max(0.0, (parsedate_to_datetime(date) - modified_at).total_seconds() - 1.0)
    return (datetime.now(UTC) - record.renewed_at).total_seconds()


def _monotonic() -> float:
    """Return a clock that runs while the machine sleeps, so that a lease ends during sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
