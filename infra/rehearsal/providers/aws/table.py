"""The words of the reviewed table: for each resource type its inputs, its outputs, and how AWS is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from infra.rehearsal.providers.wire import Props

if TYPE_CHECKING:
    from infra.rehearsal.providers.aws.call import Call


class Kind(Enum):
    PLAIN = "plain"
    FLAG = "flag"
    """A boolean that the SDK writes as the string `true` or `false`."""
    JSON = "json"
    """A document as text: compared by meaning."""
    SET = "set"
    """A list whose order means nothing."""
    MAP = "map"
    """Free keys, as in labels."""
    TIME = "time"
    AMOUNT = "amount"
    """A decimal number as text: `100` is `100.0`."""
    TAGS = "tags"
    """Free keys, which the API writes as a list of `Key` and `Value`."""


LOCAL = ""
"""`Input.api` of a property that is no field of the API: the resource's functions deal with it."""


@dataclass(frozen=True)
class Input:
    api: str | None = None
    """Field of the API; None: the property's own name, in the service's case."""
    required: bool = False
    replaces: bool = False
    """A change needs a new resource."""
    default: Any = None
    computed: bool = False
    """AWS chooses a value where the program gives none."""
    kind: Kind = Kind.PLAIN
    fields: Mapping[str, Input] | None = None
    """Of an object, or of each object in a list."""


@dataclass(frozen=True)
class Naming:
    """A name is made where the program gives none: `<resource name>-<7 hex>`."""

    property: str = "name"
    longest: int = 255
    prefix_property: str | None = "namePrefix"
    separator: str = "-"


class Case(Enum):
    PASCAL = "pascal"
    CAMEL = "camel"


Tagger = Callable[["Call", dict[str, str], list[str]], None]
"""Sets the tags of the first argument and removes the keys of the second."""


@dataclass(frozen=True)
class Resource:
    token: str
    service: str
    """boto3's name."""
    inputs: Mapping[str, Input]
    create: Callable[[Call], str]
    """Makes it, waits until it is ready, and returns its id."""
    read: Callable[[Call], Props | None]
    """Properties as observed; None when it is gone."""
    delete: Callable[[Call], None]
    update: Callable[[Call], None] | None = None
    """Everything but tags. None: no input but tags can be updated."""
    outputs: Mapping[str, str | None] = field(default_factory=dict)
    """Computed properties -> their field of the API (None: by name)."""
    case: Case = Case.PASCAL
    naming: Naming | None = None
    identity: tuple[str, ...] = ()
    """Inputs that AWS wants unique: where none of them changes, a replacement deletes first."""
    tagger: Tagger | None = None
    volatile: tuple[str, ...] = ()
    """Outputs that every update changes."""
    regional: bool = True
    patience: timedelta = timedelta(minutes=20)
    """Default bound of each operation, where the program sets no custom timeout."""

    def table(self) -> dict[str, Input]:
        """Every property that a program may set."""
        table = dict(self.inputs)
        if self.naming:
            table.setdefault(self.naming.property, Input(replaces=True))
            if self.naming.prefix_property:
                table.setdefault(self.naming.prefix_property, Input(api=LOCAL, replaces=True))
        if self.tagger:
            table["tags"] = Input(api=LOCAL, kind=Kind.MAP)
        if self.regional:
            table["region"] = Input(api=LOCAL, replaces=True)
        return table

    def computed(self) -> set[str]:
        names = set(self.outputs) | {name for name, entry in self.inputs.items() if entry.computed}
        return names | ({"tagsAll"} if self.tagger else set())
