"""What a workload asks of registry, network and NCCL: what is refused, what is warned of, what the job gets."""

from __future__ import annotations

from typing import Any

from infra.plan.checks import check, failed
from infra.plan.job_config import workload_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import SpecError
from tests.unit.spec import test_workload
from tests.unit.spec.test_workload import ARN, warned

spec = test_workload.spec


def test_a_job_in_its_nodes_network_is_warned_of_with_what_that_opens(spec: Any) -> None:
    assert "workload.host_network" not in warned(spec())
    opened = warned(spec(host_network=True))["workload.host_network"]
    assert "its node's role in AWS" in opened and "secrets" in opened


def test_a_login_is_for_the_image_of_a_registry_that_is_no_ecr(spec: Any) -> None:
    def errors(target: str, image: str | None, **login: str) -> list[str]:
        top = {"target": target, **({"rehearsal": None} if target == "aws" else {})}
        try:
            file = spec(top=top, pull_secret=login, **({"image": image} if image else {}))
        except SpecError as wrong:
            return [problem.message for problem in wrong.problems]
        found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        return [f"{one.field}: {one.seen}" for one in found if failed((one,)) and "secret" in one.field]

    assert errors("aws", "nvcr.io/team/job:v1", secret="bivouac_pull") == []
    away = ARN.replace("us-east-1", "eu-west-1") + "a-AbC123"
    assert errors("aws", "nvcr.io/team/job:v1", secret=away) == [f"workload.pull_secret.secret: {away}"]
    assert errors("rehearsal", "nvcr.io/team/job:v1", secret="a") == ["workload.rehearsal.secrets: pull_secret"]
    ecr = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/job:v1"
    for image in (None, ecr):
        assert ["role" in error for error in errors("aws", image, secret="a")] == [True]
    assert ["whole text" in error for error in errors("aws", "nvcr.io/team/job:v1", secret="a", key="b")] == [True]


def test_a_setting_of_nccl_is_documented_and_leaves_efa_alone(spec: Any) -> None:
    def told(nodes: str = "p5.48xlarge", **nccl: str) -> dict[str, tuple[bool, str]]:
        file = spec(nccl=nccl, top={"nodes": {"count": 2, "instance_type": nodes}})
        found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        return {one.field: (failed((one,)), one.cure) for one in found if one.field.startswith("workload.nccl")}

    assert told(NCCL_DEBUG="INFO", FI_EFA_USE_HUGE_PAGE="0", OFI_NCCL_FORCE_NUM_RAILS="4", NCCL_CROSS_NIC="1") == {}
    misspelt = told(NCCL_CROSSNIC="1", FI_EFA_USE_HUGEPAGE="0", FI_QUITE_OTHER="1")
    assert all(refused for refused, _ in misspelt.values()) and len(misspelt) == 3
    assert misspelt["workload.nccl.NCCL_CROSSNIC"][1].startswith("write NCCL_CROSS_NIC;")
    assert misspelt["workload.nccl.FI_EFA_USE_HUGEPAGE"][1].startswith("write FI_EFA_USE_HUGE_PAGE;")
    assert "workload.env" in misspelt["workload.nccl.FI_QUITE_OTHER"][1]
    against = {"NCCL_NET": "Socket", "FI_PROVIDER": "tcp", "NCCL_SOCKET_NTHREADS": "4"}
    assert {name: refused for name, (refused, _) in told(**against).items()} == {
        f"workload.nccl.{name}": True for name in against
    }
    assert told("g6.2xlarge", **against) == {}
    assert [refused for refused, _ in told(NCCL_BUFFSIZE="1").values()] == [False], "advised against, no more"


def test_settings_of_nccl_reach_the_job_beside_its_variables(spec: Any) -> None:
    found = spec(nccl={"NCCL_DEBUG": "WARN"}, env={"A": "1"}).spec
    config = workload_config(found, make_plan(found, survey(found)), "d", "s", "me")
    assert config.env == {"A": "1", "NCCL_DEBUG": "WARN"}
