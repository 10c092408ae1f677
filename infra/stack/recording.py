"""Records all resources that the program registers in a graph for the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pulumi.output import Unknown
from pulumi.runtime import rpc, settings

from infra.stack.rules.graph import UNKNOWN, Graph, GraphResource


def record_into(program: Callable[[], None], graph: Graph) -> Callable[[], None]:
    """Return the program; `graph` is filled while the engine runs it. The engine's requests do not change."""

    def run() -> None:
        settings.SETTINGS.monitor = _Listener(settings.SETTINGS.monitor, graph)
        program()

    return run


class _Listener:
    """Proxy of the engine's monitor that records resources."""

    def __init__(self, monitor: Any, graph: Graph) -> None:
        self._monitor, self._graph = monitor, graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    def RegisterResource(self, request: Any, *arguments: Any, **keywords: Any) -> Any:
        response = self._monitor.RegisterResource(request, *arguments, **keywords)
        self._graph.add(resource_of(request, response.urn))
        return response


def _plain(value: Any) -> Any:
    """Return the value with the engine's UNKNOWN instead of an object that equals no other."""
    if isinstance(value, Unknown):
        return UNKNOWN
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def resource_of(request: Any, urn: str) -> GraphResource:
    return GraphResource(
        urn=urn,
        type=request.type,
        name=request.name,
        inputs=_plain(rpc.deserialize_properties(request.object, keep_unknowns=True)),
        refers={name: frozenset(dependency.urns) for name, dependency in request.propertyDependencies.items()},
        depends=frozenset(request.dependencies),
        provider=request.provider or request.providers.get(request.type.partition(":")[0], ""),
        deleted_with=request.deletedWith,
    )
