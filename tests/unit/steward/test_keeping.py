"""When the steward stores its clocks, and what a successor makes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.clock import Clock
from infra.record.events import CampaignState
from infra.record.payloads.attempts import AttemptLaunched, AttemptRecord
from infra.record.store import CampaignStore
from infra.steward.clocks import CLOCKS, Clocks
from infra.steward.seeing.lookout import Keeper
from tests.worlds.s3 import FakeS3, Time

MINUTE = timedelta(minutes=1)


class Kept:
    def __init__(self) -> None:
        self.time = Time()
        self.store = CampaignStore(FakeS3(self.time), "state", "story", "w")
        self.keeper = Keeper(self.store, Clock(self.time, self.time.wall))

    def stored(self) -> Any:
        return self.store.get_json(CLOCKS)

    def state(self, **launched: timedelta) -> CampaignState:
        """Attempts `a1`, `a2`, ..., launched so long ago; the campaign began a day ago."""
        now = self.time.wall()
        attempts = tuple(
            AttemptRecord(launched=AttemptLaunched(attempt=int(name[1:])), launched_at=now - ago)
            for name, ago in launched.items()
        )
        return CampaignState(started_at=now - timedelta(days=1), attempts=attempts)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_clocks_are_kept_at_once_then_at_changes_and_at_most_each_quarter_of_a_minute(kept: Kept) -> None:
    clocks = Clocks.begin(1, kept.time())
    kept.keeper.keep(clocks)
    assert kept.stored()["step"] == 0
    clocks.note_step(5, kept.time())
    for seconds, step in ((14.5, 0), (0.5, 5)):
        kept.time.go(seconds)
        kept.keeper.keep(clocks)
        assert kept.stored()["step"] == step
    kept.store.put_json(CLOCKS, {})
    kept.time.go(60)
    kept.keeper.keep(clocks)
    assert kept.stored() == {}, "nothing is new"
    clocks.note_step(6, kept.time())
    kept.keeper.keep(clocks)
    assert kept.stored()["step"] == 6


def test_a_successor_goes_on_from_what_was_kept_and_keeps_nothing_that_is_the_same(kept: Kept) -> None:
    clocks = Clocks(2, kept.time() - 600, kept.time() - 120, 70)
    kept.keeper.keep(clocks)
    kept.time.go(30)
    successor = Keeper(kept.store, Clock(kept.time, kept.time.wall))
    taken = successor.take_over(kept.state(a1=5 * MINUTE, a2=11 * MINUTE), 2)
    assert (taken.attempt, taken.step) == (2, 70)
    assert kept.time() - taken.launched == pytest.approx(630) and kept.time() - taken.stepped == pytest.approx(150)
    kept.store.s3.objects.clear()
    successor.keep(taken)
    assert kept.stored() is None


def test_the_launch_that_the_events_tell_bounds_the_clocks(kept: Kept) -> None:
    """Of this attempt: others have launches of their own."""
    kept.keeper.keep(Clocks(2, kept.time() - 6000, kept.time() - 6000, 70))
    taken = kept.keeper.take_over(kept.state(a1=9 * MINUTE, a2=3 * MINUTE, a3=MINUTE), 2)
    assert kept.time() - taken.launched == pytest.approx(180) and kept.time() - taken.stepped == pytest.approx(180)


@pytest.mark.parametrize("stored", [None, {"of": "another version"}])
def test_without_clocks_that_can_be_read_the_events_are_what_is_known(kept: Kept, stored: Any) -> None:
    if stored is not None:
        kept.store.put_json(CLOCKS, stored)
    taken = kept.keeper.take_over(kept.state(a1=9 * MINUTE, a2=3 * MINUTE), 2)
    assert (taken.step, kept.time() - taken.launched) == (0, pytest.approx(180))
    kept.keeper.keep(taken)
    assert kept.stored()["attempt"] == 2


def test_what_a_predecessor_of_another_version_stored_replaces_what_one_has_kept_oneself(kept: Kept) -> None:
    kept.keeper.keep(Clocks(2, kept.time() - 600, kept.time() - 120, 70))
    kept.store.put_json(CLOCKS, {"of": "another version"})
    taken = kept.keeper.take_over(kept.state(a2=3 * MINUTE), 2)
    assert (taken.step, kept.time() - taken.launched) == (0, pytest.approx(180))
