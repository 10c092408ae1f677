"""A spec file that is wrong says everything that is wrong with it, where, and how to mend it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import UserError
from infra.spec import duration
from infra.spec.campaign import Spec, SpecError, load
from infra.spec.problems import Problem
from tests.root import ROOT

TEN_MISTAKES = """\
campaign: Big_Run
owner: me
purpose: ten mistakes in one file
target: azure
account: 123456789012
region: us-east-1
zone: us-east-1a
zone: us-east-1b
money:
  budget_usd: -5
  deadline: soon
nodes:
  cuont: 2
  instance_type: p5.4xlarge
  capacity: on-demnd
image: bivouac/base:host
data:
  source: python:stdlib
  held_out: 0.9
training:
  steps: none
  global_batch: 8
recovry:
"""


def _problems(tmp_path: Path, text: str) -> dict[str, Problem]:
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert all(
        problem.field in str(caught.value) and problem.cure in str(caught.value) for problem in caught.value.problems
    )
    return {problem.field: problem for problem in caught.value.problems}


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"no such spec file.*nowhere\.yaml.*cure"):
        load(Path("nowhere.yaml"))


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_spec_says_so_and_where_to_start(tmp_path: Path, text: str) -> None:
    problem = _problems(tmp_path, text)["(file)"]
    assert problem.seen == "an empty file"
    assert "bivouac init" in problem.cure


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "[1, 2]\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert "mapping" in _problems(tmp_path, text)["(file)"].message


@pytest.mark.parametrize(("text", "line"), [("a: [1,\n", 2), ("a: b\n c: d\n", 2), ("a: &x [*x]\n", 1)])
def test_a_file_that_is_not_yaml_names_the_line(tmp_path: Path, text: str, line: int) -> None:
    assert _problems(tmp_path, text)["(file)"].line == line


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        load(path)


def test_ten_mistakes_are_all_shown_with_their_lines_and_cures(tmp_path: Path) -> None:
    problems = _problems(tmp_path, TEN_MISTAKES)
    wanted = {
        "campaign": (1, "small letters"),
        "owner": (2, "3 characters"),
        "target": (4, "'aws', 'rehearsal' or 'kubernetes'"),
        "account": (5, "quotes"),
        "zone": (8, "keep one"),
        "money.budget_usd": (10, "more than 0"),
        "money.deadline": (11, "4h"),
        "nodes.cuont": (13, "did you mean `count`?"),
        "nodes.count": (12, "add `count:`"),
        "nodes.capacity": (15, "did you mean `on-demand`?"),
        "image": (16, "section"),
        "data.held_out": (19, "less than 0.5"),
        "training.steps": (21, "whole number"),
        "recovry": (23, "did you mean `recovery`?"),
    }
    assert {field: problem.line for field, problem in problems.items()} == {f: line for f, (line, _) in wanted.items()}
    for field, (_, cure) in wanted.items():
        assert cure in problems[field].cure, (field, problems[field].cure)
        assert problems[field].seen


def test_an_unknown_field_without_a_near_name_lists_the_fields(tmp_path: Path, campaigns: Path) -> None:
    text = (campaigns / "rehearsal.yaml").read_text().replace("preflight:\n", "preflight:\n  zzz: 1\n")
    problem = _problems(tmp_path, text)["preflight.zzz"]
    assert "profile" in problem.cure and "rounds" in problem.cure


def test_an_unknown_field_in_a_list_is_found_in_its_item(tmp_path: Path, campaigns: Path) -> None:
    text = (campaigns / "rehearsal.yaml").read_text().replace("kill_node:", "kill_nod:")
    problems = _problems(tmp_path, text)
    assert "`kill_node`" in problems["rehearsal.faults.0.kill_nod"].cure
    assert problems["rehearsal.faults.0.kill_nod"].line == text.splitlines().index("    - kill_nod: 1") + 1


def test_faults_have_no_meaning_on_aws(tmp_path: Path, campaigns: Path) -> None:
    text = (campaigns / "rehearsal.yaml").read_text().replace("target: rehearsal", "target: aws")
    assert "no meaning" in _problems(tmp_path, text)["(spec)"].message


def test_a_field_that_a_stored_spec_has_not_is_not_stored_with_its_default(campaigns: Path) -> None:
    """A campaign begun by an earlier version is gone on with only by an equal spec, of equal digest."""
    document = json.loads(load(campaigns / "rehearsal.yaml").spec.model_dump_json())
    assert "cluster" not in document and {"grafana", "remote_write"}.isdisjoint(document["addons"])
    assert document["rehearsal"]["faults"] == [{"kill_node": 1, "kill_rank": None, "after_step": 45}]


@pytest.mark.parametrize("name", ["rehearsal", "p5-32-nodes", "p5en-capacity-block"])
def test_a_spec_that_commit_f3006b4c_has_stored_is_the_spec_of_today(name: str, campaigns: Path) -> None:
    """A campaign that it has begun can be taken over: a new field is stored only where it is not its default."""
    document = json.loads((ROOT / "tests/unit/spec/stored" / f"{name}.json").read_text())
    assert json.loads(load(campaigns / f"{name}.yaml").spec.model_dump_json()) == document


@pytest.mark.parametrize("name", ["rehearsal", "p5-32-nodes", "p5en-capacity-block"])
def test_a_spec_survives_json_unchanged(campaigns: Path, name: str) -> None:
    spec = load(campaigns / f"{name}.yaml").spec
    again = Spec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert again.digest() == spec.digest()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("7d", 604800), ("1.5s", 1.5), ("1d2h3m4s", 93784)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration.parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "4 h", "h", "-4h", "4h extra", "PT4H"])
def test_other_forms_are_left_to_pydantic(text: str) -> None:
    assert duration.parse(text) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=9999)))
def test_a_written_duration_reads_back_to_the_millisecond(value: timedelta) -> None:
    whole = timedelta(milliseconds=value // timedelta(milliseconds=1))
    assert duration.parse(duration.text(whole)) == whole


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("ada@example.com", ""),
        ("Zoë 王: team 3", ""),
        ("ann (ml, eu)", "'(' ')' ','"),
        ("a;b", "';'"),
        ("two\nlines", r"'\n'"),
        ("ann 🙂", "'🙂'"),
        ("x" * 257, "256"),
        ("AWS: us", "keeps for itself"),
        ("laws: ours", ""),
    ],
)
def test_an_owner_that_no_tag_can_hold_is_refused_with_the_cure(tmp_path: Path, owner: str, words: str) -> None:
    found = _problems(tmp_path, f"campaign: a-b\nowner: {json.dumps(owner, ensure_ascii=False)}\n").get("owner")
    assert (found is None) == (not words)
    if found is not None:
        assert words in found.message and ("letters, digits, spaces" in found.cure or "at most 256" in found.cure
                                          or "your name" in found.cure)  # fmt: skip
