"""The program's own MPIJob definition against the operator's, and the image that stands for the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from infra.folders import share_dir
from infra.plan import catalogue
from infra.rehearsal.nodelet.pods.images import PUBLIC, ImageStore, PullError
from infra.rehearsal.plugins.kubernetes import objects
from infra.toolchain.ensure import ensure
from infra.toolchain.table import MPI_OPERATOR
from tests.example import example_spec
from tests.graph.engine import campaign_graph

TAKEN_AS_IT_COMES = {"template", "schedulingPolicy", "status"}
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def bare(schema: Any) -> Any:
    """Without descriptions, and with what the program's own definition leaves open."""
    if not isinstance(schema, dict):
        return schema
    plain = {key: bare(value) for key, value in schema.items() if key not in ("description", "properties")}
    if "properties" in schema:
        plain["properties"] = {
            name: ANYTHING if name in TAKEN_AS_IT_COMES else bare(value) for name, value in schema["properties"].items()
        }
    return plain


@pytest.mark.nightly
def test_the_definition_of_an_mpi_job_is_the_operators_own() -> None:
    ensure(["mpi-operator"])
    theirs = yaml.safe_load((share_dir("mpi-operator") / "kubeflow.org_mpijobs.yaml").read_text())["spec"]
    graph = campaign_graph(example_spec(addons={"mpi_operator": True}))
    ours = objects.as_served(graph.one("CustomResourceDefinition", "mpi-operator").inputs)["spec"]
    versions = [(theirs.pop("versions"), ours.pop("versions"))]
    assert ours == theirs
    for [known], [made] in versions:
        assert made["schema"]["openAPIV3Schema"] == bare(known["schema"]["openAPIV3Schema"])
        assert {**made, "schema": None} == {**known, "schema": None}


def test_the_operator_of_a_rehearsal_is_the_version_that_a_campaign_pins() -> None:
    pin = catalogue.operators()["mpi-operator"]
    assert pin.version == MPI_OPERATOR and pin.reference(None) in PUBLIC


def test_a_definitions_own_words_and_other_objects_survive_the_way_there_and_back() -> None:
    schema = {"x_kubernetes_list_map_keys": ["a_b"], "properties": {"snake_case": {"type": "string"}}}
    definition = {"kind": "CustomResourceDefinition", "spec": schema}
    served = objects.as_served(definition)
    assert set(served["spec"]) == {"x-kubernetes-list-map-keys", "properties"}
    assert served["spec"]["properties"] == schema["properties"] and objects.as_declared(served) == definition
    settings = {"kind": "ConfigMap", "data": {"x_kubernetes_mode": "on", "x-kubernetes-mode": "off"}}
    assert objects.as_served(settings) == objects.as_declared(settings) == settings


def test_a_public_image_is_the_tool_that_was_built_and_nothing_where_none_was(tmp_path: Path) -> None:
    (reference,) = PUBLIC
    tools = tmp_path / "bin"
    tools.mkdir()
    store = ImageStore(tmp_path / "images", "us-east-1", Mock(), tools)
    with pytest.raises(PullError, match="ensure mpi-operator"):
        store.pull(reference)
    (tools / "mpi-operator").write_text("the program")
    image = store.pull(reference)
    (bind,) = image.binds()
    assert (bind.target, image.entrypoint) == ("/opt", ["/opt/mpi-operator"])
    assert (bind.source / "mpi-operator").read_text() == "the program"
    with pytest.raises(PullError, match="ECR"):
        store.pull("docker.io/library/nginx:1")
