"""The spec that tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from infra.plan import survey as survey_module
from infra.spec.campaign import MixtureSource, Spec

DEADLINE = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
DATA_DIGEST = "d" * 64
SOURCE = "python:stdlib"


def example_spec(**changes: Any) -> Spec:
    """Four p5.48xlarge in us-east-1a. `changes` are merged into the document, sections key by key."""
    document: dict[str, Any] = {
        "campaign": "example",
        "owner": "someone@example.com",
        "purpose": "an example for tests",
        "target": "aws",
        "account": "123456789012",
        "region": "us-east-1",
        "zone": "us-east-1a",
        "money": {"budget_usd": "10000"},
        "nodes": {"count": 4, "instance_type": "p5.48xlarge"},
        "network": {"api_allowed_cidrs": ["203.0.113.0/24"]},
        "image": {"base": "123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/base:host"},
        "data": {"source": SOURCE},
        "training": {"steps": 1000, "global_batch": 256},
    }
    return Spec.model_validate(_merged(document, changes))


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


@pytest.fixture(scope="session", autouse=True)
def base_source_seen_once() -> Iterator[None]:
    """The specs' source is the standard library, thousands of files that do not change meanwhile."""
    real, seen = survey_module._look_at, dict[tuple[str, int | None], Any]()

    def look(part: MixtureSource, most: int | None) -> Any:
        if part.source != SOURCE:
            return real(part, most)
        key = (part.pattern, most)
        if key not in seen:
            seen[key] = real(part, most)
        return seen[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_module, "_look_at", look)
        yield
