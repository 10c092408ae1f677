"""The page of a running campaign is written again while its driver watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import report
from infra.errors import LeaseLost, PermanentError
from tests.waiting import until
from tests.worlds.progress import SilentProgress


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(report, "REWRITE_S", 0.01)
    return []


NOTES: list[str] = []


def context(guard: Callable[[], None] = lambda: None) -> Any:
    NOTES.clear()
    return SimpleNamespace(store="store", results="results", guard=guard, progress=SilentProgress(NOTES))


def test_it_is_written_again_after_a_page_that_could_not_be(pages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object, **_flags: object) -> None:
        pages.append("page")
        if len(pages) <= 2:
            raise PermanentError("S3 is away", seen="503", cure="wait")

    monkeypatch.setattr(report, "write", write)
    with report.rewritten(context()):
        until(lambda: len(pages) >= 4, "four pages", within_s=60)
    assert not [thread for thread in threading.enumerate() if thread.name == "report"]
    assert len(NOTES) == 1 and "S3 is away" in NOTES[0]


def test_a_driver_without_its_lease_writes_no_page(pages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda *_, **_flags: pages.append("page"))

    def guard() -> None:
        raise LeaseLost("another driver has it")

    with report.rewritten(context(guard)):
        until(lambda: not [one for one in threading.enumerate() if one.name == "report"], "the writer has ended")
    assert pages == []
