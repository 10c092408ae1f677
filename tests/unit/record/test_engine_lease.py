"""A lease while an engine works: it lasts longer, once S3 has it, and is as short as before after the last one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.errors import LeaseHeld, LeaseLost
from infra.record.lease import Lease
from tests.unit.record.conftest import TTL, Leases, holder
from tests.worlds.s3 import FakeS3, Time, refusal

LONG = 24 * TTL


def test_while_an_engine_works_a_lease_outlives_a_gap_in_the_connection(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours, other = leases.of("a", patient=False), leases.of("b")
    ours.acquire()
    with ours.lasting(LONG):
        s3.away = refusal("InternalError", 500)
        for _ in range(20):
            time.go(TTL.total_seconds())
            assert ours.renew() == TTL / 20, "it is tried as often as ever"
            ours.check()
        s3.away = None
        with pytest.raises(LeaseHeld, match="360 s"):
            other.acquire()
        assert ours.renew() == TTL / 5
    time.go(TTL.total_seconds() + 2)
    with pytest.raises(LeaseLost):
        ours.check()
    assert other.acquire() == holder("a"), "after it, it is as short as before"


def test_a_longer_lease_counts_only_once_others_can_read_of_it(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    s3.away = refusal("InternalError", 500)
    with ours.lasting(LONG):
        time.go(TTL.total_seconds() - 1)
        s3.away = None
        assert ours.renew() == TTL / 5
        time.go(TTL.total_seconds() + 1)
        ours.check()
    s3.away = refusal("InternalError", 500)
    with ours.lasting(LONG):
        time.go(TTL.total_seconds() + 1)
        with pytest.raises(LeaseLost):
            ours.check()


def test_a_lease_is_short_at_once_after_the_engine_though_s3_is_away(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    with ours.lasting(LONG):
        s3.away = refusal("InternalError", 500)
    assert ours.covers_until == time() + TTL.total_seconds()


def test_a_lease_stays_long_until_the_last_of_two_engines_has_ended(s3: FakeS3, leases: Leases, time: Time) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    first, second = ours.lasting(LONG), ours.lasting(LONG)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert ours.covers_until == time() + LONG.total_seconds()
    second.__exit__(None, None, None)
    assert ours.covers_until == time() + TTL.total_seconds()


def test_a_lease_is_as_short_as_before_where_a_signal_ends_the_block_at_its_begin(
    s3: FakeS3, leases: Leases, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = leases.of("a", patient=False)
    ours.acquire()
    renewals = iter([KeyboardInterrupt])

    def renew() -> timedelta | None:
        for signal in renewals:
            raise signal
        return Lease.renew(ours)

    monkeypatch.setattr(ours, "renew", renew)
    with pytest.raises(KeyboardInterrupt), ours.lasting(LONG):
        pytest.fail("the block has not begun")
    time.go(1)
    renew()
    assert ours.covers_until == time() + TTL.total_seconds()


def test_a_lease_that_is_longer_than_the_engines_stays_so(leases: Leases, time: Time) -> None:
    ours = leases.of("a")
    ours.acquire()
    with ours.lasting(TTL / 2):
        assert ours.covers_until == time() + TTL.total_seconds()
