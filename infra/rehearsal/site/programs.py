"""Programs of a job's container for which, in a rehearsal without an image of its own, this machine stands in."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from infra.errors import UserError
from infra.spec.workload.workload import by_mpirun

if TYPE_CHECKING:
    from infra.spec.campaign import Spec


def refuse_missing(spec: Spec) -> None:
    """Raise `UserError` if the job starts with a program that this machine lacks."""
    if by_mpirun(spec.workload) and spec.job_image is None and shutil.which("mpirun") is None:
        raise UserError(
            "this machine, which stands in for the job's container, has no mpirun",
            seen="launcher mpirun",
            cure="apt-get install openmpi-bin, or name an image with Open MPI 4 in workload.rehearsal.image",
        )
