"""Fixtures of an emulated AWS in the test's process, for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.example import base_source_seen_once
from tests.rehearsal.aws_account import aws, here, network, world
from tests.rehearsal.aws_shapes import watch, watch_questions

__all__ = ["aws", "base_source_seen_once", "here", "network", "world"]


@pytest.fixture(scope="session")
def differences() -> Iterator[list[str]]:
    """What the emulated AWS answered outside of botocore's models, or asked IAM otherwise than AWS does."""
    with pytest.MonkeyPatch.context() as patch:
        found = watch(patch)
        watch_questions(patch, found)
        yield found


@pytest.fixture
def answers_as_modelled(differences: list[str]) -> Iterator[None]:
    yield
    seen, differences[:] = list(differences), []
    assert seen == [], "the emulated AWS answers or asks otherwise than AWS does"
