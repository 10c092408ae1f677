"""A thread under a lease outlives every error but the loss of the lease, which ends it."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest

from infra.errors import LeaseLost, LeaseUnproven
from infra.record.lease_thread import LeaseThread
from tests.waiting import HUNG_S

UNPROVEN = LeaseUnproven("no answer yet", seen="none", delay=timedelta())
LOST = LeaseLost("the lease is lost", seen="another")


class Looks(LeaseThread):
    name, every_s = "looks of a test", 0.001

    def __init__(self, *ends: Exception) -> None:
        self._ends, self.looks = iter(ends), 0
        self.is_over = threading.Event()

    def look(self) -> None:
        self.looks += 1
        for end in self._ends:
            if end is LOST:
                self.is_over.set()
            raise end
        pytest.fail("it looks without a lease")


def test_only_the_loss_of_its_lease_ends_it_and_a_fault_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    looks = Looks(OSError("no network"), UNPROVEN, KeyError("a fault"), LOST)
    looks.open()
    assert looks.is_over.wait(HUNG_S)
    for thread in threading.enumerate():
        if thread.name == looks.name:
            thread.join(HUNG_S)
    assert looks.looks == 4
    assert [(row.levelname, row.exc_info is not None) for row in caplog.records if row.name == looks.name] == [
        ("INFO", False), ("INFO", False), ("ERROR", True),
    ]  # fmt: skip
