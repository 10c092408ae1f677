"""The sections of `workload` that hold plain values."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from infra.spec.duration import Duration
from infra.spec.section import Section


def _is_a_pattern(text: str) -> str:
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if "step" not in groups:
        raise ValueError("needs a group named `step`, such as `step (?P<step>[0-9]+)`")
    return text


class JobCheckpoints(Section):
    """Checkpoints that the job writes by itself. The supervisor seals finished ones with digests."""

    format: Literal[
        "auto", "dcp", "huggingface", "accelerate", "lightning", "megatron", "deepspeed", "marker", "client"
    ] = "auto"
    """How a finished checkpoint is recognised, at any depth of the job's folder. `auto`: by all that follows, and files
    of state such as `ckpt.pt` or `ckpt_30.pt`, alone or in a folder of the step. `dcp` (folders with `.metadata`),
    `huggingface` (`checkpoint-N`), `accelerate` (`save_state`), `lightning` (`.ckpt`), `megatron` and `deepspeed`
    (their tracker files), `marker` (a file `DONE` written last in a folder whose name ends in the step, or
    `ckpt_30.pt.done` beside a file), `client` (the job calls `bivouac.committed`, which counts with any format)."""
    tier: Literal["shared", "local"] = "shared"
    """Where the job writes: into one folder on the shared file system, or on each node's own NVMe disk. From there its
    files are copied to the shared tier beside the training; a checkpoint counts once all nodes' files are there. What
    ends a checkpoint is written on node 0, and no two nodes write different files of one name."""
    keep: int = Field(default=3, ge=1)
    """Sealed checkpoints that stay on the shared tier."""
    keep_local: int = Field(default=2, ge=1)
    """Sealed checkpoints that stay on each node's disk, with tier `local`."""


class JobProgress(Section):
    """How the job's steps are known."""

    by: Literal["lines", "client"] = "lines"
    """From what the job prints, or from its calls of `bivouac.beat`."""
    pattern: Annotated[str, AfterValidator(_is_a_pattern)] | None = None
    """A regular expression with a group `step`, and `loss` and `tokens` if the line has them. None: JSON lines."""


class Estimates(Section):
    """Figures of plan and check until the job has been measured."""

    steps: int = Field(ge=1)
    """Steps of the whole training, about: a job that has trained and exits 0 is done (`ends`)."""
    step_seconds: float = Field(gt=0)
    """Time of one step."""
    checkpoint_gib: float = Field(default=1.0, gt=0)
    """Size of one checkpoint."""
    tflop_per_step: float | None = Field(default=None, gt=0)
    """Floating-point operations of one step on all accelerators, in 10^12. None: plan states no MFU."""


class Resources(Section):
    """Resources that a pod requests of its node besides all GPUs."""

    cpu: float | None = Field(default=None, gt=0)
    """Processors. None: no more than Kubernetes needs to place the pod."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory."""
    shm_gib: float | None = Field(default=None, gt=0)
    """Limit of `/dev/shm`, which counts as the pod's memory. None: half of the node's memory."""


class SmallMachine(Section):
    """Settings that differ in a rehearsal."""

    image: str | None = None
    """Image in the emulated account's registry. None: the trainer image stands in, with its Python and torch."""
    args: tuple[str, ...] | None = None
    """Arguments instead of `args`."""
    env: dict[str, str] = Field(default={})
    """Variables beside, or instead of, those of `env`."""
    mounts: dict[str, str] = Field(default={})
    """Folders of this machine by the names of `mounts`: the emulated S3 gets their files."""
    init_from: str | None = None
    """A small folder of this machine in place of the weights of `init_from`."""
    secrets: str | None = None
    """A file on this machine with the values of the workload's secrets, a line `NAME=value` each, and of its
    `pull_secret`, as `workload.pull_secret={...}`. They go into the emulated account, from where they are read as on
    AWS. The packed source leaves this file out."""
    estimates: Estimates | None = None
    """Figures of the rehearsal."""


class Evaluate(Section):
    """The job's own evaluation, after the last step, in its own container on one node."""

    command: tuple[str, ...] = Field(min_length=1)
    """Program and its words. The last JSON line with numbers that it prints, such as `{"loss": 2.13}`, has the metrics.
    It evaluates the folder `BIVOUAC_EXPORT` where that is set, else the checkpoint `BIVOUAC_RESUME_FROM`."""
    tolerance: float = Field(default=0.01, ge=0)
    """Largest relative difference between a metric of the checkpoint and that of its export."""
    limit: Duration = timedelta(minutes=15)
    """Time for one run; with `export` there are two. Plan and deadline count them whole."""


class Export(Section):
    """Another form of the weights, which the job's own code makes of the checkpoint and the archive keeps beside it."""

    command: tuple[str, ...] = Field(min_length=1)
    """Program and its words. It writes into the empty folder `BIVOUAC_EXPORT`, from `BIVOUAC_RESUME_FROM`."""
    limit: Duration = timedelta(minutes=15)
    """Time for it. Plan and deadline count it whole."""
