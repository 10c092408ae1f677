"""The steward's sign of life to AWS: schedules that end the GPU nodes, and tell people, unless it postpones them.

They need no process of ours and no CodeBuild (decision 0057).
"""

from __future__ import annotations

import logging
from datetime import datetime
from math import inf

from infra.aws.account import Account
from infra.aws.schedules import Schedule, at_expression, change_schedule, firing_before
from infra.clock import Clock
from infra.cluster.steward_config import LONGEST_SILENCE
from infra.errors import LeaseUnproven, first_line
from infra.record.lease import Lease
from infra.spec.names import Names
from infra.steward.seeing.sources import PASSING

log = logging.getLogger("steward")
EVERY_S = LONGEST_SILENCE.total_seconds() / 4
"""Between two postponements."""
RETRY_S = 60.0
"""After the first refused one, and each if a schedule is to fire: an endpoint that a VPC lacks is asked no more often
than the others, since each try takes seconds of the loop."""


class SilenceSchedules:
    """The campaign's schedules of a silent steward: GPU nodes first, then the notice."""

    def __init__(self, account: Account, names: Names, lease: Lease, clock: Clock, exist: bool = True) -> None:
        """`exist`: the campaign has a stack, with schedules."""
        self._account, self._names, self._lease, self._clock = account, names, lease, clock
        self._exist, self._next = exist, -inf if exist else inf
        self._fires_at: datetime | None = None
        self.fired_at: datetime | None = None
        """When they had fired under a silent steward, as a postponement found them; None: they had not, or nobody could
        ask yet."""
        self._trouble = ""

    def postpone(self) -> None:
        """Let them fire after `LONGEST_SILENCE` from now; do nothing between two postponements. Raises `LeaseLost`.

        What AWS answers is no reason to stop: training goes on, and the trouble is shown.
        """
        now = self._clock.monotonic()
        if now < self._next:
            return
        moment, is_first = self._clock.now() + LONGEST_SILENCE, self._next == -inf
        if self._change({"ScheduleExpression": at_expression(moment), "State": "ENABLED"}):
            self._fires_at = moment
        # A predecessor may have armed them, with minutes left.
        is_urgent = self._trouble and (self._fires_at is not None or is_first)
        self._next = now + (RETRY_S if is_urgent else EVERY_S)

    def switch_off(self) -> bool:
        """Let nobody be told of a silence once the GPU nodes are at zero for good; return False if it is to be asked
        again. Raises `LeaseLost`. A schedule that fires then changes nothing, but tells people of a silence."""
        if self._exist:
            self._next = inf
            self._change({"State": "DISABLED"})
        return not self._trouble

    def troubles(self) -> tuple[str, ...]:
        """Return what keeps the schedules from being postponed, and when they fire, if this steward has armed them."""
        if not self._trouble:
            return ()
        time = "nobody knows its time" if self._fires_at is None else f"it fires at {self._fires_at:%H:%M} UTC"
        return (f"the schedule that ends the GPU nodes of a silent steward is not postponed, {time}: {self._trouble}",)

    def _change(self, changes: dict[str, str]) -> bool:
        """Return whether any was changed, the one that ends the nodes first: a campaign that is older has none."""
        is_changed = False
        try:
            client = self._account.client("scheduler")
            for name in self._names.silence_schedules:
                is_changed |= change_schedule(client, name, changes, self._check)
        except PASSING as error:
            self._trouble = first_line(error)
            log.warning("the schedules of the steward's silence are not changed: %s", self._trouble)
        else:
            self._trouble = ""
        return is_changed

    def _check(self, schedule: Schedule) -> None:
        """Note whether it has fired, and raise `LeaseLost` if another steward has the campaign. A lease that nobody can
        prove is no reason to let the nodes go: while S3 is away, the steward ends them by its own bound."""
        self.fired_at = firing_before(schedule, self._clock.now()) or self.fired_at
        try:
            self._lease.check()
        except LeaseUnproven:
            log.info("the steward's silence is postponed on a lease that S3 does not prove")
