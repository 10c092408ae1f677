"""moto looks up once what never changes, and answers each request by itself, however many come at once."""

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
    """Some requests change the rules by which their answer is written, and moto has one set of them for a service:
    another request that is answered just then takes them over, or fails."""
    setattr(response, RULES, dict(getattr(type(response), RULES)))
    moto(response, *args, **kwargs)


def install(world: World) -> None:
    wrap(BaseResponse, "__init__", _begin)
    # A loader searches the folders of all services before it reads its first model; moto makes one for each model.
    utils.create_loader = functools.cache(create_loader)  # type: ignore[attr-defined]
    # Anew for each world: the modules that are installed after this one give services more operations.
    responses.method_names_from_class = functools.cache(utils.method_names_from_class)
