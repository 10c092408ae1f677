"""The last notices of a campaign, by its record: when, what, by which way, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from infra.notices.changes import Told, changes, told_by
from infra.notices.notice import notice
from infra.notices.outbox import FOLDER, GIVEN_UP, SENT, claim_of
from infra.notices.ways import TOPIC, WEBHOOK
from infra.record.events import Event
from infra.record.payloads.stages import NoticeFailed
from infra.record.store import CampaignStore
from infra.spec.notify import Change, Notify
from trainer.contract.frozen import Frozen

MOST = 5


class Delivery(StrEnum):
    SENT = "sent"
    GIVEN_UP = "given up"
    TRYING = "trying"
    """Tried and not through yet."""
    WAITING = "waiting"
    """Due, and not tried yet: nobody who tells is there, or it has just happened."""


class Entry(Frozen, extra="ignore"):
    """One notice by one way."""

    at: datetime
    """Of the change; once tried, of the last try."""
    change: Change
    subject: str
    way: str
    delivery: Delivery
    tries: int
    trouble: str = ""
    """The way's newest kind of failure, if the notice is not through."""


def history(store: CampaignStore, notify: Notify, now: datetime, most: int = MOST) -> tuple[Entry, ...]:
    """Return the newest notices, newest first. Reads one listing, and a few small objects."""
    events = store.events()
    tries, over = _tried(store.keys(f"{FOLDER}/"), f"{store.prefix}/{FOLDER}/")
    told: dict[tuple[str, str], Told] = {}
    for way, key in tries:
        if (one := told_by(key, events)) is not None:
            told[way, key] = one
    due = [one for one in changes(events, now) if one.change in notify.on]
    for way in (TOPIC, *([WEBHOOK] if notify.webhook is not None else [])):
        told |= {(way, one.key): one for one in due if (way, one.key) not in told}
    newest = sorted(told.items(), key=lambda item: (item[1].event.at, item[1].key, item[0][0]), reverse=True)[:most]
    trouble = _troubles(events)
    return tuple(
        _entry(store, way, one, tries.get((way, key), []), over.get((way, key)), trouble)
        for (way, key), one in newest
    )  # fmt: skip


def _tried(keys: Iterable[str], above: str) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], str]]:
    """Return (way, key) -> the tries, and -> the end, as keys of the bucket."""
    tries: dict[tuple[str, str], list[str]] = {}
    over: dict[tuple[str, str], str] = {}
    for key in sorted(keys):
        way, _, rest = key.removeprefix(above).partition("/")
        notice_key, _, name = rest.partition("/")
        if name == "over.json":
            over[way, notice_key] = key
        elif name.startswith("try-"):
            tries.setdefault((way, notice_key), []).append(key)
    return tries, over


def _entry(
    store: CampaignStore, way: str, one: Told, tries: list[str], over: str | None, trouble: Mapping[str, str]
) -> Entry:
    claim = claim_of(store, tries[-1]) if tries else None
    delivery = Delivery.TRYING if tries else Delivery.WAITING
    if over is not None:
        delivery = {SENT: Delivery.SENT, GIVEN_UP: Delivery.GIVEN_UP}.get(claim_of(store, over).how, Delivery.TRYING)
    return Entry(
        at=one.event.at if claim is None or claim.at is None else claim.at,
        change=one.change,
        subject=notice(one, store.campaign, store.region, "").subject,
        way=way,
        delivery=delivery,
        tries=len(tries),
        trouble="" if delivery is Delivery.SENT else trouble.get(way, ""),
    )


def _troubles(events: Iterable[Event]) -> dict[str, str]:
    """Return way -> its newest kind of failure: the record has each once."""
    failures = [event.payload for event in events if isinstance(event.payload, NoticeFailed)]
    return {str(failure.way): str(failure.error) for failure in failures}
