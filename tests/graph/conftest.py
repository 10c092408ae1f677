"""Graphs that many tests look at, built once."""

from __future__ import annotations

import pytest

from infra.stack.program import program
from infra.stack.settings import FoundationSettings
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, DRIVER, KEY, Graph, build, campaign_graph


@pytest.fixture(scope="session")
def campaign() -> Graph:
    return campaign_graph(example_spec())


@pytest.fixture(scope="session")
def foundation() -> Graph:
    return build(program, FoundationSettings(account=ACCOUNT, region="us-east-1").to_config())


@pytest.fixture(scope="session")
def full() -> Graph:
    """Every option of the ground."""
    spec = example_spec(
        network={"api_endpoint": "private", "driver_vpc": DRIVER},
        storage={"shared": {"metadata_iops": "automatic", "efa": True, "capacity_gib": 19200}},
        encryption={"customer_key": True, "key_arn": KEY},
        addons={"prometheus": True, "kueue": True},
        money={"alarm_email": "someone@example.com", "freeze_roles": ["ci"]},
    )
    return campaign_graph(spec, key_arn=KEY)
