"""The commands on the page are commands that exist: parsed by the programs that they name."""

from __future__ import annotations

import ast
import importlib
import shlex

import pytest

from infra.plan import make_plan
from infra.reporting import build
from infra.spec import load
from infra.survey import survey
from tests.unit.campaign_story import SITE, whole
from tests.unit.conftest import CAMPAIGNS
from trainer import evaluate

SPEC = load(CAMPAIGNS / "rehearsal.yaml").spec


def commands() -> list[str]:
    golden = build(whole().record(SPEC, make_plan(SPEC, survey(SPEC)), 192.0, site=SITE)).golden
    assert golden is not None
    return [recipe.commands for recipe in golden.recipes]


def test_the_trainer_takes_the_arguments_of_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(line for text in commands() for line in text.splitlines() if "trainer.evaluate" in line)
    _, _, _, *arguments = shlex.split(line)
    monkeypatch.setattr("sys.argv", ["evaluate", *arguments])
    options = evaluate._parse()
    assert (str(options.checkpoint), str(options.config), str(options.data)) == ("golden", "train.json", "data")


def test_data_are_prepared_again_with_the_parameters_of_the_spec() -> None:
    from typer.main import get_command

    from infra.cli import app

    line = next(line for text in commands() for line in text.splitlines() if line.startswith("bivouac data prepare"))
    _, _, _, *arguments = shlex.split(line)
    prepare = get_command(app).commands["data"].commands["prepare"]  # type: ignore[attr-defined]
    given = prepare.make_context("prepare", arguments).params
    data = SPEC.data
    assert (given["pattern"], given["max_files"], given["seed"]) == (data.pattern, data.max_files, data.seed)
    assert (given["held_out"], given["vocabulary"]) == (data.held_out, SPEC.training.model.vocabulary)


def test_what_the_python_lines_import_exists() -> None:
    text = next(text for text in commands() if text.startswith("python - <<"))
    tree = ast.parse(text.split("\n", 1)[1].rsplit("\nEND", 1)[0])
    imported = [
        (node.module, name.name) for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    assert len(imported) == 4
    assert all(hasattr(importlib.import_module(str(module)), name) for module, name in imported)


def test_files_are_fetched_from_where_the_archive_put_them() -> None:
    root = "s3://bivouac-archive-123456789012-us-east-1/campaigns/rehearsal"
    text = next(text for text in commands() if "aws s3 cp" in text)
    sources = [shlex.split(line)[-2] for line in text.splitlines()]
    assert sources[:2] == [f"{root}/golden/step-00000110/", f"{root}/train.json"]
    assert sources[2] == f"s3://bivouac-data-123456789012-us-east-1/datasets/{'5b' * 32}/"
