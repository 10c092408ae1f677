"""CloudWatch log groups with their class, which moto leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.logs.models import LogGroup

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World


def _describe(moto: Callable[..., dict[str, Any]], group: LogGroup) -> dict[str, Any]:
    return moto(group) | {"logGroupClass": "STANDARD"}


def install(world: World) -> None:
    wrap(LogGroup, "to_describe_dict", _describe)
