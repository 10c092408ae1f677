"""The campaign's record in the state bucket: spec, events, live figures, leases.

Every write that must be neither lost nor doubled is conditional (`If-None-Match: *` or `If-Match`): S3 decides which
writer was first, so no lock service is needed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from botocore.exceptions import ClientError
from pydantic import AwareDatetime, BaseModel, ConfigDict, FiniteFloat, ValidationError

from infra.errors import UserError
from infra.record.events import CampaignState, Event, fold, ordered, stored, unreadable
from infra.record.holder import Holder
from infra.record.lease import Lease
from infra.record.objects import Unreadable, is_precondition_failure, object_or_none, or_none
from infra.record.payloads import Payload
from infra.record.payloads.stages import UnreadableRecord

LIVE = "live.json"
"""Key in a campaign's record: the steward's newest figures."""
STOP = "stop.json"
"""Key in a campaign's record: the request to commit and end training."""
STACKS = "stacks/"
"""Folder in a campaign's record: stacks of ranks that hung, `attempt-N/POD.txt`."""
Model = TypeVar("Model", bound=BaseModel)
_RACES = 5
_RACE_PAUSE_S = 0.2


class CampaignStore:
    """A campaign's folder in the state bucket; safe for several threads of one writer."""

    def __init__(
        self,
        s3: Any,
        bucket: str,
        campaign: str,
        writer: str,
        folder: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now` dates the events of this writer."""
        self._now = now
        self.s3, self.bucket, self.campaign, self.writer = s3, bucket, campaign, writer
        self.prefix = folder or f"campaigns/{campaign}"
        self._lock = threading.Lock()
        self._sequence: int | None = None
        self._cache: dict[str, Event] = {}
        self.unread: dict[str, str] = {}
        """Key -> why, of figures that could not be read, and that are done without."""

    @property
    def root(self) -> str:
        """Folder of the bucket below which all that is ours lies, with a slash; empty where the bucket is our own."""
        return self.prefix.removesuffix(f"campaigns/{self.campaign}")

    @property
    def region(self) -> str:
        """Region of the record and of the campaign."""
        return str(self.s3.meta.region_name)

    @property
    def events_written(self) -> int:
        """Number of this writer's events, as far as it has written any in this process."""
        return self._sequence or 0

    def append(self, payload: Payload) -> Event:
        """Write this writer's next event; no event is ever overwritten."""
        with self._lock:
            if self._sequence is None:
                self._sequence = len(self._keys(f"{self.prefix}/events/{self.writer}/"))
            while True:
                event = Event.of(payload, self._now(), self.writer, self._sequence)
                key = f"{self.prefix}/events/{self.writer}/{self._sequence:06d}.json"
                self._sequence += 1
                if self.put_if_absent(key, event.model_dump_json().encode()):
                    return event

    def events(self) -> tuple[Event, ...]:
        """Return all events of all writers; each object is fetched once per process. An object that cannot be read
        counts as an `UnreadableRecord`, and is fetched again each time: somebody may mend it."""
        keys = self._keys(f"{self.prefix}/events/")
        missing = [key for key in keys if key not in self._cache]
        event_list = [self._cache[key] for key in keys if key in self._cache]
        if missing:
            with ThreadPoolExecutor(8) as pool:
                for key, body in zip(missing, pool.map(self.get, missing), strict=True):
                    try:
                        event = None if body is None else stored(body)
                    except ValueError as error:
                        event_list.append(unreadable(key, error, self._modified_at(key)))
                        continue
                    if event is not None:
                        self._cache[key] = event
                        event_list.append(event)
        return ordered(event_list)

    def state(self) -> CampaignState:
        return fold(self.events())

    def unread_objects(self) -> dict[str, str]:
        """Return key -> why, of everything that could not be read so far."""
        payloads = [event.payload for event in self.events()]
        unreadable = {payload.key: payload.why for payload in payloads if isinstance(payload, UnreadableRecord)}
        return unreadable | self.unread

    def put_if_absent(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        """Return True if the stored object is ours, also if an earlier try wrote it and only the answer was lost."""
        for attempt in range(_RACES):
            try:
                self.s3.put_object(
                    Bucket=self.bucket, Key=key, Body=body, Metadata=dict(metadata or {}), IfNoneMatch="*"
                )
            except ClientError as error:
                if not is_precondition_failure(error):
                    raise
                stored_body = self.get(key)
                if stored_body is not None:
                    return stored_body == body
                if attempt == _RACES - 1:
                    raise
                # 409: another write of this key is under way and may fail, so nobody has won yet.
                time.sleep(_RACE_PAUSE_S)
            else:
                return True
        raise AssertionError("unreachable")

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)

    def put_json(self, name: str, value: Any) -> None:
        self.put(f"{self.prefix}/{name}", json.dumps(value, default=str, indent=1).encode())

    def get(self, key: str) -> bytes | None:
        return object_or_none(self.s3, self.bucket, key)

    def has(self, name: str) -> bool:
        """Return whether there is such an object, readable or not."""
        return self.get(f"{self.prefix}/{name}") is not None

    def get_json(self, name: str) -> Any | None:
        """Return an object's content; None if there is none. Raises `Unreadable` for one that is no JSON."""
        key = f"{self.prefix}/{name}"
        body = self.get(key)
        try:
            return None if body is None else json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Unreadable(key, error) from error

    def model(self, name: str, model: type[Model]) -> Model | None:
        """Return an object by its schema; None if there is none. Raises `Unreadable` for one that does not fit."""
        return self.model_at(f"{self.prefix}/{name}", model)

    def model_at(self, key: str, model: type[Model]) -> Model | None:
        """Return an object of the bucket as `model` does."""
        body = self.get(key)
        try:
            return None if body is None else model.model_validate_json(body)
        except ValidationError as error:
            raise Unreadable(key, error) from error

    def figures(self, name: str, model: type[Model]) -> Model | None:
        """Return an object that nothing depends on but what people see: None too, and noted, if it is unreadable."""
        try:
            return self.model(name, model)
        except Unreadable as error:
            self.unread[error.key] = error.why
            return None

    def keys(self, name: str) -> list[str]:
        return self._keys(f"{self.prefix}/{name}")

    def folders(self, name: str) -> list[str]:
        """Return the names of the folders directly below `name`, without listing their objects."""
        parent = f"{self.prefix}/{name}"
        prefixes = self._list_pages("CommonPrefixes", Prefix=parent, Delimiter="/")
        return [item["Prefix"].removeprefix(parent).rstrip("/") for item in prefixes]

    def _modified_at(self, key: str) -> datetime:
        """Return when an object was written, by S3."""
        modified_at = self.s3.get_object(Bucket=self.bucket, Key=key).get("LastModified")
        return modified_at if isinstance(modified_at, datetime) else self._now()

    def _keys(self, prefix: str) -> list[str]:
        return [item["Key"] for item in self._list_pages("Contents", Prefix=prefix)]

    def _list_pages(self, field: str, **arguments: str) -> list[dict[str, Any]]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, **arguments)
        return or_none(lambda: [item for page in pages for item in page.get(field, ())]) or []

    def lease(
        self, role: str, ttl: timedelta, holder: Holder | None = None, s3: Any = None, patient: bool = False
    ) -> Lease:
        """Return the lease `role`. A holder passes an `s3` client with tries that are short against `ttl`."""
        return Lease(self, role, ttl, holder or Holder.this_process(), s3 or self.s3, patient)

    def claim_spec(self, spec_json: str, name: str = "spec.json") -> None:
        """Store the spec of a new campaign as `name`, the key of the spec in force.

        Raises `UserError` with the differing fields if another spec is stored.
        """
        key = f"{self.prefix}/{name}"
        if self.put_if_absent(key, spec_json.encode()):
            return
        old, new = self.get_json(name), json.loads(spec_json)
        differing = [field for field in new if new[field] != dict(old or {}).get(field)]
        if differing:
            raise UserError(
                f"campaign {self.campaign} exists with another spec",
                seen=f"differing sections: {', '.join(differing)}",
                cure="give the new campaign another name: a name is never freed, since its record and archive stay; "
                f"`bivouac relaunch {self.campaign} --spec FILE` continues a held campaign with a corrected spec, "
                "which `bivouac run` then needs",
            )


class _Figures(BaseModel):
    model_config = ConfigDict(extra="allow")

    at: AwareDatetime
    attempt: int
    step: int
    steps: int
    loss: float | None
    committed_step: int
    spent_usd: FiniteFloat
    usd_per_hour: FiniteFloat
    why: str


def live_figures(store: CampaignStore) -> dict[str, Any] | None:
    """Return the figures as the steward writes them; None if there are none. If they cannot be read, None too,
    and `store.unread` says so: money then counts from the events."""
    newest_figures = store.figures(LIVE, _Figures)
    return None if newest_figures is None else newest_figures.model_dump() | {"at": newest_figures.at.isoformat()}
