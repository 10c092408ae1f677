"""The steward's configuration, one JSON file in its pod, written by the launch stage."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from infra.plan.estimates.cost import CostLine
from infra.plan.purchase import SCALE_DOWN
from infra.record.payloads.outputs import BakeOutput
from infra.spec.campaign import Spec
from infra.spec.checkpoint import LONGEST_INTERVAL
from infra.spec.secrets import SecretSources
from trainer.contract import CONFIG_FILE, TrainConfig
from trainer.contract.frozen import Frozen
from trainer.contract.workload import SECRET_SOURCES, WORKLOAD_CONFIG, WorkloadConfig

CONFIG_NAME = "steward.json"
CONFIG_PATH = f"/config/{CONFIG_NAME}"
STEWARD_LEASE = "steward"
LEASE_TTL = timedelta(seconds=15)
LONGEST_SILENCE = timedelta(minutes=50)
"""After so long without a steward AWS's own schedule ends the GPU nodes: when a closer has done so, where builds run
(`infra.campaign.closing.SILENT`, and the time between two of its looks)."""


def config_map(version: int) -> str:
    """Return the name of a version's config map: each version has its own, so a pod never sees another's."""
    return "steward" if version == 0 else f"steward-{version}"


def config_key(version: int) -> str:
    """Return the key in the campaign's record, from which a lost deployment is restored."""
    return f"steward/{version}.json"


class Changed(Frozen):
    """One field of the spec that a relaunch changes; values as JSON."""

    field: str
    old: str
    new: str


class Relaunch(Frozen):
    """The reason for a new configuration; the steward records it when it adopts the configuration."""

    diff: tuple[Changed, ...]
    digest: str
    """Digest of the spec."""
    who: str
    bake: BakeOutput


class StewardConfig(Frozen):
    version: int = 0
    relaunch: Relaunch | None = None
    """None for the first configuration."""
    identity: str = ""
    """The campaign's identity beyond its name; empty in configurations older than the field."""
    spec: Spec
    train: TrainConfig | None = None
    """Of the built-in trainer."""
    workload: WorkloadConfig | None = None
    """Of a job of somebody else's, instead."""
    image: str
    """The trainer image by digest."""
    steward_image: str | None = None
    """The image of the steward itself by digest; None in configurations older than it, whose steward has the
    trainer's."""
    job_image: str | None = None
    """A workload's own image by digest, if it has one."""
    code_digest: str
    image_manifest: str
    """Key of the image manifest in the state bucket."""
    ranks_per_node: int
    accelerators: int
    efa_interfaces: int
    grace_seconds: int
    deadline: datetime
    base_usd_per_hour: Decimal
    """Costs without any GPU node."""
    node_usd_per_hour: Decimal
    lines: tuple[CostLine, ...] = ()
    """The plan's cost, for the meter; empty only in configurations older than it, which have older stewards."""
    interval_and_archive: timedelta
    archive: timedelta
    state_bucket: str
    archive_bucket: str
    closer: str | None = None
    """Digest of the code with which the closer ends the campaign; None: it is older than the closer."""
    archive_every: timedelta = LONGEST_INTERVAL
    """Interval between copies of the newest committed checkpoint to S3."""
    poll: timedelta = timedelta(seconds=0.5)

    @property
    def nodes_until(self) -> datetime:
        """The deadline, or the earlier time at which EKS begins to remove the nodes of a capacity block."""
        block_end = self.spec.nodes.block_end
        return self.deadline if block_end is None else min(self.deadline, block_end - SCALE_DOWN)

    @property
    def steps(self) -> int:
        return self.spec.job.steps

    @property
    def shared_tier(self) -> str:
        """`s3://bucket/prefix` of the shared tier; empty where it is a file system."""
        return "" if self.train is None else self.train.shared_tier

    @property
    def judges(self) -> bool:
        """Return whether code of the job's own evaluates or exports its newest checkpoint."""
        return self.workload is not None and self.workload.judging is not None

    @property
    def judging(self) -> timedelta:
        """Part of `archive` for the job's own evaluation and export."""
        return self.spec.runtime.judging

    @property
    def bare_archive(self) -> timedelta:
        """Time of the archive without them."""
        return max(timedelta(), self.archive - self.judging)

    @property
    def job_files(self) -> dict[str, str]:
        """Files of the config map that the job's pods, and the archive's, mount at `/config`."""
        if self.train is not None:
            return {CONFIG_FILE.rpartition("/")[2]: self.train.model_dump_json(indent=1)}
        assert self.workload is not None, "a configuration is of the built-in trainer or of a workload"
        return {WORKLOAD_CONFIG: self.workload.model_dump_json(indent=1)}

    @property
    def gang_files(self) -> dict[str, str]:
        """Files of the config map that the gang's pods mount: the job's, and where its secrets lie."""
        if not self.spec.secrets:
            return self.job_files
        sources = SecretSources(region=self.spec.region, secrets=self.spec.secrets)
        return {**self.job_files, SECRET_SOURCES: sources.model_dump_json(indent=1, exclude_none=True)}
