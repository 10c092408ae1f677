"""One operation on one resource."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from infra.rehearsal.plugins.aws.client import Clients
from infra.rehearsal.plugins.aws.mapping import to_api
from infra.rehearsal.plugins.aws.table import TypeRow
from infra.rehearsal.plugins.package import OperationFailed
from infra.rehearsal.plugins.wire import Props

Value = TypeVar("Value")
LONGEST_PAUSE_S = 0.4
"""Between two looks at what AWS makes or deletes: what follows it waits for the next look."""
PROPAGATION = timedelta(minutes=2)
"""The real plugin waits this long until AWS knows a new resource everywhere."""
_GONE = re.compile(
    r"(PlacementGroup.Unknown|NotFound|NoSuch\w*|DoesNotExist|ResourceNotFoundException|NotFoundException)$"
    r"|NotFound|NotAttached$|^404$"
)


class NotReady(Exception):
    """The resource exists but is not ready."""


@dataclass
class ResourceCall:
    row: TypeRow
    clients: Clients
    name: str
    deadline: float
    """Monotonic time."""
    cancelled: threading.Event
    id: str = ""
    new: Props = field(default_factory=dict)
    """Wanted inputs; for a read or delete, the recorded ones."""
    old: Props = field(default_factory=dict)
    """Inputs before this operation."""
    state: Props = field(default_factory=dict)

    @property
    def region(self) -> str:
        return str(self.new.get("region") or self.state.get("region") or self.clients.region)

    @property
    def tags(self) -> dict[str, str]:
        return dict(self.new.get("tags") or {})

    def client(self) -> Any:
        return self.clients.get(self.row.service, self.region if self.row.has_region else None)

    def request(self, *names: str) -> dict[str, Any]:
        """Return the API fields of the named inputs."""
        return to_api({name: self.row.table[name] for name in names}, self.new, self.row.case)

    def differs(self, *names: str) -> bool:
        return any(self.new.get(name) != self.old.get(name) for name in names)

    def wait(self, probe: Callable[[], Value], title: str, limit: timedelta | None = None) -> Value:
        """Poll until `probe` returns something true; its exceptions pass through."""
        pause, deadline = 0.1, self.deadline
        if limit is not None:
            deadline = min(deadline, time.monotonic() + limit.total_seconds())
        while True:
            value = probe()
            if value:
                return value
            if time.monotonic() > deadline:
                raise NotReady(f"timed out while waiting for {title}")
            if self.cancelled.wait(pause):
                raise NotReady(f"cancelled while waiting for {title}")
            pause = min(pause * 1.6, LONGEST_PAUSE_S)

    def list_all(self, operation: str, member: str, **request: Any) -> list[Any]:
        """Return every item of a listing, from all its pages."""
        pages = self.client().get_paginator(operation).paginate(**request)
        return [item for page in pages for item in page.get(member) or ()]

    def retry(
        self, act: Callable[[], Value], refusals: Mapping[str, str], limit: timedelta | None = PROPAGATION
    ) -> Value:
        """Repeat `act` while AWS answers with one of the codes and its text: it is eventually consistent."""
        result: list[Value] = []
        refusal: list[ClientError] = []

        def attempt() -> bool:
            try:
                result.append(act())
            except ClientError as error:
                text = refusals.get(error_code(error))
                if text is None or text not in str(error):
                    raise
                refusal[:] = [error]
                return False
            return True

        try:
            self.wait(attempt, "AWS to accept the request", limit)
        except NotReady as timeout:
            raise OperationFailed(f"{timeout}; last answer: {refusal[0]}") from timeout
        return result[0]

    def or_none(self, act: Callable[[], Value]) -> Value | None:
        """Return None if AWS answers that the resource does not exist."""
        try:
            return act()
        except ClientError as error:
            if is_gone(error):
                return None
            raise

    def destroy(self, act: Callable[[], Any], refusals: Mapping[str, str]) -> None:
        """Delete, repeatedly while others depend on it; a missing resource is no error."""
        self.or_none(lambda: self.retry(act, {"DependencyViolation": "", **refusals}, limit=None))


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def is_gone(error: ClientError) -> bool:
    return bool(_GONE.search(error_code(error)))
