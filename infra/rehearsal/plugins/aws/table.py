"""The vocabulary of the table: what one row says about a resource type."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cache, cached_property
from types import ModuleType
from typing import Any, NamedTuple


class Argument(NamedTuple):
    """An argument of a resource in `pulumi_aws`' own classes, which are imported per service."""

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


class Conversion(Enum):
    PLAIN = "plain"
    FLAG = "flag"
    """A boolean that the SDK writes as the string `true` or `false`."""
    JSON = "json"
    """A document as text, compared as JSON."""
    SET = "set"
    """A list without order."""
    TIME = "time"
    AMOUNT = "amount"
    """A decimal number as text: `100` equals `100.0`."""
    TAGS = "tags"
    """Free keys that the API writes as a list of `Key` and `Value`."""


LOCAL = ""
"""`Input.api` of a property that is no API field of its own: a step's arguments or a class handle it."""


@dataclass(frozen=True)
class Input:
    api: str | None = None
    """API field; None: the property's name in the service's case."""
    required: bool = False
    replaces: bool = False
    """True if a change needs a new resource."""
    default: Any = None
    kind: Conversion = Conversion.PLAIN
    fields: Mapping[str, Input] | None = None
    """Fields of the object, or of each object in the list."""


@dataclass(frozen=True)
class Naming:
    """Automatic name of a resource without one: `<resource name>-<7 hex>`."""

    property: str = "name"
    longest: int = 255
    prefix_property: str | None = "namePrefix"
    separator: str = "-"


class FieldCase(Enum):
    PASCAL = "pascal"
    CAMEL = "camel"


@dataclass(frozen=True)
class ApiStep:
    """One call of the API. Texts in braces are JMESPath expressions over the names of `resource.Scope`."""

    call: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    send: tuple[str, ...] | None = None
    """Inputs whose API fields are sent too; None: all that are API fields."""
    under: str = ""
    """Argument that holds the fields of `send`; empty: they are arguments themselves."""
    if_changed: tuple[str, ...] = ()
    """Inputs of which one must have changed; empty: the step always runs."""
    only_changed: bool = False
    """True if only the changed inputs of `send` are sent."""
    when: str = ""
    """Condition in JMESPath."""
    retry: Mapping[str, str] = field(default_factory=dict)
    """Error codes that pass by themselves, each with a part of its message."""


@dataclass(frozen=True)
class Query:
    """One call of the API that reads, and the JMESPath from its answer to the wanted part."""

    call: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: str = "@"


@dataclass(frozen=True)
class States:
    """The states of a resource."""

    at: str = "null"
    """JMESPath to the state in the description."""
    ready: tuple[str, ...] = ()
    """Empty: a resource is ready once it exists."""
    failed: tuple[str, ...] = ()
    """States that never become ready."""
    stuck: tuple[str, ...] = ()
    """States of a failed deletion."""
    gone: tuple[str, ...] = ()
    """States of a resource that AWS still describes but that does not exist."""
    why: str = "null"
    """JMESPath to the reason of a failure."""


@dataclass(frozen=True)
class Tagging:
    """How a service writes, reads and removes tags."""

    set: str
    unset: str
    target: Mapping[str, Any]
    """Arguments that name the resource."""
    tags: str = "Tags"
    stale: str = "TagKeys"
    stale_key: str = ""
    """Field around each removed key; empty: keys are bare."""
    keys: tuple[str, str] | None = ("Key", "Value")
    """Fields of a tag in a list; None: tags are a map."""
    created: str = "Tags"
    """Argument of the creation; empty: it takes no tags."""
    kind: str = ""
    """`ResourceType` of EC2's tag specification."""
    read: Query | str | None = "Tags"
    """JMESPath in the description, or a call of its own; None: the program's tags are taken as the present ones."""

    def form(self, tags: Mapping[str, str]) -> Any:
        if self.keys is None:
            return dict(tags)
        key_field, value_field = self.keys
        return [{key_field: key, value_field: tags[key]} for key in sorted(tags)]

    def parse(self, tags: Any) -> dict[str, str]:
        if self.keys is None:
            return dict(tags or {})
        key_field, value_field = self.keys
        return {tag[key_field]: tag.get(value_field, "") for tag in tags or ()}


