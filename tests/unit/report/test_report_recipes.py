"""The commands on the page are commands that exist: parsed by the programs that they name."""

from __future__ import annotations

import ast
import importlib
import shlex

import pytest

from infra.archive.manifest import DATA, EXPORT
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.report.build import build
from infra.report.page import render
from infra.spec.campaign import load
from tests.root import ROOT
from tests.unit.conftest import CAMPAIGNS
from tests.unit.report.campaign_story import SITE, whole
from trainer.builtin import evaluate

SPEC = load(CAMPAIGNS / "rehearsal.yaml").spec


def commands() -> list[str]:
    golden = build(whole().record(SPEC, make_plan(SPEC, survey(SPEC)), 192.0, site=SITE)).golden
    assert golden is not None
    return [recipe.commands for recipe in golden.recipes]


def test_the_trainer_takes_the_arguments_of_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(line for text in commands() for line in text.splitlines() if "trainer.builtin.evaluate" in line)
    _, _, _, *arguments = shlex.split(line)
    monkeypatch.setattr("sys.argv", ["evaluate", *arguments])
    options = evaluate._parse()
    assert (str(options.checkpoint), str(options.config), str(options.data)) == ("golden", "train.json", "data")


def test_a_restore_takes_the_step_that_is_golden() -> None:
    from typer.main import get_command

    from infra.cli.main import app

    line = next(line for text in commands() for line in text.splitlines() if line.startswith("bivouac checkpoints"))
    _, _, _, *arguments = shlex.split(line)
    restore = get_command(app).commands["checkpoints"].commands["restore"]  # type: ignore[attr-defined]
    params = restore.make_context("restore", arguments).params
    assert (params["place"], str(params["out"]), params["step"]) == ("rehearsal", ".", 110)


def test_what_the_python_lines_import_exists() -> None:
    text = next(text for text in commands() if text.startswith("python - <<") and "trainer" in text)
    tree = ast.parse(text.split("\n", 1)[1].rsplit("\nEND", 1)[0])
    imported = [
        (node.module, name.name) for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    assert len(imported) == 4
    assert all(hasattr(importlib.import_module(str(module)), name) for module, name in imported)


def test_files_are_fetched_from_where_the_archive_put_them() -> None:
    root = "s3://bivouac-archive-123456789012-us-east-1/campaigns/rehearsal"
    text = next(text for text in commands() if "aws s3 cp" in text)
    sources = [shlex.split(line)[-2] for line in text.splitlines() if line.startswith("aws")]
    assert sources == [f"{root}/train.json", f"{root}/{DATA}/", f"{root}/{EXPORT}/"]
    assert "mv step-00000110 golden" in text


@pytest.mark.parametrize(
    ("recorded", "reference", "proof", "proven"),
    [
        (2.5, 2.5, "recorded in training", True),
        (None, 2.5, "evaluated before upload", True),
        (None, 2.5000000000000004, "evaluated before upload", False),
    ],
)
def test_the_page_says_which_evaluation_proves_it(
    recorded: float | None, reference: float, proof: str, proven: bool
) -> None:
    story = whole()
    for event in story.events:
        if event.kind == "archive.verified":
            event.data.update(
                proof=proof,
                recorded_evaluation_loss=recorded,
                reference_evaluation_loss=reference,
                restored_evaluation_loss=2.5,
            )
    made = build(story.record(SPEC, make_plan(SPEC, survey(SPEC)), 192.0, site=SITE))
    assert made.golden is not None and made.golden.proven is proven
    html = render(made)
    assert (f"equals, exactly, that {proof}" in html) is proven
    bad = [notice for notice in made.notices if "archived checkpoint" in notice.text]
    assert bool(bad) is not proven


def test_the_page_says_that_a_tolerance_was_used() -> None:
    story = whole()
    for event in story.events:
        if event.kind == "archive.verified":
            event.data.update(
                proof="recorded in training, within the stated tolerance", recorded_evaluation_loss=2.5,
                reference_evaluation_loss=2.5, restored_evaluation_loss=2.502, tolerance=0.001,
            )  # fmt: skip
    made = build(story.record(SPEC, make_plan(SPEC, survey(SPEC)), 192.0, site=SITE))
    assert made.golden is not None and made.golden.near and not made.golden.proven
    (notice,) = [notice for notice in made.notices if "archived checkpoint" in notice.text]
    assert (
        notice.level == "warning"
        and "2.502; 2.5, recorded in training, within the stated tolerance: 0.001" in notice.text
    )
    assert "equals, exactly" not in render(made)


def test_the_page_shows_what_the_jobs_evaluation_says_and_where_its_export_lies() -> None:
    spec, story = load(ROOT / "trainer/examples/ddp/rehearsal.yaml").spec, whole()
    proof = "evaluated by the job's own command, its export within the tolerance"
    for event in story.events:
        if event.kind == "archive.verified":
            event.data.update(
                recorded_evaluation_loss=None, reference_evaluation_loss=None, restored_evaluation_loss=None,
                proof=proof, metrics={"loss": 2.13, "top": 0.5}, export_metrics={"loss": 2.14, "top": 0.5},
                tolerance=0.01, export="export/0123456789ab",
            )  # fmt: skip
    made = build(story.record(spec, make_plan(spec, survey(spec)), 192.0, site=SITE))
    assert made.golden is not None and made.golden.metrics == {"loss": 2.13, "top": 0.5}
    page = render(made)
    assert "its export within the tolerance, 0.01 of each metric" in page
    assert '<td>loss</td><td class="number">2.13</td><td class="number">2.14</td>' in page
    (fetch,) = [recipe.commands for recipe in made.golden.recipes if "aws s3" in recipe.commands]
    assert fetch.endswith("/campaigns/rehearsal/export/0123456789ab/ export/")
    assert not [notice for notice in made.notices if "archive" in notice.text]


def test_a_bad_evaluation_by_the_job_is_told_with_the_step_that_is_safe() -> None:
    story = whole()
    for index, event in enumerate(story.events):
        if event.kind == "archive.verified":
            failed = {"kind": "archive.failed", "data": {"error": "no finite number: loss: nan", "step": 110}}
            story.events[index] = event.model_copy(update=failed)
    made = build(story.record(SPEC, make_plan(SPEC, survey(SPEC)), 192.0, site=SITE))
    (said,) = [notice.text for notice in made.notices if notice.text.startswith("The archive failed")]
    assert "loss: nan" in said and "Step 110 is in it all the same, every byte read back." in said
