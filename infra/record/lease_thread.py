"""A thread that looks again and again as long as this process has its lease, so that nobody's decisions wait for it."""

from __future__ import annotations

import logging
import threading
import time
from typing import ClassVar

from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import LeaseLost, LeaseUnproven


class LeaseThread:
    """`look` is what the thread does every `every_s`; it checks the lease before it touches anything."""

    name: ClassVar[str]
    every_s: ClassVar[float]

    def open(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def look(self) -> object:
        raise NotImplementedError

    def _run(self) -> None:
        log = logging.getLogger(self.name)
        while True:
            try:
                self.look()
            except LeaseLost:
                return  # another process does it from here on
            except (ClientError, BotoCoreError, OSError, LeaseUnproven) as error:
                log.info("%s wait: %s", self.name, error)
            except Exception:
                log.exception("%s wait", self.name)  # a fault of ours: the next look may go well
            time.sleep(self.every_s)
