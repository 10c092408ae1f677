"""Pulumi's locks of other machines: one of a driver that left unclean is cancelled, one of a living person never."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi.automation import CommandError
from rich.console import Console

from infra.console.progress import Progress
from infra.engine import command as command_module
from infra.engine import leash, locks
from infra.engine.command import LeashedCommand
from infra.errors import LeaseLost, PermanentError
from infra.folders import tools_dir
from infra.record.holder import Holder
from infra.record.lease import Lease
from infra.record.store import CampaignStore
from infra.spec.names import PROJECT
from tests.example import example_spec
from tests.waiting import until

TTL = timedelta(seconds=30)
BUSY = """
import os, signal, time
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(os.write(1, b"asked\\n")))
os.write(1, b"begun\\n")
while len(asked) < 2:
    time.sleep(0.01)
"""


@pytest.fixture
def store(state_s3: Any, monkeypatch: pytest.MonkeyPatch) -> CampaignStore:
    monkeypatch.setattr(leash, "BOUND_S", -10.0)  # what is gone is gone by now
    monkeypatch.setattr(locks, "_HAND_WAIT_S", 10.3)
    return CampaignStore(state_s3, "state", "c", "driver")


def holder(host: str) -> Holder:
    return Holder.this_process().model_copy(update={"host": host, "boot_id": host})


class Stack:
    """As the Automation API's: one of this name, with the locks that lie in the bucket."""

    name = "campaign-c"

    def __init__(self, store: CampaignStore) -> None:
        self.store, self.prefix = store, f".pulumi/locks/organization/{PROJECT}/{self.name}/"

    def lock(self, host: str, at: datetime) -> None:
        body = {"pid": 4711, "username": "ada", "hostname": host, "timestamp": at.isoformat()}
        self.store.put(f"{self.prefix}{host}.json", json.dumps(body).encode())

    def cancel(self) -> None:
        for item in self.store.s3.list_objects_v2(Bucket="state", Prefix=self.prefix)["Contents"]:
            self.store.s3.delete_object(Bucket="state", Key=item["Key"])

    def locked(self) -> int:
        return int(self.store.s3.list_objects_v2(Bucket="state", Prefix=self.prefix)["KeyCount"])


def engines() -> list[int]:
    return [pid for pid, mark in leash.marked_processes().items() if mark.startswith("locked/")]


def unlock(store: CampaignStore, stack: Stack, lease: Lease) -> None:
    context: Any = SimpleNamespace(
        account=SimpleNamespace(client=lambda service: store.s3), buckets=SimpleNamespace(state="state"), store=store,
        spec=example_spec(), guard=lease.check, progress=Progress(Console(file=StringIO())),
    )  # fmt: skip
    locks.unlock(context, stack, [lease])  # type: ignore[arg-type]


def lapsed(store: CampaignStore, host: str) -> datetime:
    """A driver there was killed; its last renewal."""
    dead = store.lease("driver", TTL, holder(host))
    dead._write(is_release=False)
    found = dead.current()
    assert found is not None
    # As it lies there when its time is over by S3's clock: its own clock may be a day off.
    record = found.record.model_copy(update={"renewed_at": datetime.now(UTC) - timedelta(days=1), "ttl_s": 0.0})
    store.put(dead.key, record.model_dump_json().encode())
    return record.renewed_at


def test_the_lock_of_a_driver_that_lapsed_elsewhere_is_cancelled(store: CampaignStore) -> None:
    stack, end = Stack(store), lapsed(store, "laptop")
    stack.lock("laptop", end - timedelta(seconds=5))
    lease = store.lease("driver", TTL, holder("ci"))
    assert lease.acquire() == holder("laptop")
    unlock(store, stack, lease)
    assert not stack.locked()


def test_a_lock_that_a_person_took_where_a_driver_once_lapsed_is_not_cancelled(store: CampaignStore) -> None:
    stack, end = Stack(store), lapsed(store, "laptop")
    stack.lock("laptop", end + timedelta(hours=2))
    lease = store.lease("driver", TTL, holder("ci"))
    lease.acquire()
    with pytest.raises(PermanentError, match=r"ada@laptop .* on another machine"):
        unlock(store, stack, lease)
    assert stack.locked() == 1


def test_a_lapse_is_remembered_through_drivers_that_went_well(store: CampaignStore) -> None:
    stack, end = Stack(store), lapsed(store, "laptop")
    stack.lock("laptop", end)
    for host in ("ci-1", "ci-2"):
        lease = store.lease("driver", TTL, holder(host))
        lease.acquire()
        lease.release()
    last = store.lease("driver", TTL, holder("ci-3"))
    last.acquire()
    unlock(store, stack, last)
    assert not stack.locked()


def test_a_lock_where_a_driver_went_well_is_a_persons(store: CampaignStore) -> None:
    stack = Stack(store)
    well = store.lease("driver", TTL, holder("laptop"))
    well.acquire()
    stack.lock("laptop", datetime.now(UTC))
    well.release()
    lease = store.lease("driver", TTL, holder("ci"))
    lease.acquire()
    with pytest.raises(PermanentError, match="on another machine"):
        unlock(store, stack, lease)


