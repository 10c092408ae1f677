"""A spec whose shape is wrong in places: the rules still judge all the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.cli.prepare.checked import checked
from infra.plan.survey import BYTES_PER_TOKEN, data_source
from tests.example import example_spec
from tests.root import ROOT

BASE = (ROOT / "tests/unit/base.yaml").read_text()


def told(tmp_path: Path, *changes: tuple[str, str]) -> set[tuple[str, str]]:
    """Errors as (rule, field)."""
    text = BASE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    return {(finding.rule, finding.field) for finding in checked(path).findings if finding.level == "error"}


def test_a_short_owner_hides_no_rule(tmp_path: Path) -> None:
    assert told(tmp_path, ("owner: newcomer", "owner: x"), ("10.42.0.0/16", "8.8.0.0/16")) == {
        ("shape", "owner"),
        ("network-range", "network.cidr"),
    }


def test_a_section_that_is_none_hides_only_what_hangs_on_it(tmp_path: Path) -> None:
    content = yaml.safe_load(BASE)
    content["nodes"], content["zone"], content["training"]["global_batch"] = "two", "us-west-2a", 12
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(content))
    found = {(finding.rule, finding.field) for finding in checked(path).findings if finding.level == "error"}
    assert found == {("shape", "nodes"), ("zone-in-region", "zone")}


def test_a_broken_field_is_not_judged_by_its_default(tmp_path: Path) -> None:
    """The default deadline of seven days would be a warning of its own."""
    content = yaml.safe_load(BASE)
    content["money"]["deadline"] = "soon"
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(content))
    assert {finding.rule for finding in checked(path).findings if finding.field == "money.deadline"} == {"shape"}


def test_data_without_a_source_and_with_a_field_that_is_none_raise_no_exception(tmp_path: Path) -> None:
    content = yaml.safe_load(BASE)
    content["data"], content["zone"] = {"sources": "python:stdlib"}, "us-west-2a"
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(content))
    found = {(finding.rule, finding.field) for finding in checked(path).findings if finding.level == "error"}
    assert found == {("shape", "data.sources"), ("zone-in-region", "zone")}


@pytest.mark.parametrize("written", ["16", '"16"', "1.5"])
def test_a_duration_without_a_unit_is_refused_with_the_four_that_it_may_mean(tmp_path: Path, written: str) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(BASE.replace("deadline: 4h", f"deadline: {written}"))
    (found,) = [finding for finding in checked(path).findings if finding.field == "money.deadline"]
    number = written.strip('"')
    assert found.level == "error" and f"{number}s, {number}m, {number}h or {number}d" in found.cure


@pytest.mark.parametrize(("written", "suggested"), [("range", None), ("egres", "egress"), ("cdir", "cidr")])
def test_only_a_near_name_is_suggested(tmp_path: Path, written: str, suggested: str | None) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(BASE.replace("  cidr: 10.42.0.0/16", f"  {written}: x"))
    (found,) = [finding for finding in checked(path).findings if finding.field == f"network.{written}"]
    assert (f"did you mean `{suggested}`?" if suggested else "fields here: cidr, ") in found.cure
    assert ("did you mean" in found.cure) == (suggested is not None)


def test_tokens_are_estimated_from_what_the_preparation_would_read(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "foreign.py").write_bytes(b"x" * 1_000_000)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("a", "b", "deep/c", "deep/er/d"):
        (tmp_path / f"{name}.py").write_bytes(b"x" * 3_000)
    (tmp_path / "other.txt").write_bytes(b"x" * 1_000_000)

    def tokens(**data: object) -> int | None:
        spec = example_spec(data={"source": str(tmp_path), "pattern": "**/*.py", **data})
        return data_source(spec).tokens

    assert BYTES_PER_TOKEN == 3
    assert tokens() == 4_000
    assert tokens(max_files=2) == 2_000
    (tmp_path / "packed.gz").write_bytes(b"x")
    assert tokens(pattern="**/*") is None, "the size of a compressed file tells nothing"
