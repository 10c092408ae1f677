"""Conversion between inputs and API fields, and their comparison, by the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, FieldCase, Input
from infra.rehearsal.plugins.package import PropertyChange, PropertyFailure
from infra.rehearsal.plugins.wire import UNKNOWN, Props, has_unknown

Fields = Mapping[str, Input]
_NOTHING: tuple[Any, ...] = (None, [], {})


def field_name(name: str, entry: Input, case: FieldCase) -> str:
    if entry.api is not None:
        return entry.api
    return name[0].upper() + name[1:] if case is FieldCase.PASCAL else name


def to_api(fields: Fields, values: Props, case: FieldCase) -> dict[str, Any]:
    """Return the request fields of `values`, without LOCAL properties."""
    request = {}
    for name, entry in fields.items():
        value = values.get(name)
        if value is None or entry.api == LOCAL:
            continue
        request[field_name(name, entry, case)] = outward(entry, value, case)
    return request


def from_api(fields: Fields, answer: Mapping[str, Any], case: FieldCase) -> Props:
    """Return the properties that `answer` holds."""
    properties = {}
    for name, entry in fields.items():
        key = field_name(name, entry, case)
        if entry.api != LOCAL and answer.get(key) is not None:
            properties[name] = inward(entry, answer[key], case)
    return properties


def outward(entry: Input, value: Any, case: FieldCase) -> Any:
    if entry.fields is not None:
        if isinstance(value, list):
            return [to_api(entry.fields, item, case) for item in value]
        return to_api(entry.fields, value, case)
    if entry.kind is Conversion.FLAG:
        return str(value).lower() == "true"
    if entry.kind is Conversion.TAGS:
        return [{"Key": key, "Value": text} for key, text in sorted(value.items())]
    return value


def inward(entry: Input, value: Any, case: FieldCase) -> Any:
    if entry.fields is not None:
        if isinstance(value, list):
            return [from_api(entry.fields, item, case) for item in value]
        return from_api(entry.fields, value, case)
    if entry.kind is Conversion.FLAG:
        return str(value).lower()
    if entry.kind is Conversion.TAGS:
        return {tag["Key"]: tag.get("Value", "") for tag in value}
    if entry.kind is Conversion.JSON and not isinstance(value, str):
        return json.dumps(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value


def failures(fields: Fields, values: Props, owner: str, path: str = "") -> Iterator[PropertyFailure]:
    """Yield unknown properties, and missing required ones."""
    for name, value in values.items():
        if name.startswith("__"):
            continue
        entry = fields.get(name)
        if entry is None:
            names = ", ".join(sorted(fields))
            yield PropertyFailure(
                path + name, f"unknown property '{path}{name}' of {owner}: the rehearsal's table knows {names}"
            )
        elif entry.fields is not None and value != UNKNOWN:
            for number, item in enumerate(value if isinstance(value, list) else [value]):
                inner = f"{path}{name}[{number}]." if isinstance(value, list) else f"{path}{name}."
                if isinstance(item, dict):
                    yield from failures(entry.fields, item, owner, inner)
                elif item != UNKNOWN:
                    yield PropertyFailure(
                        inner[:-1], f"property '{inner[:-1]}' of {owner} must be an object, not {item!r}"
                    )
    for name, entry in fields.items():
        if entry.required and values.get(name) is None:
            yield PropertyFailure(path + name, f"missing required property '{path}{name}' of {owner}")


def normalise(fields: Fields, values: Props) -> Props:
    """Return `values` with the table's defaults, and documents as text."""
    result = {name: value for name, value in values.items() if value is not None}
    for name, entry in fields.items():
        if entry.default is not None:
            result.setdefault(name, entry.default)
        value = result.get(name)
        if value is None or value == UNKNOWN:
            continue
        if entry.kind is Conversion.JSON and not isinstance(value, str):
            result[name] = json.dumps(value)
        elif entry.fields is not None and isinstance(value, dict):
            result[name] = normalise(entry.fields, value)
        elif entry.fields is not None and isinstance(value, list):
            result[name] = [normalise(entry.fields, item) if isinstance(item, dict) else item for item in value]
    return result


def changes(fields: Fields, old: Props, new: Props, path: str = "", replaces: bool = False) -> Iterator[PropertyChange]:
    for name, entry in fields.items():
        old_value, new_value = old.get(name), new.get(name)
        if equal(entry, old_value, new_value):
            continue
        inner_path, replacing = path + name, replaces or entry.replaces
        if entry.fields is not None and isinstance(old_value, dict) and isinstance(new_value, dict):
            yield from changes(entry.fields, old_value, new_value, inner_path + ".", replacing)
        else:
            kind = "add" if old_value is None else "delete" if new_value is None else "update"
            yield PropertyChange(inner_path, kind, replacing)


def equal(entry: Input, left: Any, right: Any) -> bool:
    """Compare two values. Unknown values equal nothing; an empty list or map equals none."""
    if left == right:
        return not has_unknown(left)
    if left in _NOTHING and right in _NOTHING:
        return True
    if left is None or right is None or has_unknown(left) or has_unknown(right):
        return False
    if entry.kind is Conversion.JSON:
        return _document(left) == _document(right)
    if entry.kind is Conversion.SET:
        return sorted(map(_canonical, left)) == sorted(map(_canonical, right))
    if entry.kind in _READERS:
        read = _READERS[entry.kind]
        return bool(read(str(left)) == read(str(right)))
    if entry.fields is not None and isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            not any(True for _ in changes(entry.fields, left_part, right_part))
            for left_part, right_part in zip(left, right, strict=True)
        )
    return bool(entry.fields is None and str(left) == str(right) and not isinstance(left, dict | list))


def overlay(entry: Input, wish_value: Any, present: Any) -> Any:
    """Return the value that a refresh records: the wanted one if AWS agrees, else the observed one.

    Fields that the program never set are left out.
    """
    if present is None or equal(entry, wish_value, present):
        return wish_value
    fields = entry.fields
    if fields is not None and isinstance(wish_value, dict) and isinstance(present, dict):
        return {k: overlay(fields.get(k, Input()), v, present.get(k)) for k, v in wish_value.items()}
    if (
        fields is not None
        and isinstance(wish_value, list)
        and isinstance(present, list)
        and len(wish_value) == len(present)
    ):
        return [
            overlay(Input(fields=fields), wish, present_part)
            for wish, present_part in zip(wish_value, present, strict=True)
        ]
    return present


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_READERS: dict[Conversion, Callable[[str], Any]] = {
    Conversion.FLAG: str.lower,
    Conversion.TIME: _time,
    Conversion.AMOUNT: Decimal,
}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _document(text: Any) -> Any:
    try:
        return _sorted_lists(json.loads(text) if isinstance(text, str) else text)
    except ValueError:
        return text


def _sorted_lists(value: Any) -> Any:
    """Normalise a policy: it writes sets as lists, and a set of one as the bare element (IAM grammar)."""
    if isinstance(value, dict):
        return {key: _sorted_lists(item) for key, item in value.items()}
    if isinstance(value, list):
        items = sorted((_sorted_lists(item) for item in value), key=_canonical)
        return items[0] if len(items) == 1 and not isinstance(items[0], dict) else items
    return value
