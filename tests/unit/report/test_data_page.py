"""The page about a prepared data set, and the recipe that a spec's section `data` stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.cli.data.prepare import _of_arguments
from infra.data.dataset import load
from infra.errors import UserError
from infra.report.data_page import data_page, histogram
from infra.spec.campaign import Data, Spec
from infra.spec.recipe import folder_of, recipe_of
from tests.root import ROOT
from trainer.builtin.data.prepare.prepare import make
from trainer.contract import Parameters
from trainer.contract.recipe import Recipe, Source, parse_source

SPEC = ROOT / "infra" / "campaigns" / "rehearsal.yaml"


def spec(**data: object) -> Spec:
    from infra.spec.campaign import load as read

    plain = read(SPEC).spec.model_dump(mode="json")
    return Spec.model_validate(plain | {"data": data})


def test_the_page_has_counts_licence_reasons_and_samples_and_escapes_the_text(tmp_path: Path) -> None:
    rows = [f"<script>alert({n})</script> words of document {n} " * 10 for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in [*rows, *rows[:7], " "]))
    source = Source(name="web", location=str(tmp_path / "a.jsonl"), licence="CC0-1.0", origin="a crawl of 2026")
    recipe = Recipe(sources=(source,), parameters=Parameters(held_out=0.2, seed=1), vocabulary=290)
    manifest = make(recipe, tmp_path / "out", lambda stage, part: None, cores=1)
    page = data_page(load(tmp_path / "out"))
    for wanted in ("CC0-1.0", "a crawl of 2026", f"{manifest.train_tokens:,}", "duplicate", "the very text of an"):
        assert wanted in page
    assert "&lt;script&gt;alert(" in page and "<script>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_a_histogram_has_a_column_for_each_doubling_from_the_shortest_to_the_longest() -> None:
    drawn = str(histogram([0, 0, 3, 0, 5, 0]))
    assert drawn.count("<rect") == 3 and "4 to 7 tokens: 3 documents" in drawn and "16 to 31 tokens: 5" in drawn
    assert str(histogram([0, 0])) == ""


def test_a_mixtures_weights_change_the_order_and_not_the_prepared_data() -> None:
    def mixed(first: float) -> Spec:
        rows = [("web", "s3://texts/web", first), ("code", "/srv/code", 1.0)]
        return spec(mixture=[{"name": name, "source": where, "weight": weight} for name, where, weight in rows])

    assert folder_of(mixed(1.0)) == folder_of(mixed(3.0))
    assert [source.location for source in recipe_of(mixed(1.0)).sources] == ["s3://texts/web", "/srv/code"]


@pytest.mark.parametrize("data", [{}, {"source": "/a", "mixture": [{"name": "a", "source": "/a", "weight": 1}]}])
def test_a_spec_names_one_source_or_a_mixture(data: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either `source` or `mixture`"):
        Data.model_validate(data)


@pytest.mark.parametrize(
    ("argument", "name", "weight", "location"),
    [
        ("/srv/text", "text", None, "/srv/text"),
        ("web=/srv/text", "web", None, "/srv/text"),
        ("web@2.5=s3://b/k=v/", "web", 2.5, "s3://b/k=v/"),
        ("s3://b/date=2026", "text", None, "s3://b/date=2026"),
        ("./a=b/c", "text", None, "./a=b/c"),
    ],
)
def test_a_source_of_the_command_line_has_a_name_and_a_weight_when_they_are_given(
    argument: str, name: str, weight: float | None, location: str
) -> None:
    found = parse_source(argument, 0, "*", "", "")
    assert (found.name, found.weight, found.location) == (name, weight, location)


def test_two_sources_of_one_name_are_refused() -> None:
    given = {"places": ["x"], "pattern": "*", "licence": "", "origin": "", "held_out": 0.1, "seed": 1}
    given |= {"vocabulary": 300, "tokenizer": None, "end_of_document": None}
    with pytest.raises(UserError, match="share a name"):
        _of_arguments(given, ["a=/x", "a=/y"])
