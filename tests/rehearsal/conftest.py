"""Fixtures of an emulated AWS in the test's process, for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rehearsal.aws_account import aws, here, network, world
from tests.rehearsal.aws_shapes import watch

__all__ = ["aws", "here", "network", "world"]


@pytest.fixture(scope="session")
def differences() -> Iterator[list[str]]:
    """What the emulated AWS answered to clients of this process outside of botocore's models."""
    with pytest.MonkeyPatch.context() as patch:
        yield watch(patch)


@pytest.fixture
def answers_as_modelled(differences: list[str]) -> Iterator[None]:
    yield
    seen, differences[:] = list(differences), []
    assert seen == [], "the emulated AWS answers otherwise than AWS's models allow"
