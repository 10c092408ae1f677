"""A pod's place in its gang, from environment variables that the infrastructure sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError
from trainer.supervisor.place import Place

GENERATION_VARIABLE = "BIVOUAC_GENERATION"
"""The agent sets it for ranks that it starts again in place; unset at the first start."""


def place_of(environment: Mapping[str, str]) -> Place:
    """Read a pod's place. Raises `ConfigError` that names every variable that is missing or not a number."""
    try:
        return Place.from_environment(environment)
    except ValueError as error:
        raise ConfigError("the pod's place is not told", str(error), "set them in the pod template") from error


def generation() -> int:
    """Return which start of the ranks this is within the attempt, from 0."""
    return int(os.environ.get(GENERATION_VARIABLE, "0"))


@dataclass(frozen=True)
class Paths:
    """Mount points; in a pod, the contract's."""

    config: Path
    data: Path
    local: Path
    shared: Path
    run: Path
    """Scratch folder of this pod: heartbeats, logs, the stop file."""
