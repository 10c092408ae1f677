"""One operation on one resource, for the functions of a table entry."""

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
from infra.rehearsal.plugins.aws.mapping import from_api, to_api
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Conversion, Input, Naming
from infra.rehearsal.plugins.package import OperationFailed
from infra.rehearsal.plugins.wire import Props

Value = TypeVar("Value")
PROPAGATION = timedelta(minutes=2)
"""The real plugin waits this long until AWS knows a new resource everywhere."""
_GONE = re.compile(
    r"(PlacementGroup.Unknown|NotFound|NoSuch\w*|DoesNotExist|ResourceNotFoundException|NotFoundException)$|NotFound|^404$"
)


class NotReady(Exception):
    """The resource exists but is not ready."""


Tagger = Callable[["Call", dict[str, str], list[str]], None]
"""(call, tags to set, keys to remove) -> None."""


@dataclass(frozen=True)
class Resource:
    token: str
    service: str
    """boto3's name of the service."""
    inputs: Mapping[str, Input]
    create: Callable[[Call], str]
    """Create it, wait until it is ready, and return its ID."""
    read: Callable[[Call], Props | None]
    """Return the observed properties, or None if it does not exist."""
    delete: Callable[[Call], None]
    update: Callable[[Call], None] | None = None
    """Update everything except tags. None: only tags can be updated."""
    outputs: Mapping[str, str | None] = field(default_factory=dict)
    """Computed properties -> their API field (None: same name)."""
    case: Case = Case.PASCAL
    naming: Naming | None = None
    identity: tuple[str, ...] = ()
    """Inputs that AWS requires to be unique: if none of them changes, a replacement deletes first."""
    tagger: Tagger | None = None
    volatile: tuple[str, ...] = ()
    """Outputs that every update changes."""
    regional: bool = True
    patience: timedelta = timedelta(minutes=20)
    """Default time limit of each operation, unless the program sets a custom timeout."""

    def table(self) -> dict[str, Input]:
        """Return every property that a program may set."""
        table = dict(self.inputs)
        if self.naming:
            table.setdefault(self.naming.property, Input(replaces=True))
            if self.naming.prefix_property:
                table.setdefault(self.naming.prefix_property, Input(api=LOCAL, replaces=True))
        if self.tagger:
            table["tags"] = Input(api=LOCAL, kind=Conversion.MAP)
        if self.regional:
            table["region"] = Input(api=LOCAL, replaces=True)
        return table

    def computed(self) -> set[str]:
        names = set(self.outputs) | {name for name, entry in self.inputs.items() if entry.computed}
        return names | ({"tagsAll"} if self.tagger else set())


@dataclass
class Call:
    resource: Resource
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

    def client(self, service: str | None = None) -> Any:
        return self.clients.get(service or self.resource.service, self.region if self.resource.regional else None)

    def request(self, *names: str) -> dict[str, Any]:
        """Return the API fields of the named inputs; none without names."""
        table = self.resource.table()
        return to_api({name: table[name] for name in names}, self.new, self.resource.case)

    def whole_request(self) -> dict[str, Any]:
        """Return the API fields of all inputs."""
        return to_api(self.resource.table(), self.new, self.resource.case)

    def observed(self, answer: dict[str, Any]) -> Props:
        """Return the inputs and outputs in an API answer."""
        outputs = {name: Input(api=api) for name, api in self.resource.outputs.items()}
        return from_api({**self.resource.table(), **outputs}, answer, self.resource.case)

    def changed(self, *names: str) -> bool:
        return any(self.new.get(name) != self.old.get(name) for name in names)

    def arn(self, service: str, path: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.clients.account}:{path}"

    def wait(self, done: Callable[[], Value], what: str, within: timedelta | None = None) -> Value:
        """Poll until `done` returns something true; its exceptions pass through."""
        pause, deadline = 0.1, self.deadline
        if within is not None:
            deadline = min(deadline, time.monotonic() + within.total_seconds())
        while True:
            value = done()
            if value:
                return value
            if time.monotonic() > deadline:
                raise NotReady(f"timed out while waiting for {what}")
            if self.cancelled.wait(pause):
                raise NotReady(f"cancelled while waiting for {what}")
            pause = min(pause * 1.6, 2.0)

    def wait_gone(self, probe: Callable[[], Any], what: str) -> None:
        self.wait(lambda: not self.or_none(probe), what)

    def listed(self, operation: str, member: str, service: str | None = None, **request: Any) -> list[Any]:
        """Return every item of a listing, from all its pages."""
        pages = self.client(service).get_paginator(operation).paginate(**request)
        return [item for page in pages for item in page.get(member) or ()]

    def retry(
        self, act: Callable[[], Value], *codes: str, saying: str = "", within: timedelta | None = PROPAGATION
    ) -> Value:
        """Repeat `act` while AWS answers with one of `codes` and this text: it is eventually consistent."""
        result: list[Value] = []
        refusal: list[ClientError] = []

        def attempt() -> bool:
            try:
                result.append(act())
            except ClientError as error:
                if error_code(error) not in codes or saying not in str(error):
                    raise
                refusal[:] = [error]
                return False
            return True

        try:
            self.wait(attempt, "AWS to accept the request", within)
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

    def destroy(self, act: Callable[[], Any], *codes: str) -> None:
        """Delete, repeatedly while others depend on it; a missing resource is no error."""
        self.or_none(lambda: self.retry(act, "DependencyViolation", *codes, within=None))


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def is_gone(error: ClientError) -> bool:
    return bool(_GONE.search(error_code(error)))
