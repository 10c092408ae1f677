"""The vocabulary of the table: a resource type's inputs and its naming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Conversion(Enum):
    PLAIN = "plain"
    FLAG = "flag"
    """A boolean that the SDK writes as the string `true` or `false`."""
    JSON = "json"
    """A document as text, compared as JSON."""
    SET = "set"
    """A list without order."""
    MAP = "map"
    """Free keys, as in labels."""
    TIME = "time"
    AMOUNT = "amount"
    """A decimal number as text: `100` equals `100.0`."""
    TAGS = "tags"
    """Free keys that the API writes as a list of `Key` and `Value`."""


LOCAL = ""
"""`Input.api` of a property that is no API field: the resource's functions handle it."""


@dataclass(frozen=True)
class Input:
    api: str | None = None
    """API field; None: the property's name in the service's case."""
    required: bool = False
    replaces: bool = False
    """True if a change needs a new resource."""
    default: Any = None
    computed: bool = False
    """True if AWS chooses a value when the program sets none."""
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


class Case(Enum):
    PASCAL = "pascal"
    CAMEL = "camel"
