"""The layout of a gang: which ranks share a model's matrices, which a sequence, and which compute other data.

Neighbouring ranks are one group: with `tensor` they hold parts of one model, with `sequence` parts of one sequence. All
ranks of a group read the same sequences; the groups together are the data-parallel dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainer.contract.training import ParallelConfig, WatchConfig

TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}
"""Relative difference of a loss from that of one process, by precision: ranks that share a sequence sum in another
order, and in bfloat16 each sum rounds to 8 bits."""


class Trouble(NamedTuple):
    """Why a layout is refused."""

    field: str
    """Below `training`."""
    message: str
    seen: str
    cure: str


class Heads(NamedTuple):
    """The parts of a model that tensor and sequence parallelism divide among ranks."""

    queries: int
    keys: int
    """Heads of keys and values; less than `queries` with grouped queries."""
    hidden: int
    """Width of the feed-forward part."""
    window: int | None = None
    """Positions that attention looks back; None: all."""


@dataclass(frozen=True)
class Layout:
    world_size: int
    tensor: int = 1
    """Ranks that share each matrix."""
    sequence: int = 1
    """Ranks that share each sequence."""

    @classmethod
    def of(cls, parallel: ParallelConfig | None, world_size: int) -> Layout:
        return cls(world_size, parallel.tensor, parallel.sequence) if parallel else cls(world_size)

    @property
    def group(self) -> int:
        """Ranks that read the same sequences."""
        return self.tensor * self.sequence

    @property
    def data(self) -> int:
        """Groups that read different sequences."""
        return self.world_size // self.group

    @property
    def splits(self) -> bool:
        """No rank computes a sequence alone."""
        return self.group > 1

    @property
    def shards(self) -> tuple[int, int]:
        """What the files of a checkpoint depend on: ZeRO spreads the state over the ranks of all sequence groups."""
        return self.world_size, self.tensor

    def data_rank(self, rank: int) -> int:
        return rank // self.group

    def leads(self, rank: int) -> bool:
        """Return whether a rank is the first of those that read its sequences: sums count each sequence once."""
        return rank % self.group == 0

    def parts(self) -> str:
        """Return the layout in words."""
        kinds = (("data", self.data), ("tensor", self.tensor), ("sequence", self.sequence))
        return " x ".join(f"{size} {kind}" for kind, size in kinds if size > 1 or kind == "data")


def layout_trouble(parallel: ParallelConfig, world_size: int, ranks_per_node: int, zero_stage: int) -> Trouble | None:
    """Return why a gang cannot be laid out like this."""
    tensor, sequence = parallel.tensor, parallel.sequence
    if tensor > 1 and sequence > 1:
        message = "cannot be combined with sequence parallelism"
        finding = f"tensor {tensor}, sequence {sequence}"
        cure = "use one: DeepSpeed's AutoTP replaces the engine's process groups by its own, without Ulysses'"
        return Trouble("parallel.tensor", message, finding, cure)
    if tensor > 1 and zero_stage not in (1, 2):
        cure = "write zero_stage: 1 or 2; with stage 3 DeepSpeed has lost tensors silently"
        return Trouble("parallel.tensor", "needs ZeRO stage 1 or 2", f"zero_stage {zero_stage}", cure)
    for kind, size in (("tensor", tensor), ("sequence", sequence)):
        if world_size % size:
            finding = f"{size} of {world_size} ranks"
            return Trouble(f"parallel.{kind}", "does not divide the ranks", finding, f"write a divisor of {world_size}")
    if ranks_per_node % tensor:
        finding, cure = f"{tensor} of {ranks_per_node} ranks per node", f"write a divisor of {ranks_per_node}"
        return Trouble("parallel.tensor", "reaches beyond a node", finding, cure)
    return None


def model_trouble(parallel: ParallelConfig, heads: Heads, context: int) -> Trouble | None:
    """Return why a model cannot be dealt out like this."""
    divisions = [
        ("tensor", parallel.tensor, "attention heads", heads.queries),
        ("tensor", parallel.tensor, "key heads", heads.keys),
        ("tensor", parallel.tensor, "the feed-forward part's width", heads.hidden),
        ("sequence", parallel.sequence, "attention heads", heads.queries),
        ("sequence", parallel.sequence, "key heads", heads.keys),
        ("sequence", parallel.sequence, "the context", context),
    ]
    for kind, size, part, number in divisions:
        if number % size:
            finding = f"{kind} {size}, {number}"
            return Trouble(f"parallel.{kind}", f"does not divide {part}", finding, f"write a divisor of {number}")
    if parallel.sequence > 1 and heads.window is not None and heads.window < context:
        cure = f"write sequence: 1, a context of {heads.window} or less, or model.config.sliding_window: null"
        finding = f"a window of {heads.window}, a context of {context}"
        return Trouble("parallel.sequence", "knows no sliding window", finding, cure)
    return None


def compile_trouble(zero_stage: int, parallel: ParallelConfig, watch: WatchConfig) -> Trouble | None:
    """Return why layers are not compiled with these settings."""
    reasons = {
        "zero_stage 3": (zero_stage == 3, "gathers weights within a layer"),
        "parallel": (parallel.tensor * parallel.sequence > 1, "exchanges within a layer"),
        "watch.precision_every": (bool(watch.precision_every), "widens each operation within a layer"),
    }
    setting, reason = next(((name, reason) for name, (applies, reason) in reasons.items() if applies), ("", ""))
    if not setting:
        return None
    return Trouble("compile", f"makes one piece of each layer, and {setting} {reason}", "layers", "write none")
