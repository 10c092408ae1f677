"""The spec that tests start from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from infra.spec.campaign import Spec

DEADLINE = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
DATA_DIGEST = "d" * 64


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
        "data": {"source": "python:stdlib"},
        "training": {"steps": 1000, "global_batch": 256},
    }
    return Spec.model_validate(_merged(document, changes))


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
