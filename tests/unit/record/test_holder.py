"""Whether a lease's holder is gone: proven only where its process can be looked for."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from infra.record import holder as holders
from infra.record.holder import Holder, start_ticks
from tests.waiting import until


def test_a_process_that_has_ended_is_gone_and_one_that_lives_is_not() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    ours = Holder.this_process()
    holder = ours.model_copy(update={"pid": child.pid, "start_ticks": start_ticks(child.pid)})
    assert not holder.provably_gone() and not ours.provably_gone()
    child.kill()
    until(lambda: start_ticks(child.pid) is None, "a zombie is gone as well")
    assert holder.provably_gone()
    child.wait()
    assert start_ticks(child.pid) is None and holder.provably_gone()


def test_a_process_is_known_by_the_moment_at_which_it_began() -> None:
    ticks, hertz = start_ticks(os.getpid()), os.sysconf("SC_CLK_TCK")
    assert ticks is not None
    assert ticks / hertz + psutil.boot_time() == pytest.approx(psutil.Process().create_time(), abs=2)
    assert Holder.this_process().start_ticks == ticks


def test_on_another_machine_or_in_another_namespace_nobody_is_provably_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Holder.this_process().model_copy(update={"pid": 2**22 + 1})
    assert gone.provably_gone()
    assert not gone.model_copy(update={"boot_id": "another"}).provably_gone()
    assert not gone.model_copy(update={"pid_namespace": "pid:[1]"}).provably_gone()
    monkeypatch.setattr(holders, "_boot_id", lambda: "")
    assert not gone.model_copy(update={"boot_id": ""}).provably_gone(), "a machine that does not tell its boot"


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