@dataclass(frozen=True)
class TypeRow:
    """One resource type. Its `tags`, `region`, required inputs and computed outputs come from the SDK."""

    token: str
    service: str
    """boto3's name of the service."""
    inputs: Mapping[str, Any]
    """The modelled inputs as the file writes them; `table` has them complete."""
    create: ApiStep
    id: str
    """Template of the ID, or JMESPath to it in the creation's answer."""
    find: Query
    delete: tuple[ApiStep, ...]
    update: tuple[ApiStep, ...] | None = None
    """None: only tags can be updated."""
    key: str = ""
    """Template that reads names back from an ID; empty: `id`, where it is a template."""
    afterwards: Mapping[str, Any] = field(default_factory=dict)
    """Inputs that the creation cannot take, with AWS's own values: an update follows where the program differs."""
    status: States = States()
    observe: Mapping[str, str | None] = field(default_factory=dict)
    """Property -> JMESPath in the description, template after `=`, or None for the same name."""
    look_ups: Mapping[str, Query] = field(default_factory=dict)
    """Property -> a call of its own."""
    lingers: bool = False
    """True if AWS still shows a deleted resource for a while."""
    case: FieldCase = FieldCase.PASCAL
    tagging: Tagging | None = None
    naming: Naming | None = None
    identity: tuple[str, ...] = ()
    """Inputs that AWS requires to be unique: if none of them changes, a replacement deletes first."""
    volatile: tuple[str, ...] = ()
    """Outputs that every update changes."""
    patience: timedelta = timedelta(minutes=20)
    """Default time limit of each operation, unless the program sets a custom timeout."""

    @property
    def title(self) -> str:
        return re.sub("(?<!^)(?=[A-Z])", " ", self.token.split(":")[-1]).lower()

    @property
    def has_tags(self) -> bool:
        return "tags" in shape(arguments(self.token))

    @property
    def has_region(self) -> bool:
        return "region" in shape(arguments(self.token))

    @cached_property
    def table(self) -> dict[str, Input]:
        """Return every property that a program may set."""
        table = _inputs(self.inputs, arguments(self.token), self.token)
        if self.naming:
            table.setdefault(self.naming.property, Input(api=LOCAL, replaces=True))
            if self.naming.prefix_property:
                table.setdefault(self.naming.prefix_property, Input(api=LOCAL, replaces=True))
        if self.has_tags:
            table["tags"] = Input(api=LOCAL)
        if self.has_region:
            table["region"] = Input(api=LOCAL, replaces=True)
        return table

    @property
    def computed_outputs(self) -> frozenset[str]:
        """Return the properties that AWS chooses where the program sets none."""
        return computed_outputs(self.token)


def _inputs(row: Mapping[str, Any], arguments: type, owner: str) -> dict[str, Input]:
    arguments_by_name = shape(arguments)
    unknown = sorted(set(row) - set(arguments_by_name))
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no inputs of {owner} in pulumi_aws ({arguments.__name__})")
    return {name: _input(words, arguments_by_name[name], f"{owner}.{name}") for name, words in row.items()}


def _input(entry: Any, argument: Argument, owner: str) -> Input:
    """Return one input. A row writes words, or a map of `is` (words), `api`, `default` and `fields`."""
    settings = dict(entry) if isinstance(entry, dict) else {"is": entry}
    words = settings.pop("is", None) or []
    words = {words} if isinstance(words, str) else set(words)
    fields = settings.pop("fields", None)
    if fields is not None and argument.object is None:
        raise ValueError(f"{owner}: no object in pulumi_aws")
    kinds = [kind for kind in Conversion if kind.value in words]
    unknown = words - {kind.value for kind in kinds} - {"required", "optional", "replaces", "local"}
    if unknown:
        raise ValueError(f"{owner}: unknown words {sorted(unknown)}")
    return Input(
        api=LOCAL if "local" in words else settings.pop("api", None),
        required=(argument.required or "required" in words) and "optional" not in words,
        replaces="replaces" in words,
        kind=kinds[0] if kinds else Conversion.PLAIN,
        fields=None if fields is None or argument.object is None else _inputs(fields, argument.object, owner),
        **settings,
    )
