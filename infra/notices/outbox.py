"""What was told and what was not yet, in the campaign's record, so that every process tells each change once.

Driver and steward may both look, at any time. A try is claimed by a conditional write before it is made: so no notice
is sent twice, but where a process dies, or cannot write, between sending and noting it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import cache, partial

from pydantic import AwareDatetime, BaseModel

from infra.notices.changes import Told, changes
from infra.notices.fired_alerts import escalation
from infra.notices.notice import Notice, NotSent, notice
from infra.notices.ways import Way
from infra.record.lease_thread import LeaseThread
from infra.record.payloads.stages import NoticeFailed
from infra.record.store import CampaignStore
from infra.spec.notify import Notify

log = logging.getLogger("notices")
FOLDER = "notices"
SENT, GIVEN_UP = "sent", "given up"
"""How a notice ended."""
TRIES = 3
AGAIN = timedelta(minutes=2)
"""Time from one try to the next, also where the first one's process died."""


class Claim(BaseModel):
    """What a process noted of a notice: the begin of a try, or its end."""

    at: AwareDatetime | None = None
    how: str = ""


def claim_of(store: CampaignStore, key: str) -> Claim:
    """Return a claim; an empty one if it cannot be read: the try was made, nobody knows when."""
    return store.figures(key.removeprefix(f"{store.prefix}/"), Claim) or Claim()


class Outbox:
    def __init__(
        self, store: CampaignStore, notify: Notify, ways: Mapping[str, Way], now: Callable[[], datetime]
    ) -> None:
        self._store, self._notify, self._ways, self._now = store, notify, ways, now
        self._over = set[str]()
        """Folders of notices that were sent, or given up."""

    def tell(self, cost: Callable[[], str]) -> int:
        """Send what is due by the record; return the number sent. `cost` is asked once, if there is something to send.

        Raises what the record raises; a way that fails is recorded once.
        """
        events, now = self._store.events(), self._now()
        due = [news for news in changes(events, now) if news.change in self._notify.on]
        pages = escalation(events, now, self._notify.escalate_after)
        cost_text = cache(cost)

        def make_notice(change: Told) -> Notice:
            return notice(change, self._store.campaign, self._store.region, cost_text())

        count = self.say({news.key: partial(make_notice, news) for news in due})
        routes = self._notify.escalation_routes & self._ways.keys()
        return count + self._say({page.key: partial(make_notice, page) for page in pages}, routes or self._ways.keys())

    def say(self, notices: Mapping[str, Callable[[], Notice]]) -> int:
        """Send each notice once in the campaign's life, by its key; return the number sent. Routes that wait for
        escalations get none."""
        return self._say(notices, self._ways.keys() - self._notify.escalation_routes)

    def _say(self, notices: Mapping[str, Callable[[], Notice]], names: Collection[str]) -> int:
        ways = [way for way in self._ways if way in names]
        waiting = [(way, key) for key in notices for way in ways if self._folder(way, key) not in self._over]
        folder_keys = set(self._store.keys(f"{FOLDER}/")) if waiting else set[str]()
        count, silent = 0, set[str]()
        for way, key in waiting:
            if way in silent or not self._claim(self._folder(way, key), folder_keys):
                continue
            try:
                self._ways[way](notices[key]())
            except NotSent as error:
                self._record(way, str(error))
                silent.add(way)  # its next try would take as long
            else:
                self._end(self._folder(way, key), SENT)
                count += 1
        return count

    def _folder(self, way: str, key: str) -> str:
        return f"{self._store.prefix}/{FOLDER}/{way}/{key}"

    def _claim(self, folder: str, keys: set[str]) -> bool:
        """Return True if this process may try now."""
        tries = sorted(key for key in keys if key.startswith(f"{folder}/try-"))
        if f"{folder}/over.json" in keys:
            self._over.add(folder)
            return False
        claim_time = claim_of(self._store, tries[-1]).at if tries else None
        if claim_time is not None and self._now() - claim_time < AGAIN:
            return False
        if len(tries) == TRIES:
            self._end(folder, GIVEN_UP)
            return False
        claim = {"at": self._now().isoformat(), "by": self._store.writer}
        return self._store.put_if_absent(f"{folder}/try-{len(tries) + 1}.json", json.dumps(claim).encode())

    def _end(self, folder: str, result: str) -> None:
        self._over.add(folder)
        self._store.put_if_absent(f"{folder}/over.json", json.dumps({"how": result}).encode())

    def _record(self, way: str, error: str) -> None:
        log.warning("a notice was not sent by %s: %s", way, error)
        failure = NoticeFailed(way=way, error=error)
        if failure not in [event.payload for event in self._store.events()]:
            self._store.append(failure)


class Teller(LeaseThread):
    """A thread that tells what the record says."""

    name, every_s = "notices", 5.0

    def __init__(self, outbox: Outbox, guard: Callable[[], None], cost: Callable[[], str]) -> None:
        self._outbox, self._guard, self._cost = outbox, guard, cost

    def look(self) -> int:
        """Send what is due; return the number sent. Raises `LeaseLost` before anything is sent."""
        self._guard()
        return self._outbox.tell(self._cost)
