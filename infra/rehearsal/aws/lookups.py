"""Make moto cache lookups that never change, and keep concurrent answers apart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from moto.core import responses, utils
from moto.core.constants import MISSING
from moto.core.loaders import create_loader
from moto.core.responses import BaseResponse
from moto.core.serialize import (
    DEFAULT_ALIAS_PROVIDERS,
    AttributePickerContext,
    ResponseSerializer,
    XFormedAttributePicker,
)
from moto.ec2 import utils as ec2_utils
from moto.ec2.models.core import TaggedEC2Resource
from moto.moto_api._internal import mock_random

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

RULES = "RESPONSE_KEY_PATH_TO_TRANSFORMER"
_KEYS = "bivouac_keys"
"""Attribute of a shape: class of a value -> names under which the value may have this member."""
_HEX_BITS = 4


def _begin(moto: Callable[..., None], response: Any, *args: Any, **kwargs: Any) -> None:
    """Copy the serialization rules: some requests change them, and moto shares them among concurrent answers."""
    setattr(response, RULES, dict(getattr(type(response), RULES)))
    moto(response, *args, **kwargs)


def _tags(moto: Callable[..., Any], resource: Any) -> list[dict[str, str]]:
    """Return the tags of one resource by its id. moto matches every tag of the account with a new pattern."""
    tags = resource.ec2_backend.tags.get(resource.id) or {}
    kind = ec2_utils.EC2_PREFIX_TO_RESOURCE.get(ec2_utils.get_prefix(resource.id), "") if tags else ""
    return [
        {"resource_id": resource.id, "key": key, "value": value, "resource_type": kind}
        for key, value in list(tags.items())
    ]


def _member(moto: Callable[..., Any], serializer: Any, value: Any, key: str, shape: Any) -> Any:
    """Return a member of an answer. Its possible names follow from the shape and the value's class: moto derives them
    for each member of each item of a list."""
    picker = serializer._value_picker
    if type(picker) is not XFormedAttributePicker or picker.alias_providers is not DEFAULT_ALIAS_PROVIDERS:
        return moto(serializer, value, key, shape)
    by_class: dict[tuple[type, str], tuple[str, ...]] = shape.__dict__.setdefault(_KEYS, {})
    names = by_class.get((type(value), key))
    if names is None:
        context = AttributePickerContext(obj=value, key=key, shape=shape)
        names = by_class[type(value), key] = tuple(dict.fromkeys(picker.get_possible_keys(context)))
    found = None
    for name in names:
        candidate = utils.get_value(value, name, MISSING)
        if candidate is not MISSING:
            found = candidate
            break
    if picker.response_transformers:
        path = f"{'.'.join(serializer.path)}.{key}"
        for ending, transform in picker.response_transformers.items():
            if path.endswith(ending):
                return transform(found)
    return found


def _random_hex(size: int = 8) -> str:
    """Return `size` hexadecimal digits, drawn at once: an account begins with thousands of ids of public images."""
    return f"{mock_random.getrandbits(_HEX_BITS * size):0{size}x}"


def install(world: World) -> None:
    wrap(BaseResponse, "__init__", _begin)
    wrap(TaggedEC2Resource, "get_tags", _tags)
    wrap(ResponseSerializer, "get_value", _member)
    ec2_utils.random_resource_id = _random_hex
    # A loader searches the folders of all services before it reads its first model, and moto makes one per model.
    utils.create_loader = functools.cache(create_loader)  # type: ignore[attr-defined]
    # A new cache per world: modules installed later add operations to services.
    responses.method_names_from_class = functools.cache(utils.method_names_from_class)
