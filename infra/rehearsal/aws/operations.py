"""Tools to add missing operations to moto's services, as plain functions from parameters to a result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse

from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]
Handler = Callable[[Parameters], Mapping[str, Any] | None]
"""Input -> output of an operation, with the names of the AWS model; None means empty output."""


class AwsError(ServiceException):
    """`code` is botocore's `Error.Code`, for instance FileSystemNotFound."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)


class ServicePart:
    """What the emulator adds to a service, and has no state but its world's."""

    def __init__(self, world: World) -> None:
        self.world = world


def add_operations(world: World, response: type[BaseResponse], handlers: Mapping[str, Handler]) -> None:
    """Add or replace operations of a service, by their snake-case names."""
    for name, handler in handlers.items():
        setattr(response, name, _operation(world, handler))


def add_backend(world: World, response: type[BaseResponse], backend: object) -> None:
    """Add what an object answers: its public methods `verb_noun(self, params)` are operations of the service."""
    names = [name for name, member in vars(type(backend)).items() if _is_operation(name, member)]
    add_operations(world, response, {name: getattr(backend, name) for name in names})


def _is_operation(name: str, member: Any) -> bool:
    if not inspect.isfunction(member) or "_" not in name.lstrip("_") or name.startswith("_"):
        return False
    return list(inspect.signature(member).parameters) == ["self", "params"]


def _operation(world: World, handler: Handler) -> Callable[[Any], ActionResult]:
    def operation(self: Any) -> ActionResult:
        if not self.automated_parameter_parsing:
            self.parse_parameters(self.normalized_request)
        with world.lock:
            world.request_region = self.region
            return ActionResult(handler(dict(self.params)))

    return operation


def tag_dict(tags: list[dict[str, str]] | None, key: str = "Key", value: str = "Value") -> dict[str, str]:
    return {tag[key]: tag.get(value, "") for tag in tags or []}


def tag_list(tags: Mapping[str, str], key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    return [{key: k, value: v} for k, v in tags.items()]


def specified_tags(params: Parameters) -> dict[str, str]:
    specifications = params.get("TagSpecifications") or []
    return {tag["Key"]: tag["Value"] for specification in specifications for tag in specification["Tags"]}


def matches(filters: list[dict[str, Any]] | None, facts: Mapping[str, Any], tags: Mapping[str, str]) -> bool:
    """Return True if a resource passes an EC2 filter list; `facts` holds its values by filter name."""
    for item in filters or []:
        name, values = item["Name"], [str(value) for value in item.get("Values", [])]
        if name == "tag-key":
            present = list(tags)
        elif name.startswith("tag:"):
            present = [tags[name[4:]]] if name[4:] in tags else []
        elif name in facts:
            present = [str(facts[name])]
        else:
            raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
        if not set(present) & set(values):
            return False
    return True


_around: dict[tuple[type, str, str], Callable[..., Any]] = {}


def wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Call `around(original, self, ...)` instead of moto's method; a later world replaces an earlier one's."""
    key = (owner, name, f"{wrapper.__module__}.{wrapper.__qualname__}")
    wrapped_before = key in _around
    _around[key] = wrapper
    if wrapped_before:
        return
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return _around[key](original, *args, **kwargs)

    setattr(owner, name, method)
