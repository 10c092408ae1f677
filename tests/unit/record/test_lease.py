"""A lease by a virtual clock: taken, renewed, run out, taken over; and what a patient holder does while S3 is away."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from email.utils import format_datetime

import pytest

from infra.errors import LeaseHeld, LeaseLost, LeaseUnproven
from infra.record import lease as module
from infra.record.holder import Holder
from infra.record.lease import Lease
from tests.unit.record.conftest import TTL, Leases, holder
from tests.worlds.s3 import NOON, FakeS3, Time, refusal


def test_a_patient_lease_that_ran_out_without_s3_touches_nothing_and_is_ours_later(
    s3: FakeS3, leases: Leases, time: Time
) -> None:
    """Ten minutes of 5xx ended the steward, and each of its successors."""
    ours = leases.of("a")
    ours.acquire()
    s3.away = refusal("InternalError", 500)
    for _ in range(40):
        time.go(15)
        assert ours.renew() == TTL / 20
    with pytest.raises(LeaseUnproven, match=r"600 s.*not now") as told:
        ours.check()
    assert told.value.delay == timedelta(seconds=0.75)
    s3.away = None
    with pytest.raises(LeaseUnproven):
        ours.check()
    assert ours.renew() == TTL / 5
    ours.check()


def test_a_patient_lease_that_somebody_took_meanwhile_is_lost(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours, other = leases.of("a"), leases.of("b")
    ours.acquire()
    time.go(TTL.total_seconds() + 2)
    assert other.acquire() == holder("a")
    assert ours.renew() is None
    with pytest.raises(LeaseLost, match="another steward"):
        ours.check()
    assert ours.covers_until == 0.0 and ours.renew() is None
    other.check()


def test_a_lease_without_patience_that_ran_out_stays_lost(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    time.go(TTL.total_seconds())
    ours.check()
    time.go(0.1)
    with pytest.raises(LeaseLost, match="not renewed in time"):
        ours.check()
    assert ours.renew() is None, "its engine is being ended"


def test_a_living_holder_is_named_until_its_time_is_over(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours, other = leases.of("a"), leases.of("b")
    assert ours.acquire() is None
    # Both of S3's moments are whole seconds: it is never thought older than it is.
    for _ in range(int(TTL.total_seconds()) + 1):
        with pytest.raises(LeaseHeld, match="a@a"):
            other.acquire()
        time.go(1)
    assert other.acquire() == holder("a")
    (lapse,) = other.lapsed
    assert lapse.holder == holder("a")


def test_a_lease_that_was_given_back_is_anybody_s_at_once_and_nobody_lapsed(leases: Leases) -> None:
    ours, other = leases.of("a"), leases.of("b")
    ours.acquire()
    ours.release()
    assert other.acquire() is None and other.lapsed == ()


def test_the_same_holder_takes_its_own_lease_again(leases: Leases) -> None:
    leases.of("a").acquire()
    again = leases.of("a")
    assert again.acquire() is None
    again.check()


def test_a_write_that_landed_unheard_does_not_lose_the_lease_to_itself(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours = leases.of("a")
    ours.acquire()
    s3.unheard = 1
    time.go(3)
    assert ours.renew() == TTL / 20
    time.go(1)
    assert ours.renew() == TTL / 5
    assert ours.covers_until == time() + TTL.total_seconds()


def test_what_is_remembered_of_holders_that_lapsed_is_the_newest_eight(leases: Leases, time: Time) -> None:
    for number in range(10):
        leases.of(f"h{number}").acquire()
        time.go(TTL.total_seconds() + 2)
    last = leases.of("last")
    last.acquire()
    assert [one.holder.user for one in last.lapsed] == [f"h{n}" for n in range(9, 1, -1)]


def test_a_lease_covers_its_time_from_before_the_write_was_asked(s3: FakeS3, leases: Leases, time: Time) -> None:
    """An answer that takes its time lengthens no lease."""
    ours = leases.of("a")
    ours.acquire()
    put = s3.put_object

    def slow(**asked: object) -> object:
        time.go(4)
        return put(**asked)  # type: ignore[arg-type]

    s3.put_object = slow  # type: ignore[assignment,method-assign]
    begun = time()
    ours.renew()
    assert ours.covers_until == begun + TTL.total_seconds()


def test_a_lease_that_is_given_back_lets_nobody_change_or_renew_anything(leases: Leases) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    with ours.lasting(24 * TTL):
        ours.release()
    assert ours.renew() is None and ours.covers_until == 0.0
    with pytest.raises(LeaseLost, match="given back"):
        ours.check()
    stored = ours.current()
    assert stored is not None and stored.record.released


def test_a_renewal_that_is_under_way_takes_no_lease_again_that_is_given_back(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked already, and not written yet."""
    ours = leases.of("a", patient=False)
    ours.acquire()
    monkeypatch.setattr(ours, "check", ours.release)
    assert ours.renew() is None
    stored = ours.current()
    assert stored is not None and stored.record.released
    monkeypatch.undo()
    with pytest.raises(LeaseLost, match="it was given back"):
        ours.check()


