"""The configuration of a workload's supervisor, `/config/workload.json`, which launch writes from the spec."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

WORKLOAD_CONFIG = "workload.json"
"""Name of the file, in the gang's config map and in the archive."""
SUPERVISOR = "/bivouac/supervisor.pyz"
"""The supervisor in a workload's container; an init container puts it there."""
WORKSPACE = "/workspace"
"""The job's code, and where it starts."""
SECRET_SOURCES = "secrets.json"
"""Name of the file beside `WORKLOAD_CONFIG` that says where the job's secrets lie; it holds no value."""
SECRETS = "/bivouac-secrets/values.json"
"""Variable -> value, as JSON in the pod's memory; an init container fetches them."""


def source_name(sha256: str) -> str:
    """Return the name of the packed code on the data mount: a relaunch with changed code lays its own beside."""
    return f"source-{sha256[:16]}.tar"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SealedCheckpoints(_Part):
    format: str
    """A key of `trainer.supervisor.formats.FORMATS`."""
    folder: str
    """Where the job writes, on the shared tier."""
    keep: int = Field(ge=1)
    """Sealed steps that stay."""


class WorkloadConfig(_Part):
    identity: str
    """The campaign's identity beyond its name."""
    launcher: str
    """`torchrun` or `none`."""
    command: tuple[str, ...]
    """Words after the launcher's own; for `none`, the whole command."""
    env: dict[str, str]
    secrets: tuple[str, ...] = ()
    """Variables whose values are in the file `SECRETS`."""
    folder: str
    """Where the command starts."""
    source: str = ""
    """The packed code; empty: the image has all."""
    source_digest: str = ""
    """Its SHA-256."""
    checkpoints: SealedCheckpoints
    progress: str = "lines"
    """`lines` or `client`."""
    pattern: str | None = None
    """Regular expression of the lines that tell a step; None: JSON lines."""
    steps: int = Field(ge=1)
    save_every: int = Field(ge=1)
    """Steps between checkpoints that the plan recommends."""
    grace_s: float = Field(gt=0)
    """Seconds from SIGTERM to SIGKILL of the job."""
    config_digest: str
    """SHA-256 of the spec's section."""
    data_digest: str = ""
