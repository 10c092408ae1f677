"""A pod's place in its gang, from the environment that the infrastructure sets (trainer.contract.job.Env)."""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple


class Place(NamedTuple):
    campaign: str
    attempt: int
    node_name: str
    pod_ip: str
    node_rank: int
    node_count: int
    ranks_per_node: int
    rendezvous: str
    """host:port of pod 0."""
    code_digest: str = ""
    image_digest: str = ""

    @property
    def world_size(self) -> int:
        return self.node_count * self.ranks_per_node

    def rank_variables(self, local_rank: int) -> dict[str, str]:
        """Return the variables of one of this node's ranks, by torchrun's names."""
        rank, world = str(self.node_rank * self.ranks_per_node + local_rank), str(self.world_size)
        return {
            "RANK": rank, "LOCAL_RANK": str(local_rank), "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node), "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.node_count), "ROLE_NAME": "default", "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world, "TORCHELASTIC_MAX_RESTARTS": "0",
        }  # fmt: skip

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """Read the place. Raises `ValueError` that names every variable that is missing or not a number."""
        fields, wrong = {}, []
        for name in cls._fields:
            variable = "BIVOUAC_" + name.upper()
            text = environment.get(variable, "")
            number = name in ("attempt", "node_rank", "node_count", "ranks_per_node")
            if (number and not text.isdigit()) or not (text or name.endswith("_digest")):
                wrong.append(variable)
            fields[name] = int(text) if number and text.isdigit() else text
        if wrong:
            raise ValueError("variables are missing or not numbers: " + ", ".join(wrong))
        return cls(**fields)  # type: ignore[arg-type]
