"""Comparison of objects: the program's present and former inputs, and the API server's version."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from infra.rehearsal.plugins.package import PropertyChange
from infra.rehearsal.plugins.wire import Props, has_unknown
from infra.tables import table

IMMUTABLE: dict[str, list[str]] = table("infra.rehearsal.plugins.kubernetes", "immutable")
"""Kind -> fields that need a new object."""
_DEFINITION = "CustomResourceDefinition"
_IDENTITY = ("apiVersion", "kind", "metadata.name", "metadata.namespace")


def changes(kind: str, old: Props, new: Props) -> list[PropertyChange]:
    """Compare inputs. New data of a config map or secret replace it, as the real plugin's default is."""
    fixed_paths = (*_IDENTITY, *IMMUTABLE.get(kind, ()))
    return [
        PropertyChange(
            path,
            kind_of_change,
            any(path == field or path.startswith((f"{field}.", f"{field}[")) for field in fixed_paths),
        )
        for path, kind_of_change in _differences(old, new, "")
    ]


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
    if old == new and not has_unknown(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            if key.startswith("__"):
                continue
            inner = f"{path}.{key}" if path else key
            yield from _differences(old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _differences(left, right, f"{path}[{number}]")
    else:
        yield path, "add" if old is None else "delete" if new is None else "update"


def as_served(inputs: Props) -> Props:
    """Return a definition's schema in the API server's spelling: Pulumi property names cannot be `x-kubernetes-…`.

    As in the real plugin only definitions are changed: elsewhere such a key is the user's own.
    """
    return dict(_rename_keys(inputs, "x_kubernetes_", "_", "-")) if inputs.get("kind") == _DEFINITION else inputs


def as_declared(live: Props) -> Props:
    """Reverse `as_served`."""
    return dict(_rename_keys(live, "x-kubernetes-", "-", "_")) if live.get("kind") == _DEFINITION else live


def _rename_keys(value: Any, begin: str, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {
            (key.replace(old, new) if key.startswith(begin) else key): _rename_keys(inner, begin, old, new)
            for key, inner in value.items()
        }
    return [_rename_keys(inner, begin, old, new) for inner in value] if isinstance(value, list) else value


def overlay(wish_value: Any, live: Any) -> Any:
    """Return the values that a refresh records: the wanted one if the server agrees, else the server's.

    Fields that the program never set are left out; zero values, which the server omits, are kept.
    """
    if isinstance(wish_value, dict) and isinstance(live, dict):
        hidden = {
            key: value for key, value in wish_value.items() if key not in live and (not value or key == "stringData")
        }
        return hidden | {key: overlay(value, live[key]) for key, value in wish_value.items() if key in live}
    if isinstance(wish_value, list) and isinstance(live, list) and len(wish_value) == len(live):
        return [overlay(wish, live_part) for wish, live_part in zip(wish_value, live, strict=True)]
    return wish_value if _same_quantity(wish_value, live) else live


def import_inputs(live: Props) -> Props:
    """Return inputs that would create this object."""
    fields = ("name", "namespace", "labels", "annotations", "finalizers")
    metadata = {key: value for key, value in live["metadata"].items() if key in fields}
    return {**{key: value for key, value in live.items() if key not in ("status", "metadata")}, "metadata": metadata}


_UNITS = {letter: Decimal(10) ** power for letter, power in zip("mkMGTP", (-3, 3, 6, 9, 12, 15), strict=True)}
_UNITS |= {f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTP", 1)}


def _same_quantity(left: Any, right: Any) -> bool:
    """Compare quantities: the API server writes `1000m` as `1`."""
    return left == right or (_quantity(left) is not None and _quantity(left) == _quantity(right))


def _quantity(value: Any) -> Decimal | None:
    text = str(value)
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit)), "")
    try:
        return Decimal(text.removesuffix(unit)) * _UNITS.get(unit, Decimal(1))
    except InvalidOperation:
        return None
