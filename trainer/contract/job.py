"""The interface of a training pod: environment, paths, status, termination message."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field, FiniteFloat

from trainer.contract.culprit import RankSeen
from trainer.contract.frozen import Frozen
from trainer.contract.unrecognised import Unrecognised

CONFIG_FILE = "/config/train.json"
TOPOLOGY_NAME = "topology.json"
"""File beside it: node name -> its place in the network, from the top layer down."""
DATA_MOUNT = "/data"
LOCAL_CHECKPOINTS = "/local-checkpoints"
SHARED_CHECKPOINTS = "/shared-checkpoints"
NODE_TOLD = "/node"
"""Files that the node writes about itself, mounted read-only in the health check's pods."""
SPOT_NOTICE, REBALANCE_NOTICE = (f"{NODE_TOLD}/{name}.json" for name in ("instance-action", "rebalance"))
"""What EC2's metadata service says of a spot node's end, as the node's service `bivouac-spot-notices` writes it."""
KERNEL_LOG = f"{NODE_TOLD}/kernel.log"
"""The kernel's lines about GPUs and their switches, since the node's start."""
AGENT_PORT = 8471
"""The agent's HTTP port on the pod IP: `/status` (JSON, `Status`), `/metrics` (Prometheus), `/healthz`."""


class Env(StrEnum):
    """Environment variables that the infrastructure sets in every training pod."""

    CAMPAIGN = "BIVOUAC_CAMPAIGN"
    ATTEMPT = "BIVOUAC_ATTEMPT"
    NODE_NAME = "BIVOUAC_NODE_NAME"
    POD_IP = "BIVOUAC_POD_IP"
    NODE_RANK = "BIVOUAC_NODE_RANK"
    """0-based index of the pod in the gang (the Job's completion index)."""
    NODE_COUNT = "BIVOUAC_NODE_COUNT"
    RANKS_PER_NODE = "BIVOUAC_RANKS_PER_NODE"
    RENDEZVOUS = "BIVOUAC_RENDEZVOUS"
    """host:port of pod 0 by its headless-service name."""
    CODE_DIGEST = "BIVOUAC_CODE_DIGEST"
    IMAGE_DIGEST = "BIVOUAC_IMAGE_DIGEST"


class Phase(StrEnum):
    STARTING = "starting"
    RESTORING = "restoring"
    TRAINING = "training"
    SAVING = "saving"
    EVALUATING = "evaluating"
    FINISHING = "finishing"


Count = Annotated[int, Field(ge=0, le=10**15)]
"""Steps, tokens and the like: what no job reaches is no answer."""
Name = Annotated[str, Field(max_length=512)]
Measure = Annotated[float | None, AfterValidator(lambda value: value if math.isfinite(value or 0) else None)]
"""One that is no number is not known."""
MOST_RANKS = 4096
"""Of one node."""


class RankStatus(Frozen):
    rank: Count
    alive: bool
    step: Count
    heartbeat_age_s: FiniteFloat


class StepFigures(Frozen):
    """A step in numbers, equal on all ranks; None: not known there. Seconds are means over the ranks."""

    norm: float | None = None
    """Norm of all gradients before clipping."""
    rate: float | None = None
    """Learning rate."""
    loss_scale: float = 1.0
    tokens_per_second: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    """`trainer.builtin.watch.figures` has both formulas."""
    memory_gib: float | None = None
    """Most that one rank has ever used: of the accelerator, without one of the host."""
    data_s: float | None = None
    compute_s: float | None = None
    """Forward and backward, with what communication they hide."""
    communication_s: float | None = None
    optimizer_s: float | None = None
    checkpoint_s: float | None = None
    """Stall of a save between the last step and this one."""
    layers: dict[str, float] = {}
    """Group of layers -> norm of its gradients."""
    slowest_rank: int | None = None
    slowest_ratio: float | None = None
    """Its forward time / the median over the ranks."""


Share = Annotated[float, Field(ge=0.0, le=1.0)]


class NodeReadings(Frozen, extra="ignore"):
    """What an agent reads of its node; None: not known."""

    corrected: Count | None = None
    """Memory errors that ECC has corrected on its GPUs since the driver was loaded."""
    is_throttled: bool | None = None
    """A GPU lowers its clocks for heat."""
    local_free: Share | None = None
    """Of the local tier's disk."""
    shm_free: Share | None = None
    """Of the pod's `/dev/shm`. What a reading has more is for `/metrics` alone."""


class SpotNotice(Frozen, extra="ignore"):
    """EC2's word that it takes a spot node: `action` at `due`, or without them that it may."""

    action: Name = ""
    due: AwareDatetime | None = None


class Status(Frozen):
    """The answer of `/status`."""

    campaign: Name
    attempt: Count
    generation: Count = 0
    """Restarts in place of this attempt: with each, steps go back to a checkpoint."""
    node: Name
    phase: Phase
    step: Count
    """Optimizer steps finished by the slowest local rank; 0 before the first."""
    steps: Count
    """Optimizer steps planned."""
    committed_step: Annotated[int, Field(ge=-1, le=10**15)]
    """Step of the newest checkpoint committed on this node, -1 before the first."""
    tokens: Count
    loss: Measure
    step_seconds: Measure
    """Duration of the last step."""
    data_wait_seconds: Measure = None
    """Total wait for data since training began, of the local rank that waited longest."""
    figures: StepFigures | None = None
    """Of the last step; None before the first, and for a job of one's own."""
    alarms: Count = 0
    """Alarms of the watch in this attempt."""
    ranks: tuple[RankStatus, ...] = Field(max_length=MOST_RANKS)
    seen: tuple[RankSeen, ...] = Field(default=(), exclude_if=lambda seen: not seen, max_length=MOST_RANKS)
    """What tells a rank at fault from those that wait for it; empty while all run and none has left a dump."""
    unrecognised: Unrecognised | None = Field(default=None, exclude_if=lambda content: content is None)
    """What lies in the job's folder and is no checkpoint that its format recognises. None: nothing, or not looked."""

    readings: NodeReadings | None = Field(default=None, exclude_if=lambda readings: readings is None)
    """Of the node; None before the first, and from an older agent."""

    notice: SpotNotice | None = Field(default=None, exclude_if=lambda notice: notice is None)

    def rank_views(self) -> tuple[RankSeen, ...]:
        """Return all that is told of the ranks, also while none is frozen and none has left a dump."""
        plain = (
            RankSeen(rank=rank.rank, step=rank.step, phase=self.phase, age_s=rank.heartbeat_age_s)
            for rank in self.ranks
        )
        return self.seen or tuple(plain)


class Termination(Frozen):
    """The JSON termination message of a training pod (at most 4096 bytes)."""

    exit_code: int
    reason: str
    attempt: int
    node: str
    step: int
    committed_step: int
    signal: int | None = None
    rank: int | None = None
    """The rank that failed first, if any."""
    detail: str = ""
    ranks: tuple[RankSeen, ...] = ()
    """What the node knows of each of its ranks, for the search over all nodes; empty from an older trainer."""


def grace_seconds(collective_timeout_s: float) -> int:
    """Return the seconds from SIGTERM to SIGKILL of a training pod: time for an emergency save, or a check warns."""
    return max(60, int(2 * collective_timeout_s))
