"""The record and the report of a campaign's story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.report.build import build
from infra.report.model import Report
from infra.report.record import Record
from infra.spec.campaign import SpecFile
from tests.unit.report.campaign_story import CERTIFICATE, SITE, ToldRecord, whole


@pytest.fixture
def record(spec_file: Callable[..., SpecFile]) -> Callable[..., Record]:
    spec = spec_file().spec
    plan = make_plan(spec, survey(spec))

    def make(story: ToldRecord, at_s: float = 192.0, **more: Any) -> Record:
        return story.record(spec, plan, at_s, **more)

    return make


@pytest.fixture
def report(record: Callable[..., Record]) -> Callable[..., Report]:
    def make(story: ToldRecord | None = None, at_s: float = 192.0, **more: Any) -> Report:
        return build(record(story or whole(), at_s, **{"site": SITE, "certificate": CERTIFICATE} | more))

    return make
