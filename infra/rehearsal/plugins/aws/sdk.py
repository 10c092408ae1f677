"""The shape of a resource type in the SDK that programs use: `pulumi_aws`' own classes, imported per service."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple


class Argument(NamedTuple):
    required: bool
    object: type | None
    """Class of the object, or of each object in a list."""


_importing = threading.RLock()
"""The SDK loads a service's module at its first use, and not safely: a second thread may see half of it."""


@cache
def _resource(token: str) -> type:
    _, module, name = token.split(":")
    with _importing:
        service = importlib.import_module(f"pulumi_aws.{module.split('/')[0]}")
        resource: type = getattr(service, name)
    return resource


@cache
def arguments(token: str) -> type:
    """Return the class of a resource's arguments: `<Name>InitArgs` where an object of it is called `<Name>Args`."""
    resource = _resource(token)
    module = sys.modules[resource.__module__]
    owner: type = getattr(module, f"{resource.__name__}InitArgs", None) or getattr(module, f"{resource.__name__}Args")
    return owner


@cache
def shape(arguments: type) -> Mapping[str, Argument]:
    """Return the arguments of a class by their names in Pulumi."""
    module = sys.modules[arguments.__module__]
    parameters = inspect.signature(arguments).parameters
    return {
        wire: Argument(parameters[name].default is inspect.Parameter.empty, _object(annotation, module))
        for name, wire, annotation in _properties(arguments)
    }


@cache
def computed_outputs(token: str) -> frozenset[str]:
    """Return the outputs that every resource of the type has."""
    optional = "typing.Optional["
    return frozenset(wire for _, wire, kind in _properties(_resource(token)) if f"Output[{optional}" not in str(kind))


def _properties(owner: type) -> Iterator[tuple[str, str, Any]]:
    """Yield the name in Python, the name in Pulumi and the annotation of each property."""
    for name, member in vars(owner).items():
        if isinstance(member, property) and member.fget:
            yield name, getattr(member.fget, "_pulumi_name", name), member.fget.__annotations__["return"]


def _object(annotation: Any, module: ModuleType) -> type | None:
    forward = re.search(r"ForwardRef\('(\w+Args)'\)", str(annotation))
    if forward is None:
        return None
    owner: type = getattr(module, forward[1], None) or getattr(sys.modules[f"{module.__package__}._inputs"], forward[1])
    return owner
