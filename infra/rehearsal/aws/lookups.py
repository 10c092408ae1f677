"""Make moto cache lookups that never change, and keep concurrent answers apart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from moto.core import responses, utils
from moto.core.loaders import create_loader
from moto.core.responses import BaseResponse

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

RULES = "RESPONSE_KEY_PATH_TO_TRANSFORMER"


def _begin(moto: Callable[..., None], response: Any, *args: Any, **kwargs: Any) -> None:
    """Copy the serialization rules: some requests change them, and moto shares them among concurrent answers."""
    setattr(response, RULES, dict(getattr(type(response), RULES)))
    moto(response, *args, **kwargs)


def install(world: World) -> None:
    wrap(BaseResponse, "__init__", _begin)
    # A loader searches the folders of all services before it reads its first model, and moto makes one per model.
    utils.create_loader = functools.cache(create_loader)  # type: ignore[attr-defined]
    # A new cache per world: modules installed later add operations to services.
    responses.method_names_from_class = functools.cache(utils.method_names_from_class)
