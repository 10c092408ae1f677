"""Property values between protobuf structs and plain Python: secrets unwrapped, unknowns kept as a marker."""

from __future__ import annotations

from typing import Any

from google.protobuf import struct_pb2

Props = dict[str, Any]

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Marker of a value that is unknown during a preview (pulumi sdk: plugin/rpc.go)."""

_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
_OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"


def decode(struct: struct_pb2.Struct) -> Props:
    return {key: _value(value) for key, value in struct.fields.items()}


def encode(props: Props) -> struct_pb2.Struct:
    """Encode properties without nulls: to the engine an absent property and a null one are the same."""
    struct = struct_pb2.Struct()
    struct.update(_without_nulls(props))
    return struct


def has_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return bool(value == UNKNOWN)


def _value(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        fields = decode(value.struct_value)
        signature = fields.get(_SIGNATURE)
        if signature in (_SECRET, _OUTPUT):
            return fields.get("value", UNKNOWN)
        return fields
    if kind == "list_value":
        return [_value(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind in (None, "null_value"):
        return None
    return getattr(value, kind)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value
