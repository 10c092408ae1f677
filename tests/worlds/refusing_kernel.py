"""A kernel that refuses calls for some files, and the pauses that whoever waits for it makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trainer.contract import sealed

Refuse = Callable[..., list[str]]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for; no time passes."""
    pauses_s: list[float] = []
    monkeypatch.setattr(sealed.time, "sleep", pauses_s.append)
    return pauses_s


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Have calls for files whose path has `part` in it fail with an error, `times` times; returns the paths so far."""

    def fail(number: int, part: str, times: int = 1_000, calls: Sequence[str] = ("open", "lstat", "stat")) -> list[str]:
        failed: list[str] = []

        def instead(real: Any) -> Any:
            def answer(path: Any, *rest: Any, **named: Any) -> Any:
                if not isinstance(path, int) and part in os.fspath(path) and len(failed) < times:
                    failed.append(os.fspath(path))
                    raise OSError(number, os.strerror(number), str(path))
                return real(path, *rest, **named)

            return answer

        for name in calls:
            monkeypatch.setattr(os, name, instead(getattr(os, name)))
        monkeypatch.setattr("io.open", instead(open))
        return failed

    return fail
