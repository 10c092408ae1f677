"""The last notices of a campaign, by its record: when, what, by which way, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from infra.notices.changes import Told, changes, told_by
from infra.notices.notice import notice
from infra.notices.outbox import FOLDER, GIVEN_UP, SENT, claim_of
from infra.notices.ways import way_names
from infra.record.events import Event
from infra.record.payloads.stages import NoticeFailed
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.spec.notify import Change
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


def history(store: CampaignStore, spec: Spec, now: datetime, limit: int = MOST) -> tuple[Entry, ...]:
    """Return the newest notices, newest first. Reads one listing, and a few small objects."""
    events = store.events()
    tries, ends = _tries(store.keys(f"{FOLDER}/"), f"{store.prefix}/{FOLDER}/")
    pairs: dict[tuple[str, str], Told] = {}
    for way, key in tries:
        if (news := told_by(key, events)) is not None:
            pairs[way, key] = news
    due = [news for news in changes(events, now) if news.change in spec.notify.on]
    for way in way_names(spec):
        if way in spec.notify.escalation_routes:
            continue  # what it waits for is known by its tries alone
        pairs |= {(way, news.key): news for news in due if (way, news.key) not in pairs}
    newest = sorted(pairs.items(), key=lambda item: (item[1].event.at, item[1].key, item[0][0]), reverse=True)[:limit]
    trouble = _troubles(events)
    return tuple(
        _entry(store, way, news, tries.get((way, key), []), ends.get((way, key)), trouble)
        for (way, key), news in newest
    )  # fmt: skip


def _tries(keys: Iterable[str], prefix: str) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], str]]:
    """Return (way, key) -> the tries, and -> the end, as keys of the bucket."""
    tries: dict[tuple[str, str], list[str]] = {}
    ends: dict[tuple[str, str], str] = {}
    for key in sorted(keys):
        way, _, name_part = key.removeprefix(prefix).partition("/")
        notice_key, _, name = name_part.partition("/")
        if name == "over.json":
            ends[way, notice_key] = key
        elif name.startswith("try-"):
            tries.setdefault((way, notice_key), []).append(key)
    return tries, ends


def _entry(
    store: CampaignStore,
    way: str,
    news: Told,
    tries: list[str],
    end_key: str | None,
    trouble: Mapping[str, str],
) -> Entry:
    claim = claim_of(store, tries[-1]) if tries else None
    delivery = Delivery.TRYING if tries else Delivery.WAITING
    if end_key is not None:
        delivery = {SENT: Delivery.SENT, GIVEN_UP: Delivery.GIVEN_UP}.get(claim_of(store, end_key).how, Delivery.TRYING)
    return Entry(
        at=news.event.at if claim is None or claim.at is None else claim.at,
        change=news.change,
        subject=notice(news, store.campaign, store.region, "").subject,
        way=way,
        delivery=delivery,
        tries=len(tries),
        trouble="" if delivery is Delivery.SENT else trouble.get(way, ""),
    )


def _troubles(events: Iterable[Event]) -> dict[str, str]:
    """Return way -> its newest kind of failure: the record has each once."""
    failures = [event.payload for event in events if isinstance(event.payload, NoticeFailed)]
    return {str(failure.way): str(failure.error) for failure in failures}
