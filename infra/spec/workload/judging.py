"""The spec's sections `workload.evaluate` and `workload.export`: the job's own judgement of what is archived."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from infra.spec.duration import Duration
from infra.spec.section import Section


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
