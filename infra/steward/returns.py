"""The return of instances to AWS, repeated until AWS takes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import explained

log = logging.getLogger("steward")
AGAIN_S = 5.0


class Returns:
    """Repeats refused returns: until one succeeds, no replacement comes, and the waiting gang bills.

    No refusal ends the steward, not even one that looks final: only a running steward keeps deadline and budget, and
    `capacity_timeout` bounds the wait. A refusal is shown for as long as it lasts.
    """

    def __init__(self, replace: Callable[[str], bool]) -> None:
        self._replace = replace
        self._refused: dict[str, str] = {}
        self._next = 0.0

    def give_back(self, instance: str) -> None:
        try:
            self._replace(instance)
        except (ClientError, BotoCoreError) as error:
            explanation = explained(error)
            self._refused[instance] = f"{instance} is not given back yet: {explanation.what}: {explanation.seen}"[:300]
            log.warning("%s", self._refused[instance])
        else:
            self._refused.pop(instance, None)

    def retry(self) -> None:
        """Repeat refused calls every few seconds: botocore repeats throttled calls only."""
        if self._refused and time.monotonic() >= self._next:
            for instance in tuple(self._refused):
                self.give_back(instance)
            self._next = time.monotonic() + AGAIN_S

    def refusals(self) -> tuple[str, ...]:
        return tuple(self._refused.values())
