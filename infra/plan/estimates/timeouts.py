"""The one order of all timeouts: who knows more gives up first, and each wider layer heals what the nearer one missed.

A rank's exchange and a pod's heartbeat end before the steward calls a hang; a hang before a start, which a restart
needs; all of them before the deadline, at which AWS's schedule takes the nodes whoever lives. A timeout that is not
shorter than the next wider one never heals anything: the wider one has acted by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from infra.spec.campaign import Spec


class Timeout(NamedTuple):
    """One timeout of a spec, by its field."""

    field: str
    lasts: timedelta


class Rung(NamedTuple):
    """Two timeouts of which the first must be shorter."""

    nearer: Timeout
    wider: Timeout

    @property
    def stands(self) -> bool:
        return self.nearer.lasts < self.wider.lasts


def rungs(spec: Spec) -> Iterator[Rung]:
    """Return every pair of timeouts that must ascend, the nearest to the ranks first. Timeouts that the spec does not
    give and that follow from others are left out: they are made to fit."""
    recovery = spec.recovery
    hang = Timeout("recovery.hang_timeout", recovery.hang_timeout)
    startup = Timeout("recovery.startup_timeout", recovery.startup_timeout)
    deadline = Timeout("money.deadline", spec.money.deadline)
    yield Rung(Timeout("recovery.heartbeat_timeout", recovery.heartbeat_timeout), hang)
    if (training := spec.training) is not None:
        yield Rung(Timeout("training.collective_timeout_s", timedelta(seconds=training.collective_timeout_s)), hang)
        if training.first_step_timeout_s is not None:
            first_step = timedelta(seconds=training.first_step_timeout_s)
            yield Rung(Timeout("training.first_step_timeout_s", first_step), hang)
    yield Rung(hang, startup)
    yield Rung(startup, deadline)
    if training is not None and training.save_timeout_s is not None:
        save = Timeout("training.save_timeout_s", timedelta(seconds=training.save_timeout_s))
        collective = timedelta(seconds=training.collective_timeout_s)
        yield Rung(Timeout("training.collective_timeout_s", collective), save)
        yield Rung(save, deadline)
    if recovery.capacity_timeout is not None:
        yield Rung(Timeout("recovery.capacity_timeout", recovery.capacity_timeout), deadline)
    if "blind_timeout" in recovery.model_fields_set:
        yield Rung(Timeout("recovery.blind_timeout", recovery.blind_timeout), deadline)
