"""The resource graph of a program, previewed or under mocks. No Pulumi here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""The engine's mark for a value that only AWS will give: rules judge it by its origin."""
_CUSTOM = ("aws:", "kubernetes:", "pulumi:providers:")


@dataclass(frozen=True)
class GraphResource:
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

    def literal(self, name: str) -> Any:
        """Return the input, or None if only AWS will give it."""
        value = self.inputs.get(name)
        return None if value == UNKNOWN else value


class Graph:
    """Resources by URN, in the order of the program."""

    def __init__(self) -> None:
        self.resources: dict[str, GraphResource] = {}

    def add(self, resource: GraphResource) -> None:
        self.resources[resource.urn] = resource

    def __iter__(self) -> Iterator[GraphResource]:
        return iter(self.resources.values())

    def __len__(self) -> int:
        return sum(resource.type.startswith(_CUSTOM) for resource in self)

    def of(self, *kinds: str) -> list[GraphResource]:
        return [resource for resource in self if resource.kind in kinds and resource.type.startswith(_CUSTOM)]

    def origins(self, resource: GraphResource, name: str, kind: str) -> list[GraphResource]:
        """Return the resources of a kind from which the value of a property comes."""
        urns = resource.refers.get(name, frozenset())
        return [origin for urn, origin in self.resources.items() if urn in urns and origin.kind == kind]

    def depends_on(self, descendant: GraphResource, ancestor: GraphResource) -> bool:
        """Return whether `descendant` is made after `ancestor`, and so deleted before it."""
        visited_urns, todo = set[str](), [descendant.urn]
        while todo:
            urn = todo.pop()
            if urn == ancestor.urn:
                return True
            if urn not in visited_urns and urn in self.resources:
                visited_urns.add(urn)
                resource = self.resources[urn]
                todo += [*resource.depends, *(urns for origins in resource.refers.values() for urns in origins)]
                todo += [resource.provider.rpartition("::")[0]] if resource.provider else []
        return False
