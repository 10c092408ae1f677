"""What a pilot checks: the node's health, and for a workload the job's own image; which failures are every node's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import pilot, proving
from infra.campaign.preflight import expectation_of
from infra.campaign.verdicts import of_all
from infra.cluster.gang import GangJob, jobset
from infra.record.events import Stage
from infra.spec.campaign import load
from tests.example import example_spec
from tests.pods import IMAGE, gang_job
from tests.root import ROOT
from trainer.contract import Probe


def checks(file: Path, job_image: str | None) -> list[GangJob]:
    baked = {Stage.BAKE: {"image": IMAGE, "job_image": job_image}}
    context: Any = SimpleNamespace(spec=load(file).spec, outputs=baked)
    return [gang_job(sees_node=True).model_copy(update=changes) for changes in pilot._checks(context)]


def test_a_workloads_own_image_starts_on_the_pilot_with_the_supervisor_in_it() -> None:
    health, own = checks(ROOT / "trainer/examples/ddp/rehearsal.yaml", "their/image@sha256:1")
    assert (health.nodes, health.image, health.command) == (1, IMAGE, proving.health_check("pilot.json"))
    pod = jobset(own)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "their/image@sha256:1"
    assert pod["containers"][0]["command"] == ["python3", "/bivouac/supervisor.pyz", "imports"]
    assert [container["image"] for container in pod["initContainers"]] == [IMAGE]
    assert len(checks(ROOT / "infra/campaigns/rehearsal.yaml", None)) == 1


def test_a_pilot_has_no_fabric_floor_a_short_diagnostic_and_the_trainers_imports() -> None:
    spec = example_spec(preflight={"dcgm_level": 3})
    whole = expectation_of(spec, None, {})
    alone = pilot.for_one_node(spec, whole)
    assert whole.bus_bandwidth_gb_s > 0 and alone.bus_bandwidth_gb_s == 0
    assert (alone.dcgm_level, alone.imports) == (1, ("torch", "deepspeed")) and whole.imports == ()
    assert alone.efa_devices == 32 and alone.gpus == whole.gpus


@pytest.mark.parametrize(
    ("name", "everyones"),
    [
        ("import deepspeed", True), ("version driver", True), ("mount /data", True),
        ("mount /shared-checkpoints", True), ("start", True), ("mount /local-checkpoints", False), ("ecc", False),
        ("all_reduce", False),
    ],
)  # fmt: skip
def test_one_nodes_failure_tells_of_all_where_they_share_the_cause(name: str, everyones: bool) -> None:
    assert of_all(Probe(name=name, ok=False, seen="", wanted="")) is everyones
