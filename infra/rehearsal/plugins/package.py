"""The interface of a provider package, in plain Python; `servicer` translates it to gRPC."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from infra.rehearsal.plugins.wire import Props


@dataclass(frozen=True)
class PropertyFailure:
    property: str
    reason: str


def unknown_properties(inputs: Props, known_names: Collection[str], owner: str) -> list[PropertyFailure]:
    """Return a failure for each input that is not known. `owner` ends in the words before the names of these; what
    begins with `__` is the engine's."""
    names = ", ".join(sorted(known_names))
    unknown = sorted(name for name in inputs if name not in known_names and not name.startswith("__"))
    return [PropertyFailure(name, f"unknown property '{name}' of {owner} {names}") for name in unknown]


@dataclass(frozen=True)
class PropertyChange:
    """One differing property; `path` is in the engine's notation, for instance `rules[0].status`."""

    path: str
    kind: str
    """`add`, `delete` or `update`."""
    replaces: bool


@dataclass(frozen=True)
class Request:
    urn: str
    type: str
    name: str
    id: str = ""
    inputs: Props = field(default_factory=dict)
    """The program's present inputs; for a read or delete, its last ones."""
    old_inputs: Props = field(default_factory=dict)
    state: Props = field(default_factory=dict)
    """Outputs recorded by the last operation."""
    timeout_s: float = 0.0
    """0 means the package's default."""
    preview: bool = False
    random_seed: bytes = b""
    proposed_name: str = ""


class ResourceGone(Exception):
    """The resource does not exist, or no longer."""


class InitFailed(Exception):
    """The resource exists but is not ready; the engine must record it, or it would be leaked."""

    def __init__(self, resource_id: str, state: Props, inputs: Props, reason: str) -> None:
        super().__init__(reason)
        self.resource_id, self.state, self.inputs, self.reason = resource_id, state, inputs, reason


class OperationFailed(Exception):
    """The operation failed; the user sees the text without a traceback."""


class Package(Protocol):
    version: str

    def schema(self) -> dict[str, Any]: ...
    def check_config(self, inputs: Props) -> Sequence[PropertyFailure]: ...
    def diff_config(self, old: Props, new: Props) -> Sequence[PropertyChange]: ...
    def configure(self, inputs: Props) -> None: ...
    def check(self, request: Request) -> tuple[Props, Sequence[PropertyFailure]]: ...
    def diff(self, request: Request) -> tuple[Sequence[PropertyChange], bool]:
        """Return the changes, and whether a replaced resource must be deleted before its successor is created."""
        ...

    def create(self, request: Request) -> tuple[str, Props]: ...
    def read(self, request: Request) -> tuple[str, Props, Props]:
        """Return ID, inputs and state as observed. Raises ResourceGone."""
        ...

    def update(self, request: Request) -> Props: ...
    def delete(self, request: Request) -> None: ...
    def invoke(self, token: str, arguments: Props) -> Props: ...
    def cancel(self) -> None: ...