def commanded(
    store: CampaignStore, folder: Path, patch: pytest.MonkeyPatch, script: str
) -> tuple[Lease, LeashedCommand]:
    """A driver's lease, taken, and its way to an engine that is this script (from after `#!`)."""
    patch.setenv("PATH", str(tools_dir()), prepend=os.pathsep)
    engine = folder / "pulumi"
    engine.write_text(f"#!{script}")
    engine.chmod(0o755)
    lease = store.lease("driver", TTL, holder("ci-1"))
    lease.acquire()
    command = LeashedCommand([lease], "locked", lambda line: None)
    command.command = str(engine)
    return lease, command


@pytest.mark.parametrize("thrice", [False, True])
def test_two_ctrl_c_leave_no_engine_and_a_lock_that_a_driver_elsewhere_may_cancel(
    store: CampaignStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thrice: bool
) -> None:
    """An engine that takes its time loses its life and leaves its lock; the third press comes while it is being ended,
    and the leash ends it. The driver gives its lease back in both cases."""
    stack = Stack(store)
    lease, command = commanded(store, tmp_path, monkeypatch, f"{sys.executable} -IS\n{BUSY}")
    pressed: list[str] = []
    attended, pause = Event(), command_module._pause

    def watched(*of: Any) -> None:
        attended.set()
        pause(*of)

    def ctrl_c(line: str) -> None:
        if line == "begun":
            stack.lock("ci-1", datetime.now(UTC))
        # Before the driver attends to its engine, one press leaves it to the leash, and the next would be pytest's.
        assert attended.wait(20)
        if len(pressed) < 2:
            pressed.append(line)
            os.kill(os.getpid(), signal.SIGINT)

    def pressed_again(mark: str, bound_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "_pause", watched)
    if thrice:
        monkeypatch.setattr(leash, "end", pressed_again)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            command.run(["up"], str(tmp_path), {}, ctrl_c)
        signal.signal(signal.SIGINT, before)
        lease.release()
        until(lambda: not engines())
    finally:
        signal.signal(signal.SIGINT, before)
        for pid in engines():
            os.kill(pid, signal.SIGKILL)
    following = store.lease("driver", TTL, holder("ci-2"))
    assert following.acquire() is None, "it was given back"
    assert [one.holder.host for one in following.lapsed] == ["ci-1"], (pressed, following.lapsed)
    unlock(store, stack, following)
    assert not stack.locked()


@pytest.mark.parametrize("args", [["stack", "import", "--file", "x"], ["up"], ["stack", "export"]])
def test_a_driver_that_wakes_without_its_lease_begins_nothing(
    store: CampaignStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    lease, command = commanded(store, tmp_path, monkeypatch, f"/bin/sh\ntouch {tmp_path}/begun\n")
    command.run(args, str(tmp_path), {})
    (tmp_path / "begun").unlink()
    lease._stop.set()
    lease._renewed -= 2 * TTL.total_seconds()  # so long was it stopped
    with pytest.raises(LeaseLost):
        command.run(args, str(tmp_path), {})
    assert not (tmp_path / "begun").exists()


def test_what_writes_the_state_in_a_moment_ends_with_its_drivers_lease_too(
    store: CampaignStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was stopped between its look at the lease and the command: the leash has seen the time."""
    slow = f"import pathlib, time\ntime.sleep(3600)\npathlib.Path({str(tmp_path / 'written')!r}).touch()\n"
    lease, command = commanded(store, tmp_path, monkeypatch, f"{sys.executable} -IS\n{slow}")
    monkeypatch.setattr(lease, "check", lambda: None)
    lease._stop.set()  # a stopped process renews nothing
    lease._renewed -= 2 * TTL.total_seconds()
    with suppress(CommandError):
        command.run(["stack", "import", "--file", "x"], str(tmp_path), {})
    assert not (tmp_path / "written").exists()


@pytest.mark.nightly
def test_what_writes_the_state_slowly_goes_on_while_its_lease_is_renewed(
    store: CampaignStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow, as where S3 is: it takes longer than the lease covered at its start."""
    _, command = commanded(store, tmp_path, monkeypatch, f"/bin/sh\nsleep 10\ntouch {tmp_path}/written\n")
    monkeypatch.setattr(Lease, "covers_until", property(lambda _: leash.now() + 8.0))
    command.run(["stack", "import", "--file", "x"], str(tmp_path), {})
    assert (tmp_path / "written").exists()


def test_a_write_of_the_state_that_its_leash_ended_is_told_as_the_lost_lease_that_it_was(
    store: CampaignStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, command = commanded(store, tmp_path, monkeypatch, "/bin/sh\necho begun\nexec sleep 60\n")
    with pytest.raises(LeaseLost, match="taken over"):
        command.run(["stack", "rm"], str(tmp_path), {}, lambda _: setattr(lease, "_lost", "taken over"))
