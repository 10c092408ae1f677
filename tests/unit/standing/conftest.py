"""The spec of an existing cluster, to bend."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.plan.checks import Finding, check
from infra.plan.facts import Facts
from infra.plan.survey import survey
from infra.spec.campaign import SpecFile, load

SPEC = Path(__file__).with_name("standing.yaml")


def bent(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the content with changes by field, its path as a tuple or, where no key has a dot, with dots."""
    content = copy.deepcopy(content)
    for field, value in changes.items():
        *sections, last = field.split(".")
        section = content
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return content


@pytest.fixture
def standing(tmp_path: Path) -> Callable[..., SpecFile]:
    def make(changes: dict[str, Any] | None = None) -> SpecFile:
        path = tmp_path / "standing.yaml"
        path.write_text(yaml.safe_dump(bent(yaml.safe_load(SPEC.read_text()), changes or {}), sort_keys=False))
        return load(path)

    return make


@pytest.fixture
def found(standing: Callable[..., SpecFile]) -> Callable[..., dict[str, Finding]]:
    """Rule and field -> finding on the spec with changes, without those on the amount of data."""

    def look(
        changes: dict[str, Any] | None = None, facts: Callable[[Facts], Facts] | None = None
    ) -> dict[str, Finding]:
        file = standing(changes)
        survey_facts = survey(file.spec)
        findings = check(file, facts(survey_facts) if facts else survey_facts, date(2027, 1, 1))
        return {f"{one.rule} {one.field}": one for one in findings if one.rule != "data-epochs"}

    return look
