"""One dial derives the rest, each value with formula and source; what a spec gives itself stays."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from infra.cli.prepare.check import schema
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import Spec, SpecError
from infra.spec.models import dial
from infra.spec.training import Training
from trainer.contract.model.shape import parameters

DERIVED = ("model", "global_batch", "steps", "optimizer")


def turned(**fields: Any) -> Training:
    return Training.model_validate(fields)


def test_the_compute_of_gopher_gives_chinchilla() -> None:
    """Hoffmann et al. trained Chinchilla, 70B on 1.4T tokens, with Gopher's 5.76e23 FLOP."""
    training = turned(compute="5.76e23")
    assert parameters(training.model) == pytest.approx(70e9, rel=0.03)
    tokens = training.steps * training.global_batch * training.model.context
    assert tokens == pytest.approx(1.4e12, rel=0.03)


def test_the_compute_of_deepseek_7b_counted_on_paper() -> None:
    """At 1e20 FLOP, DeepSeek LLM's equation 1: ln 1e20 = 46.0517; x 0.3271 = 15.0635, e^ = 3,483,350, x 0.2920 =
    1,017,100 tokens; x -0.1250 = -5.7565, e^ = 0.0031623, x 0.3118 = 0.00098600."""
    values = {value.field: value for value in dial.derived_values(turned(compute=1e20))}
    assert values["optimizer.learning_rate"].value == 0.000986
    assert "1.017e+06 tokens" in values["global_batch"].formula
    assert values["global_batch"].value == 512  # 1,017,100 / 2,048 = 496.6
    assert values["optimizer.minimum_learning_rate"].value == 0.0000986


@pytest.mark.parametrize("size", ["30M", "125M", "1.3B", "7B", "70B", 4e8])
def test_the_model_is_near_the_parameters_that_are_asked_for(size: Any) -> None:
    training = turned(parameters=size)
    wanted = {"30M": 30e6, "125M": 125e6, "1.3B": 1.3e9, "7B": 7e9, "70B": 70e9}.get(size, size)
    assert parameters(training.model) == pytest.approx(
        wanted, rel=0.12 if wanted < 1e8 else 0.06 if wanted < 1e9 else 0.03
    )
    assert training.model.width % (2 * training.model.heads) == 0
    tokens = training.steps * training.global_batch * training.model.context
    assert 20 * parameters(training.model) <= tokens < 20 * parameters(training.model) * 1.01 + 2**21


def test_what_the_spec_gives_itself_stays_and_the_rest_follows() -> None:
    free = turned(compute=1e20)
    training = turned(compute=1e20, global_batch=64, optimizer={"learning_rate": 0.5}, model={"context": 512})
    assert (training.global_batch, training.optimizer.learning_rate, training.model.context) == (64, 0.5, 512)
    assert training.model.layers == free.model.layers
    assert training.steps == pytest.approx(1e20 / (6 * parameters(training.model)) / (64 * 512), abs=1)
    one = turned(compute=1e20, model={"layers": 3})
    assert one.model.layers == 3 and one.model.width == free.model.width
    assert one.steps == pytest.approx(
        1e20 / (6 * parameters(one.model)) / (one.global_batch * one.model.context), abs=1
    ), "what follows is of the model as it is"


def test_a_named_model_takes_a_compute_budget() -> None:
    training = turned(model="qwen3-8b", compute=1e22)
    # 1e22 / (6 x 8,190,735,360) = 2.03482e11 tokens
    tokens = training.steps * training.global_batch * training.model.context
    assert tokens == pytest.approx(2.03482e11, rel=1e-3)


def test_the_record_of_a_derived_training_is_the_training() -> None:
    for fields in ({"parameters": "1.3B"}, {"compute": 1e21}, {"compute": 1e21, "model": "debug"}):
        training = turned(**fields)
        assert Training.model_validate_json(training.model_dump_json()) == training


def test_plan_prints_each_formula_with_its_source(spec_file: Any) -> None:
    spec: Spec = spec_file({"training.parameters": "30M", **dict.fromkeys(f"training.{name}" for name in DERIVED)}).spec
    assert spec.training is not None and spec.training.parameters == 30e6
    plan = make_plan(spec, survey(spec))
    said = {one.name: one for one in plan.work if one.name.startswith("dial: ")}
    assert len(said) == 10
    for one in said.values():
        assert "arXiv" in one.formula, one
    assert float(said["dial: optimizer.learning_rate"].value) == spec.training.optimizer.learning_rate
    own = spec_file({"training.parameters": "30M"}).spec
    others = {one.name: one for one in make_plan(own, survey(own)).work}
    for name, held in (("steps", own.training.steps), ("global_batch", own.training.global_batch)):
        assert f"the spec has {held} instead" in others[f"dial: {name}"].formula
    assert f"the spec has {own.training.model.layers} instead" in others["dial: model.layers"].formula


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"parameters": "1B", "compute": 1e20, "steps": 1, "global_batch": 1}, "either `parameters` or `compute`"),
        ({"parameters": "1B", "model": "debug", "steps": 1, "global_batch": 1}, "with a name give `compute`"),
        ({"parameters": "many", "steps": 1, "global_batch": 1}, "valid number"),
        ({"parameters": -5}, "greater than 0"),
        ({"parameters": "1B", "optimizer": 5}, "optimizer"),
        ({"compute": 1e20, "model": "no-such-model", "steps": 1, "global_batch": 1}, "no model has this name"),
    ],
)
def test_two_dials_or_none_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        turned(**fields)


def test_a_compute_budget_is_read_from_a_file_and_known_to_editors(spec_file: Any) -> None:
    spec = spec_file({"training.compute": 1e21}).spec
    assert spec.training.compute == 1e21
    form = {"$defs": schema()["$defs"], "$ref": "#/$defs/Training"}
    for fine in ({"compute": 1e21}, {"parameters": "7B"}, {"steps": 5, "global_batch": 4}):
        jsonschema.validate(json.loads(json.dumps(fine)), form)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"steps": 5}, form)
    with pytest.raises(SpecError, match="out of range"):
        spec_file({"training.compute": 1e31})


def test_warm_up_and_least_rate_follow_from_what_the_spec_gives() -> None:
    made = turned(parameters="125M", steps=200, optimizer={"learning_rate": 1e-5})
    assert (made.optimizer.warmup_steps, made.optimizer.minimum_learning_rate) == (10, 1e-6)
