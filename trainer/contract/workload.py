"""The configuration of a workload's supervisor, `/config/workload.json`, which launch writes from the spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.contract.frozen import Frozen

WORKLOAD_CONFIG = "workload.json"
"""Name of the file, in the gang's config map and in the archive."""
SUPERVISOR = "/bivouac/supervisor.pyz"
"""The supervisor in a workload's container; an init container puts it there."""
WORKSPACE = "/workspace"
"""The job's code, and where it starts."""
SECRET_SOURCES = "secrets.json"
"""Name of the file beside `WORKLOAD_CONFIG` that says where the job's secrets lie; it holds no value."""
MPI_KEYS = "/bivouac-mpi"
"""Where the MPI operator puts the key with which the nodes of one attempt know each other."""
SECRETS = "/bivouac-secrets/values.json"
"""Variable -> value, as JSON in the pod's memory; an init container fetches them."""


EXPORTS = "/bivouac-export"
"""Where a workload's evaluation pod writes: `EXPORT_FOLDER`, on the shared tier beside the campaign's checkpoints."""
EXPORT_FOLDER = "export"
EXPORTED, JUDGEMENT = "model", "judgement.json"
"""In that folder: what the job has exported, and the `Judgement`."""
EVALUATE = "evaluate"
"""Word after the supervisor's name that makes it evaluate instead of train."""
IMPORTS = "imports"
"""Word after the supervisor's name that makes it tell what the image's Python is and imports, and end."""
STAGING_SOURCES = "/bivouac-mounts"
"""Folder of the container with the mounts that are staged."""
STAGED = "staged"
"""Folder of a node's disk with the copies."""
INIT_FOLDER = "init-from"
"""Folder below `DATA_MOUNT` with weights that came from the driver's machine."""


def source_name(sha256: str) -> str:
    """Return the name of the packed code on the data mount: a relaunch with changed code lays its own beside."""
    return f"source-{sha256[:16]}.tar"


def requirements_name(sha256: str) -> str:
    """Return the name of the packed packages there."""
    return f"requirements-{sha256[:16]}.tar"


class SealedCheckpoints(Frozen, allow_inf_nan=False):
    format: str
    """A key of `trainer.supervisor.formats.FORMATS`."""
    folder: str
    """Where the job writes."""
    tier: Literal["shared", "local"] = "shared"
    """Where that folder lies: on the file system that all nodes mount, or on each node's own disk."""
    keep: int = Field(ge=1)
    """Sealed steps that stay on the shared tier."""
    keep_local: int = Field(default=2, ge=1)
    """Sealed steps that stay on each node's disk, of tier `local`."""


class JudgingConfig(Frozen, allow_inf_nan=False):
    """What the job's own code does with the newest sealed checkpoint when training is over."""

    evaluate: tuple[str, ...] = ()
    """Command; empty: none."""
    evaluate_s: float = Field(default=1, gt=0)
    """Time for one run."""
    tolerance: float = Field(default=0, ge=0)
    """Largest relative difference of a metric between checkpoint and export."""
    export: tuple[str, ...] = ()
    export_s: float = Field(default=1, gt=0)


class ExportedFile(Frozen, allow_inf_nan=False):
    name: str
    """Path below `EXPORTED`."""
    size_bytes: int = Field(ge=0)
    sha256: str


class Judgement(Frozen, allow_inf_nan=False):
    """What came of it. The supervisor's termination message tells the digest of this file."""

    step: int
    """Step of the checkpoint; -1: none was sound."""
    why: str = ""
    """What failed, in a sentence; empty: all went well."""
    metrics: dict[str, float] = {}
    """Of the checkpoint, by the job's evaluation."""
    exported: dict[str, float] | None = None
    """The same of its export; None where nothing is exported or evaluated."""
    files: tuple[ExportedFile, ...] = ()


class WorkloadConfig(Frozen, allow_inf_nan=False):
    identity: str
    """The campaign's identity beyond its name."""
    launcher: str
    """`torchrun`, `mpirun` or `none`."""
    command: tuple[str, ...]
    """Words after the launcher's own; for `none`, the whole command."""
    warm: tuple[str, ...] = ()
    """Modules that are imported once per node, before the ranks are forked; none: each rank imports its own."""
    env: dict[str, str]
    secrets: tuple[str, ...] = ()
    """Variables whose values are in the file `SECRETS`."""
    folder: str
    """Where the command starts."""
    source: str = ""
    """The packed code; empty: the image has all."""
    source_digest: str = ""
    """Its SHA-256."""
    requirements: str = ""
    """The packed packages that the job brings; empty: none."""
    requirements_digest: str = ""
    requirements_python: str = ""
    """The Python, as `3.12`, that they were chosen for."""
    checkpoints: SealedCheckpoints
    progress: str = "lines"
    """`lines` or `client`."""
    pattern: str | None = None
    """Regular expression of the lines that tell a step; None: JSON lines."""
    steps: int = Field(ge=1)
    ends: Literal["estimated", "exact"] = "estimated"
    """Whether exit code 0 before the last step is an end, or a failure."""
    save_every: int = Field(ge=1)
    """Steps between checkpoints that the plan recommends."""
    grace_s: float = Field(gt=0)
    """Seconds from SIGTERM to SIGKILL of the job."""
    init_from: str = ""
    """Where the weights to start from lie; empty: none."""
    staged: dict[str, int] = {}
    """Mounts that are copied to the node's disk before the job starts -> their largest size in bytes."""
    staging: tuple[str, str] = (STAGING_SOURCES, "")
    """Folders with the mounts that are copied, and with the copies."""
    judging: JudgingConfig | None = None
    config_digest: str
    """SHA-256 of the spec's section."""
    data_digest: str = ""
