"""The gang that the steward asks for, by its configuration."""

from __future__ import annotations

import json

import yaml

from infra.cluster.fitness import NodeFacts
from infra.spec.campaign import Spec
from infra.steward import gangs
from tests.part import part
from tests.root import ROOT
from tests.unit.steward.steward_story import config
from trainer.contract.workload import WorkloadConfig


def test_a_gang_is_what_the_configuration_says() -> None:
    told = config()
    made = gangs.gang(told, 3, "files")
    assert gangs.labels(told, 3) == {"bivouac.dev/campaign": "story", "bivouac.dev/attempt": "3"}
    assert gangs.job(told, 3) == made.name == "story-a3"
    assert (made.campaign, made.attempt, made.config_map) == ("story", 3, "files")
    assert (made.image, made.code_digest, made.nodes, made.grace_seconds) == ("i@sha256:0", "c", 2, 1)
    assert (made.ranks_per_node, made.accelerators, made.efa_interfaces, made.efa_by_claim) == (1, 0, 0, False)
    assert not made.each_to_its_end and not made.sees_node
    addons = told.spec.addons.model_copy(update={"efa": "dra"})
    by_claim = told.model_copy(update={"spec": told.spec.model_copy(update={"addons": addons})})
    assert gangs.gang(by_claim, 3, "files").efa_by_claim


def test_the_gang_is_told_where_in_the_network_each_node_is() -> None:
    def node(name: str, *network: str) -> NodeFacts:
        return part(NodeFacts, name=name, network=network)

    told = config()
    assert gangs.files(told, [node("a"), node("b")]) == told.gang_files
    files = gangs.files(told, [node("a", "nn-1", "nn-2"), node("b"), node("c", "nn-1", "nn-3")])
    assert json.loads(files.pop("topology.json")) == {"a": ["nn-1", "nn-2"], "c": ["nn-1", "nn-3"]}
    assert files == told.gang_files


def test_a_gang_with_secrets_is_told_where_they_lie() -> None:
    plain = config()
    assert not gangs.gang(plain, 3, "files").secrets and set(plain.gang_files) == set(plain.job_files) == {"train.json"}
    document = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())
    document["workload"]["secrets"] = {"TOKEN": {"secret": "team/all", "key": "token"}, "KEY": {"parameter": "/k"}}
    spec = Spec.model_validate(document)
    workload = part(WorkloadConfig, identity="me")
    told = plain.model_copy(update={"spec": spec, "train": None, "workload": workload})
    assert gangs.gang(told, 3, "files").secrets and gangs.gang(told, 3, "files").secret_keys == ()
    assert not gangs.gang(told, 3, "files").pull_secret
    assert set(told.gang_files) == {"workload.json", "secrets.json"} and set(told.job_files) == {"workload.json"}
    assert json.loads(told.gang_files["secrets.json"]) == {
        "region": "us-east-1",
        "secrets": {"TOKEN": {"secret": "team/all", "key": "token"}, "KEY": {"parameter": "/k"}},
    }


def test_in_an_existing_cluster_a_secret_is_one_of_the_namespace() -> None:
    document = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())
    job = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())["workload"]
    secrets = {"TOKEN": {"secret": "hugging-face", "key": "token"}, "KEY": {"secret": "keys"}}
    spec = Spec.model_validate({**document, "training": None, "data": None, "workload": {**job, "secrets": secrets}})
    workload = part(WorkloadConfig, identity="me")
    told = config().model_copy(update={"spec": spec, "train": None, "workload": workload})
    made = gangs.gang(told, 3, "files")
    assert made.secrets and made.secret_keys == (("TOKEN", "hugging-face", "token"), ("KEY", "keys", "KEY"))


def test_what_mpirun_starts_is_an_mpi_job_under_the_same_name_and_its_judge_is_none() -> None:
    told = config()
    spec = Spec.model_validate(yaml.safe_load((ROOT / "trainer/examples/mpi/rehearsal.yaml").read_text()))
    by_mpi = told.model_copy(update={"spec": spec, "train": None, "workload": part(WorkloadConfig, identity="me")})
    made = gangs.gang(by_mpi, 3, "files")
    assert made.by_mpirun and made.name == "mpi-a3" and not gangs.gang(told, 3, "files").by_mpirun
    assert not gangs.judge(by_mpi, 1, "files").by_mpirun
