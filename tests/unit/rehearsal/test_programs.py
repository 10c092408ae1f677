"""Programs that this machine must have where it stands in for a job's container."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import yaml

from infra.errors import UserError
from infra.rehearsal.site import surroundings
from infra.spec.campaign import Spec
from tests.root import ROOT


def spec(example: str, **changes: Any) -> Spec:
    document = yaml.safe_load((ROOT / f"trainer/examples/{example}/rehearsal.yaml").read_text())
    document["workload"] |= changes
    return Spec.model_validate(document)


def test_a_machine_without_mpirun_refuses_only_what_starts_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    surroundings.refuse_missing_programs(spec("ddp"))
    surroundings.refuse_missing_programs(spec("mpi", rehearsal={"image": "team/job:v1"}))
    with pytest.raises(UserError, match="has no mpirun") as refused:
        surroundings.refuse_missing_programs(spec("mpi"))
    assert "apt-get install openmpi-bin" in (refused.value.cure or "")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/mpirun" if name == "mpirun" else None)
    surroundings.refuse_missing_programs(spec("mpi"))
