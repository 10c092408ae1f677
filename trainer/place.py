"""A pod's place in its gang, from environment variables that the infrastructure sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import TERMINATION_LOG, Env
from trainer.contract.job import TERMINATION_LIMIT_BYTES
from trainer.errors import ConfigError

TERMINATION_LOG_VARIABLE = "BIVOUAC_TERMINATION_LOG"
GENERATION_VARIABLE = "BIVOUAC_GENERATION"
"""The agent sets it for ranks that it starts again in place; unset at the first start."""


@dataclass(frozen=True)
class NodePlace:
    node_name: str
    pod_ip: str
    node_rank: int
    node_count: int
    ranks_per_node: int
    rendezvous: str
    campaign: str
    attempt: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> NodePlace:
        """Read the place. Raises `ConfigError` that names every variable that is missing or not a number."""
        numbers = (Env.NODE_RANK, Env.NODE_COUNT, Env.RANKS_PER_NODE, Env.ATTEMPT)
        texts = (Env.NODE_NAME, Env.POD_IP, Env.RENDEZVOUS, Env.CAMPAIGN)
        wrong = [name for name in texts if not environment.get(name)]
        wrong += [name for name in numbers if not environment.get(name, "").isdigit()]
        if wrong:
            raise ConfigError("variables are missing or not numbers", ", ".join(wrong), "set them in the pod template")
        return cls(
            node_name=environment[Env.NODE_NAME],
            pod_ip=environment[Env.POD_IP],
            node_rank=int(environment[Env.NODE_RANK]),
            node_count=int(environment[Env.NODE_COUNT]),
            ranks_per_node=int(environment[Env.RANKS_PER_NODE]),
            rendezvous=environment[Env.RENDEZVOUS],
            campaign=environment[Env.CAMPAIGN],
            attempt=int(environment[Env.ATTEMPT]),
        )


def generation() -> int:
    """Return which start of the ranks this is within the attempt, from 0."""
    return int(os.environ.get(GENERATION_VARIABLE, "0"))


def termination_log() -> Path:
    return Path(os.environ.get(TERMINATION_LOG_VARIABLE, TERMINATION_LOG))


def write_termination(message: str) -> None:
    """Write the file that the kubelet reads after the container's end. It would cut the JSON of a longer message."""
    content = message.encode()
    if len(content) > TERMINATION_LIMIT_BYTES:
        raise ValueError(f"a termination message of {len(content)} bytes; the kubelet keeps {TERMINATION_LIMIT_BYTES}")
    try:
        with termination_log().open("wb") as file:
            file.write(content)
    except OSError as error:
        # The exit code matters more than the message.
        print(f"the termination message could not be written: {error}", file=sys.stderr)


@dataclass(frozen=True)
class Paths:
    """Mount points; in a pod, the contract's."""

    config: Path
    data: Path
    local: Path
    shared: Path
    run: Path
    """Scratch folder of this pod: heartbeats, logs, the stop file."""
