"""Whether a lease's holder is gone: proven only where its process can be looked for."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from infra.record.holder import Holder, start_ticks


def test_a_process_that_has_ended_is_gone_and_one_that_lives_is_not() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    ours = Holder.this_process()
    holder = ours.model_copy(update={"pid": child.pid, "start_ticks": start_ticks(child.pid)})
    assert not holder.provably_gone() and not ours.provably_gone()
    child.kill(), child.wait()
    assert start_ticks(child.pid) is None and holder.provably_gone()


def test_a_holder_that_cannot_be_looked_for_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder.this_process()

    def refuse(path: Path, *_: object, **how: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *given, **how: (refuse if path.name == "stat" else real)(path, *given, **how)
    )
    with pytest.raises(OSError, match="Too many open files"):
        start_ticks(os.getpid())
    assert not holder.provably_gone(), "its lease would be taken while it writes"
