"""Graphs that many tests look at, built once."""

from __future__ import annotations

import pytest

from infra.components.settings import FoundationSettings
from infra.program import program
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, Graph, build, campaign_graph


@pytest.fixture(scope="session")
def campaign() -> Graph:
    return campaign_graph(example_spec())


@pytest.fixture(scope="session")
def foundation() -> Graph:
    return build(program, FoundationSettings(account=ACCOUNT, region="us-east-1").to_config())