def test_an_unclean_end_is_told_to_whoever_comes_next(leases: Leases) -> None:
    ours, other = leases.of("a"), leases.of("b")
    ours.acquire()
    ours.unclean = True
    ours.release()
    other.acquire()
    assert [one.holder for one in other.lapsed] == [holder("a")]


def test_a_user_without_a_name_holds_a_lease_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert Holder.this_process().user == str(os.getuid())


def test_a_lease_is_given_back_only_after_its_renewals_have_ended(s3: FakeS3, leases: Leases) -> None:
    """A renewal that came later would hold what was given back."""
    ours = leases.of("a")
    ours.acquire()
    objects = dict(s3.objects)

    class Renewals(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert ours._stop.is_set() and timeout is not None and s3.objects == objects
            joined.append(self)

    joined = list[threading.Thread]()
    ours._thread = Renewals()
    ours.release()
    assert joined == [ours._thread] and s3.objects != objects


def test_a_lease_that_races_with_itself_gives_up_after_five_writes(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []
    monkeypatch.setattr(Lease, "_write_once", lambda self, released: tries.append(released))
    with pytest.raises(LeaseHeld, match="races with itself"):
        leases.of("a").acquire()
    assert tries == [False] * 5


def test_a_record_without_a_word_of_release_is_held() -> None:
    told = {"holder": holder("a"), "renewed_at": NOON, "ttl_s": 15.0}
    assert module.LeaseRecord.model_validate(told).released is False


@pytest.mark.parametrize(("seconds", "age"), [(0, 0.0), (1, 0.0), (2, 1.0), (30, 29.0), (-5, 0.0)])
def test_a_lease_is_a_second_younger_than_the_whole_seconds_of_s3_say(seconds: int, age: float) -> None:
    told = {"holder": holder("a"), "renewed_at": NOON - timedelta(days=9), "ttl_s": 15.0}
    asked = format_datetime(NOON + timedelta(seconds=seconds), usegmt=True)
    answer = {"ResponseMetadata": {"HTTPHeaders": {"date": asked}}, "LastModified": NOON}
    assert module._age_s(answer, module.LeaseRecord.model_validate(told)) == age


def test_a_driver_with_ended_credentials_shall_renew_them_and_its_successor_goes_on(
    s3: FakeS3, leases: Leases, time: Time
) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    s3.away = refusal("ExpiredToken", 400, message="The provided token has expired.")
    ours.renew()
    time.go(TTL.total_seconds() + 1)
    with pytest.raises(LeaseLost) as lost:
        ours.check()
    assert "ExpiredToken" in str(lost.value.seen) and "aws sso login" in str(lost.value.cure)
    s3.away = None
    successor = leases.of("b", patient=False)
    successor.acquire()
    successor.check()


def test_a_driver_that_was_merely_away_is_not_sent_to_renew_anything(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    s3.away = refusal("SlowDown", 503)
    ours.renew()
    s3.away = None
    ours.renew()
    time.go(TTL.total_seconds() + 1)
    with pytest.raises(LeaseLost, match="the process was stopped, or S3 could not be reached") as lost:
        ours.check()
    assert "sso" not in str(lost.value.cure)
