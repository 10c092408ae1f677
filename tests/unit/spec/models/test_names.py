"""A model's name is resolved once; what is wrong with it is said with its cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.plan.job_config import train_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import Spec, SpecError
from infra.spec.models.named import catalogue
from tests.tables import Table

TABLE = Table(__file__)

CONFIG = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_name_alone_is_a_model_with_all_its_values(spec_file: Any) -> None:
    model = spec_file({"training.model": "llama-3.1-8b"}).spec.training.model
    assert (model.layers, model.width, model.heads, model.vocabulary, model.context) == (32, 4096, 32, 128256, 8192)
    assert model.config["rope_scaling"]["factor"] == 8.0 and model.config["num_key_value_heads"] == 8


def test_every_name_of_the_catalogue_has_its_source(spec_file: Any) -> None:
    for name, entry in catalogue().items():
        assert entry["source"] and entry["context"] <= entry["config"]["max_position_embeddings"]
        assert spec_file({"training.model": name}).spec.training.model.name == name


def test_a_value_of_its_own_changes_the_model(spec_file: Any) -> None:
    given = {"name": "debug", "context": 64, "vocabulary": 4096, "config": {"num_hidden_layers": 5}}
    model = spec_file({"training.model": given}).spec.training.model
    assert (model.layers, model.vocabulary, model.config["vocab_size"], model.context) == (5, 4096, 4096, 64)


def test_a_folder_is_read_once_and_the_record_needs_it_no_more(folder: Path, spec_file: Any) -> None:
    spec = spec_file({"training.model": str(folder)}).spec
    assert spec.training.model.layers == 3 and spec.training.model.context == 128
    (folder / "config.json").unlink()
    again = Spec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert train_config(again, make_plan(again, survey(again)), "d" * 64).model == spec.training.model


def test_a_function_needs_its_number_of_parameters(spec_file: Any) -> None:
    given = {"name": "package.models:mine", "parameters": 1_000_000, "vocabulary": 4096, "context": 128}
    spec = spec_file({"training.model": given}).spec
    assert make_plan(spec, survey(spec)).figure("parameters").value == 1_000_000


@TABLE.cases
def test_what_cannot_be_is_refused_with_its_cure(model: Any, said: str, spec_file: Any) -> None:
    with pytest.raises(SpecError) as refused:
        spec_file({"training.model": model})
    assert said in str(refused.value)


def test_layers_of_one_kind_each_are_cut_with_the_model(tmp_path: Path, spec_file: Any) -> None:
    values = CONFIG | {"model_type": "qwen3", "layer_types": ["full_attention"] * 3}
    (tmp_path / "config.json").write_text(json.dumps(values))
    two = spec_file({"training.model": {"name": str(tmp_path), "config": {"num_hidden_layers": 2}}})
    assert two.spec.training.model.config["layer_types"] == ["full_attention"] * 2
    with pytest.raises(SpecError, match="3 layer_types for 4 layers"):
        spec_file({"training.model": {"name": str(tmp_path), "config": {"num_hidden_layers": 4}}})


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"rope_theta": 5e5}, "write rope_parameters"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "write rope_parameters"),
        ({"num_key_value_heads": 0}, "above 0"),
        ({"head_dim": -1}, "above 0"),
    ],
)
def test_values_that_would_not_be_read_or_cannot_be_are_refused(
    own: dict[str, Any], said: str, tmp_path: Path, spec_file: Any
) -> None:
    values = CONFIG | {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(SpecError, match=said):
        spec_file({"training.model": {"name": str(tmp_path), "config": own}})
