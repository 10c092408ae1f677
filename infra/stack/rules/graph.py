"""The resource graph of a program, previewed or under mocks. No Pulumi here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""The engine's mark for a value that only AWS will give: rules judge it by its origin."""
_CUSTOM = ("aws:", "kubernetes:", "pulumi:providers:")


@dataclass(frozen=True)
class Resource:
    urn: str
    type: str
    """`aws:ec2/subnet:Subnet`."""
    name: str
    inputs: Mapping[str, Any]
    refers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Property -> URNs of the resources that its value comes from."""
    depends: frozenset[str] = frozenset()
    """URNs of all that must exist before it."""
    provider: str = ""
    """URN and id of its provider, `::` between them."""
    deleted_with: str = ""

    @property
    def kind(self) -> str:
        """`Subnet`."""
        return self.type.rpartition(":")[2]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def known(self, name: str) -> Any:
        """Return the input, or None if only AWS will give it."""
        value = self.inputs.get(name)
        return None if value == UNKNOWN else value


class Graph:
    """Resources by URN, in the order of the program."""

    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}

    def add(self, resource: Resource) -> None:
        self.resources[resource.urn] = resource

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.resources.values())

    def __len__(self) -> int:
        return sum(one.type.startswith(_CUSTOM) for one in self)

    def of(self, *kinds: str) -> list[Resource]:
        return [one for one in self if one.kind in kinds and one.type.startswith(_CUSTOM)]

    def behind(self, resource: Resource, name: str, kind: str) -> list[Resource]:
        """Return the resources of a kind from which the value of a property comes."""
        urns = resource.refers.get(name, frozenset())
        return [one for urn, one in self.resources.items() if urn in urns and one.kind == kind]

    def after(self, later: Resource, earlier: Resource) -> bool:
        """Return whether `later` is made after `earlier`, and so deleted before it."""
        seen, todo = set[str](), [later.urn]
        while todo:
            urn = todo.pop()
            if urn == earlier.urn:
                return True
            if urn not in seen and urn in self.resources:
                seen.add(urn)
                one = self.resources[urn]
                todo += [*one.depends, *(urns for several in one.refers.values() for urns in several)]
                todo += [one.provider.rpartition("::")[0]] if one.provider else []
        return False
