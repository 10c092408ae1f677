"""A spec to bend: the rehearsal campaign with a recipient for alarms, on a day when prices were fresh."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws

from infra.plan.checks import Finding, check
from infra.plan.facts import Facts
from infra.plan.survey import survey
from infra.spec.campaign import SpecFile, load
from tests.example import base_source_seen_once
from tests.root import ROOT

__all__ = ["base_source_seen_once"]

CAMPAIGNS = ROOT / "infra" / "campaigns"
BASE = ROOT / "tests/unit/base.yaml"
FRESH = date(2026, 8, 1)
REMOVED = object()
CONTENT = yaml.safe_load(BASE.read_text())

Changes = dict[str, Any]


@pytest.fixture
def state_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of moto's S3 in this process, with the bucket `state`."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="state")
        yield client


@pytest.fixture
def campaigns() -> Path:
    return CAMPAIGNS


@pytest.fixture
def removed() -> object:
    """As a value among changes: the field is taken out."""
    return REMOVED


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[..., SpecFile]:
    """Loads the base spec with changes by dotted path."""

    def make(changes: Changes | None = None) -> SpecFile:
        content = copy.deepcopy(CONTENT)
        content["money"]["alarm_email"] = "someone@example.com"
        for field, value in (changes or {}).items():
            _set(content, field.split("."), copy.deepcopy(value) if value is not REMOVED else REMOVED)
        path = tmp_path / "campaign.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return load(path)

    return make


@pytest.fixture
def findings(spec_file: Callable[..., SpecFile]) -> Callable[..., tuple[Finding, ...]]:
    """All findings on the base spec with changes; `facts` bends what was looked up."""

    def look(
        changes: Changes | None = None, facts: Callable[[Facts], Facts] | None = None, today: date = FRESH
    ) -> tuple[Finding, ...]:
        file = spec_file(changes)
        found = survey(file.spec)
        return check(file, facts(found) if facts else found, today)

    return look


def _set(content: Any, path: list[str], value: object) -> None:
    *sections, last = path
    for part in sections:
        content = content[int(part)] if isinstance(content, list) else content.setdefault(part, {})
    if value is REMOVED:
        content.pop(last, None)
    else:
        content[last] = value
