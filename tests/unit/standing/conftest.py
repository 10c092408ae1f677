"""The spec of an existing cluster, to bend, and the cluster itself with four nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.plan.checks import Finding, check
from infra.plan.facts import Facts
from infra.plan.survey import survey
from infra.spec.campaign import Spec, SpecFile, load
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.tenant import TenantApi, rack

Standing = Callable[..., SpecFile]
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
def standing(tmp_path: Path) -> Standing:
    def make(changes: dict[str, Any] | None = None) -> SpecFile:
        path = tmp_path / "standing.yaml"
        path.write_text(yaml.safe_dump(bent(yaml.safe_load(SPEC.read_text()), changes or {}), sort_keys=False))
        return load(path)

    return make


@pytest.fixture
def found(standing: Standing) -> Callable[..., dict[str, Finding]]:
    """Rule and field -> finding on the spec with changes, without those on the amount of data."""

    def look(
        changes: dict[str, Any] | None = None, facts: Callable[[Facts], Facts] | None = None
    ) -> dict[str, Finding]:
        file = standing(changes)
        survey_facts = survey(file.spec)
        findings = check(file, facts(survey_facts) if facts else survey_facts, date(2027, 1, 1))
        return {f"{finding.rule} {finding.field}": finding for finding in findings if finding.rule != "data-epochs"}

    return look


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def s3(time: Time) -> FakeS3:
    return FakeS3(time)


@pytest.fixture
def api() -> Iterator[TenantApi]:
    tenant_api = TenantApi(rack("rack-1"), rack("rack-2"), rack("rack-3"), rack("other", labels={"gpu": "a100"}))
    yield tenant_api
    tenant_api.stop()


@pytest.fixture
def spec(standing: Standing) -> Spec:
    return standing().spec
