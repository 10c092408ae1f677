"""Whether a cluster's API server answers: a machine that may open no more files has not asked it."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from infra.engine import kubernetes_state


@pytest.mark.parametrize(("error", "answers"), [(TimeoutError("timed out"), False), (ConnectionRefusedError(), False)])
def test_an_api_server_that_cannot_be_reached_does_not_answer(
    error: Exception, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **how: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert kubernetes_state._answers("https://api.example.test") is answers


def test_a_limit_of_this_machine_is_no_silence_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **how: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        kubernetes_state._answers("https://api.example.test")
