"""`bivouac init` writes specs that pass `check`; `bivouac schema` takes the specs that the product ships."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from infra.cli.main import app
from infra.cli.prepare.checked import checked
from infra.cli.prepare.init import slug
from infra.plan.checks import failed
from tests.root import ROOT
from tests.terminal import on_terminal

SHIPPED = sorted((ROOT / "infra/campaigns").glob("*.yaml"))
AWS = ["--target=aws", "--account=111122223333", "--zone=us-east-1b", "--email=a@example.com", "--data=s3://text/web"]
AWS += ["--api-cidr=203.0.113.7/32"]
BLOCK = ["--capacity=capacity-block", "--reservation=cr-0123456789abcdef0", "--block-fee=4000", "--block-hourly=41.61"]


def init(path: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["init", str(path), *options])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--steps", "40", "--owner", "ann", "--nodes", "3"),
        (*AWS, "--nodes", "4"),
        (*AWS, "--capacity", "spot", "--instance-type", "p4d.24xlarge"),
        (*AWS, "--budget", "45000", "--deadline", "2d", "--nodes", "16"),
        (*AWS, *BLOCK, "--instance-type", "p5en.48xlarge", "--nodes", "4"),
    ],
)
def test_what_init_writes_passes_check(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "mine.yaml"
    code, words = init(path, *options)
    assert code == 0 and f"bivouac plan {path}" in words.replace("\n", ""), words
    seen = checked(path)
    assert seen.spec is not None and seen.spec.campaign == "mine" and not failed(seen.findings), seen.findings
    assert not [finding for finding in seen.findings if finding.field.startswith("money.deadline")], (
        "it leaves room for the plan"
    )


def test_words_that_yaml_reads_as_something_else_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "0123.yaml"
    code, words = init(path, "--name", "true-or", "--owner", "0123", "--data", str(tmp_path / "a: b # c"))
    assert code == 64 and "a: b # c" in words, "the folder is looked for by its whole name"
    (tmp_path / "a: b # c").mkdir()
    (tmp_path / "a: b # c" / "text").write_text("word " * 2_000_000)
    assert init(path, "--name", "true-or", "--owner", "0123", "--data", str(tmp_path / "a: b # c"))[0] == 0
    document = yaml.safe_load(path.read_text())
    assert (document["owner"], document["data"]["source"]) == ("0123", str(tmp_path / "a: b # c"))


def test_a_budget_that_was_not_given_covers_the_plan_to_its_deadline(tmp_path: Path) -> None:
    init(tmp_path / "mine.yaml", *AWS, "--nodes", "8")
    money = yaml.safe_load((tmp_path / "mine.yaml").read_text())["money"]
    assert 8 * 55 < money["budget_usd"] < 20_000, "eight nodes cost 55 USD an hour each, for hours"


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine: already")
    done = CliRunner().invoke(app, ["init", str(path)])
    assert done.exit_code != 0 and "already" in str(done.exception) and path.read_text() == "mine: already"


def test_a_file_that_is_there_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine: already")
    code, shown = on_terminal(
        [sys.executable, "-m", "infra.cli.main", "init", str(path), "--target", "aws"], "", os.environ, ROOT
    )
    assert code == 64 and "there is a file already" in shown and "AWS account" not in shown


def test_answers_that_make_no_campaign_are_told_and_write_nothing(tmp_path: Path) -> None:
    code, words = init(tmp_path / "mine.yaml", "--target", "aws", "--region", "us-esat-1")
    assert code == 64 and "account" in words and "us-esat-1" in words and not list(tmp_path.iterdir())
    assert "nothing was written" in words


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(CliRunner().invoke(app, ["schema"]).output)
    jsonschema.Draft202012Validator.check_schema(document)
    return document


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_takes_what_the_product_ships_and_refuses_a_mistake(path: Path, schema: dict[str, Any]) -> None:
    spec, validator = yaml.safe_load(path.read_text()), jsonschema.Draft202012Validator(schema)
    validator.validate(spec)
    for section, field, value in (("money", "deadline", 16), ("money", "dedline", "16h"), ("nodes", "count", "two")):
        wrong = {**spec, section: {**spec[section], field: value}}
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


def test_the_schema_says_what_a_field_means(schema: dict[str, Any]) -> None:
    assert "Most that the campaign may cost" in schema["$defs"]["Money"]["properties"]["budget_usd"]["description"]


def test_a_name_is_made_of_what_a_campaign_may_be_called(tmp_path: Path) -> None:
    for name, campaign in {"My Run_2": "my-run-2", "0123-x": "x", "é": "campaign", "a" * 30: "a" * 20}.items():
        assert slug(name) == campaign
    code, words = init(tmp_path / "My Run.yaml", "--owner", "ann")
    assert code == 0 and "the campaign is called my-run" in words
    assert yaml.safe_load((tmp_path / "My Run.yaml").read_text())["campaign"] == "my-run"


def test_each_answer_is_judged_when_it_is_given_and_asked_again_until_it_fits(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    answers = ["12345", "111122223333", "eu-west-1a", "", "p9.huge", "", "a@example.com", "300.0.0.0/8",
               "203.0.113.7/32", str(tmp_path / "none"), "s3://text/web"]  # fmt: skip
    code, shown = on_terminal(
        [sys.executable, "-m", "infra.cli.main", "init", str(path), "--target", "aws"],
        "".join(f"{answer}\n" for answer in answers), os.environ, ROOT,
    )  # fmt: skip
    assert code == 0, shown
    for question, times in {"AWS account": 2, "Availability zone": 2, "Instance type": 2, "Range that": 2,
                            "Where the text lies": 2, "Email address": 1}.items():  # fmt: skip
        assert shown.count(question) == times, (question, shown)
    spec = yaml.safe_load(path.read_text())
    assert (spec["account"], spec["zone"], spec["data"]["source"]) == ("111122223333", "us-east-1a", "s3://text/web")
