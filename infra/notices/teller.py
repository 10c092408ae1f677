"""A thread that tells what the record says, so that nobody's decisions wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import BivouacError, LeaseUnproven
from infra.notices.outbox import Outbox

log = logging.getLogger("notices")
_EVERY_S = 5.0


class Teller:
    def __init__(self, outbox: Outbox, guard: Callable[[], None], cost: Callable[[], str]) -> None:
        self._outbox, self._guard, self._cost = outbox, guard, cost

    def open(self) -> None:
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except (ClientError, BotoCoreError, OSError, LeaseUnproven) as error:
                log.info("notices wait: %s", error)
            except BivouacError:
                return  # the lease is lost: another process tells from here on
            except Exception:
                log.exception("notices wait")  # a fault of ours: the next change may be told
            time.sleep(_EVERY_S)

    def look(self) -> int:
        """Send what is due; return the number sent. Raises `LeaseLost` before anything is sent."""
        self._guard()
        return self._outbox.tell(self._cost)
