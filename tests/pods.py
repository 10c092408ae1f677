"""The manifests of a campaign's pods, as steward and preflight ask for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from infra.archive import archive_job
from infra.campaign import preparing as preparation
from infra.checkpoints import copy_job
from infra.checkpoints.copy_job import COPY, FETCH, CopyJob
from infra.cluster.gang import GangJob, jobset, mpijob
from infra.data import in_cluster
from tests.example import example_spec
from tests.part import part

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:" + "0" * 64


def gang(**changes: Any) -> dict[str, Any]:
    return jobset(gang_job(**changes))


def mpi_gang(**changes: Any) -> dict[str, Any]:
    return mpijob(gang_job(by_mpirun=True, **changes))


def gang_job(**changes: Any) -> GangJob:
    known: dict[str, Any] = {
        "name": "example-1", "campaign": "example", "attempt": 1, "image": IMAGE, "code_digest": "c", "nodes": 2,
        "ranks_per_node": 8, "accelerators": 8, "efa_interfaces": 32,
        "command": ("python", "-m", "trainer.builtin.agent"), "config_map": "c", "grace_seconds": 1,
    }  # fmt: skip
    return GangJob(**known | changes)


def copy(job: CopyJob = COPY) -> dict[str, Any]:
    return copy_job.manifest(job, "example", IMAGE, timedelta(hours=1))


def fetch() -> dict[str, Any]:
    return copy(FETCH)


def archive(workload: bool = False) -> dict[str, Any]:
    return archive_job.manifest(part(archive_job.ArchiveConfig, campaign="example", workload=workload), IMAGE, 8)


def preparing() -> dict[str, Any]:
    data = {"source": "s3://texts/web", "prepare": {"where": "cluster"}}
    work = in_cluster.preparing(example_spec(data=data), "bivouac-data", "0" * 64)
    return preparation.manifest("example", IMAGE, work, timedelta(hours=1))
