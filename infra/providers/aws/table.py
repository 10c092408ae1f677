"""The words of the reviewed table for a resource type's inputs and its name."""

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
    kind: Conversion = Conversion.PLAIN
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
