"""What a site is and who lives in it: what cannot be seen is not gone, since its folder would be cleared."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from infra.rehearsal.site import handle


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that opens no more files."""

    def refuse(*given: Any, **how: Any) -> None:
        raise OSError(errno.ENFILE, "Too many open files in system")

    for name in ("read_bytes", "read_text"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(os, "readlink", refuse)


@pytest.mark.usefixtures("limited")
def test_a_process_or_a_site_that_cannot_be_seen_is_not_gone(tmp_path: Path) -> None:
    for look in (
        lambda: handle._read(os.getpid(), "environ"),
        lambda: handle._network(os.getpid()),
        lambda: handle.find("any"),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            look()


def test_a_process_that_has_ended_and_a_site_that_never_was_are_none() -> None:
    assert handle._read(2**22 + 1, "environ") == b"" and handle._network(2**22 + 1) is None
    assert handle.find("a-site-that-never-was") is None
