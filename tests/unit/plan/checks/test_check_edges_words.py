"""What the rules' findings say: where they point, which names they propose, and what is no finding at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.plan.checks import check, nodes, placement, shape_findings
from infra.plan.checks.finding import Case, Draft, error
from infra.plan.facts import Facts
from tests.unit.plan.checks.edges import cases, environment, of, unknown
from tests.unit.plan.checks.refused import FRESH


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[..., Case]:
    return cases(spec_file)


def cures(rule: Callable[[Case], Iterator[Draft]], made: Case) -> list[str]:
    return [draft.cure for draft in rule(made)]


@pytest.mark.parametrize("mistake", [AttributeError("no such field"), ValueError("no number")])
def test_a_rule_that_fails_is_a_mistake_of_ours_unless_a_part_of_the_spec_is_missing(
    spec_file: Any, case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, mistake: Exception
) -> None:
    def fails(_: Case) -> Iterator[Draft]:
        yield error("zone", "is told before", seen="x", cure="y")
        raise mistake

    monkeypatch.setattr("infra.plan.checks.RULES", (fails,))
    file, facts = spec_file(), case().facts
    for options in ({}, {"complete": True}):
        with pytest.raises(type(mistake), match=str(mistake)):
            check(file, facts, FRESH, **options)
    assert [one.message for one in check(file, facts, FRESH, complete=False)] == ["is told before"]


def test_a_finding_points_at_its_field_s_line_and_else_at_the_file_s_first(
    spec_file: Any, case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(_: Case) -> Iterator[Draft]:
        for field in ("zone", "nowhere", "nodes.count"):
            yield error(field, "m", seen="x", cure="y")

    monkeypatch.setattr("infra.plan.checks.RULES", (told,))
    file = spec_file()
    lines = [row.strip().partition(":")[0] for row in file.path.read_text().splitlines()]
    found = check(file, case().facts, FRESH)
    assert found[0].field == "nowhere" and found[0].line == 1
    assert {one.field: lines[one.line - 1] for one in found[1:]} == {"zone": "zone", "nodes.count": "count"}
    assert [one.line for one in found] == sorted(one.line for one in found)


def test_a_file_that_cannot_be_read_at_all_is_told_at_its_first_line() -> None:
    problems = [SimpleNamespace(line=line, field="", message="is no YAML", seen="x", cure="y") for line in (None, 7)]
    refusal: Any = SimpleNamespace(path=Path("spec.yaml"), problems=problems)
    assert [finding.line for finding in shape_findings(refusal)] == [1, 7]


def test_an_unknown_type_is_told_with_the_three_nearest_of_the_catalogue_or_with_all(case: Callable[..., Case]) -> None:
    def cure(*names: str) -> list[str]:
        made = case({"nodes.instance_type": "p5.4xlarge"}, facts=lambda facts: of(instance_names=names)(unknown(facts)))
        return cures(nodes.known_instance_type, made)

    near = ("p5.48xlarge", "p5e.4xlarge", "p5n.4xlarge", "p4.4xlarge", "p5.40xlarge")
    (proposed,) = cure(*near)
    names = proposed.removeprefix("did you mean ").removesuffix("?").split(", ")
    assert proposed.startswith("did you mean ") and len(names) == 3 and set(names) < set(near)
    assert cure("g6.metal", "trn1.32x") == ["the catalogue has: g6.metal, trn1.32x"]


def test_a_quota_s_code_is_told_where_it_is_known(case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    assert nodes._code(case()).startswith(" (ec2 L-") and nodes._code(case(facts=unknown)) == ""
    monkeypatch.setattr(nodes, "quota", lambda *_, **__: None)
    assert nodes._code(case()) == ""


@pytest.mark.parametrize(
    ("level", "hardware", "count"), [(None, True, 0), (2, False, 0), (None, False, 0), (2, True, 1)]
)
def test_the_diagnostic_s_tools_are_told_of_where_real_nodes_run_it(
    case: Callable[..., Case], level: int | None, hardware: bool, count: int
) -> None:
    made = case({"preflight.dcgm_level": level}, facts=environment(hardware=hardware))
    assert len(list(nodes.dcgm_in_image(made))) == count


def test_an_unknown_profile_is_told_with_the_three_nearest(case: Callable[..., Case]) -> None:
    made = case({"preflight.profile": "p5"}, facts=of(profiles={name: None for name in ("p5a", "p5b", "p5c", "p5d")}))
    (cure,) = cures(nodes.preflight_profile, made)
    assert cure.count("p5") == 3 and cure.startswith("did you mean ")


def test_an_unknown_region_is_told_with_the_nearest_of_aws_own_partition(case: Callable[..., Case]) -> None:
    regions = {"us-gov-east-1": "aws-us-gov", "us-east-1": "aws", "us-east-2": "aws"}

    def cure(region: str, known: dict[str, str]) -> list[str]:
        def bend(facts: Facts) -> Facts:
            return facts.model_copy(update={"regions": known})

        base = case(facts=bend)
        return cures(
            placement.zone_in_region,
            Case(base.spec.model_copy(update={"region": region, "zone": f"{region}a"}), base.facts, FRESH),
        )

    assert cure("us-gov-east-2", regions) == ["did you mean us-east-2?"]
    assert cure("us-gov-east-2", {"us-gov-east-1": "aws-us-gov"}) == ["write one such as us-east-1"]
    assert cure("us-esat-1", regions) == ["did you mean us-east-1?"]


def test_a_bucket_s_name_has_at_most_63_characters(case: Callable[..., Case]) -> None:
    """By S3's documentation."""
    base = case()
    for length in range(9, 60):
        made = Case(base.spec.model_copy(update={"region": "r" * length}), base.facts, FRESH)
        drafts = [draft for draft in placement.aws_name_length(made) if "makes a bucket's" in draft.message]
        if drafts:
            assert max(len(draft.seen) for draft in drafts) == 64 and length > 9
            return
    pytest.fail("no name of a bucket is too long")


def test_a_mistake_of_ours_in_choosing_zones_is_raised(
    case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: Any) -> None:
        raise KeyError("mine")

    monkeypatch.setattr(placement, "control_plane_zones", mistaken)
    with pytest.raises(KeyError, match="mine"):
        list(placement.usable_zones(case(facts=of(zones=()))))
