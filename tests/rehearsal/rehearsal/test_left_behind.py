"""What crashes leave: broken caches, sites without a keeper. Found, said, cleaned; strangers are not touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import PermanentError
from infra.record.holder import start_ticks
from infra.rehearsal import doctor
from infra.rehearsal.site import handle
from infra.toolchain.ensure import ensure
from infra.toolchain.origin import in_cache, write_stamp
from infra.toolchain.table import TOOLS

ETCD = next(tool for tool in TOOLS if tool.name == "etcd")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "120"])
    yield process
    process.kill()
    process.wait()


def _tool(cache: Path, content: str) -> Path:
    path = cache / "bin" / "etcd"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "content", ["", "\x7fELF", "#!/bin/sh\nexit 1", "#!/bin/sh\necho 1.2.3", "#!/bin/sh\nprintf '\\377'"]
)
def test_a_broken_tool_in_the_cache_is_not_taken(cache: Path, content: str) -> None:
    _tool(cache, content)
    assert in_cache(ETCD, cache / "bin") is None


@pytest.mark.parametrize("stamp", ["", "[]", "null", "{", '{"version": 1}'])
def test_a_broken_stamp_only_costs_a_question(cache: Path, stamp: str) -> None:
    _tool(cache, "#!/bin/sh\necho etcd Version: 3.6.7")
    (cache / "stamps").mkdir()
    (cache / "stamps" / "etcd.json").write_text(stamp)
    found = in_cache(ETCD, cache / "bin")
    assert found is not None and found.version == "3.6.7"


def test_a_cache_without_room_for_stamps_still_works(cache: Path) -> None:
    _tool(cache, "#!/bin/sh\necho etcd Version: 3.6.7")
    (cache / "stamps").write_text("a file is in the way")
    write_stamp(ETCD, cache / "bin", "3.6.7", "cache")
    assert in_cache(ETCD, cache / "bin") is not None


def test_a_cache_that_refuses_is_said_with_its_cure(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file is in the way")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PermanentError, match=r"cannot be kept.*BIVOUAC_CACHE"):
        ensure(["etcd"])


@pytest.mark.parametrize("boot", ["", "another-boot"])
def test_a_site_of_a_crashed_machine_is_cleaned_and_its_reused_numbers_are_left_alone(
    cache: Path, stranger: subprocess.Popen[bytes], boot: str
) -> None:
    folder = handle.site_dir("old")
    folder.mkdir(parents=True)
    ticks = start_ticks(stranger.pid) or 0
    site = {
        "name": "old",
        "folder": str(folder),
        "outer_pid": stranger.pid,
        "outer_start": ticks if boot else ticks - 1,
        "inner_pid": stranger.pid,
        "user_namespace": False,
        "environment": {},
        "boot": boot,
    }
    (folder / "site.json").write_text(json.dumps(site))
    assert handle.find("old") is None
    assert handle.remove("old") is False
    assert stranger.poll() is None and not folder.exists()


def test_what_a_killed_command_had_begun_to_pitch_is_ended(cache: Path, stranger: subprocess.Popen[bytes]) -> None:
    """A process with a supervisor's command line and no site.json, and one that had entered its site."""
    folder = handle.site_dir("begun")
    folder.mkdir(parents=True)
    wait = [sys.executable, "-c", "import time; time.sleep(120)"]
    keeper = subprocess.Popen([*wait, "-m", handle.SUPERVISOR, str(folder)], start_new_session=True)
    guest = subprocess.Popen(wait, env=os.environ | {handle.FOLDER_VARIABLE: str(folder)}, start_new_session=True)
    until = time.monotonic() + 10
    while keeper.pid not in handle.supervisors(folder) and time.monotonic() < until:
        time.sleep(0.01)
    assert handle.remove("begun") is True
    assert keeper.wait(timeout=5) == guest.wait(timeout=5) == -9
    assert stranger.poll() is None and not folder.exists()


def test_a_plugin_whose_engine_was_killed_ends_by_itself() -> None:
    """It would lie about for ever: a look at AWS runs on no leash, since it changes nothing."""
    plugin = f"{sys.executable} -m infra.rehearsal.plugins.aws & echo $!; wait"
    engine = subprocess.Popen(["sh", "-c", plugin], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    pid, port = int(engine.stdout.readline()), int(engine.stdout.readline())
    assert port and start_ticks(pid) is not None
    engine.kill()
    engine.wait()
    until = time.monotonic() + 60
    while start_ticks(pid) is not None:
        assert time.monotonic() < until, "the plugin has outlived its engine"
        time.sleep(0.05)


def test_doctor_names_the_limit_of_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_sysctl", lambda name: "100" if name == "user/max_user_namespaces" else None)
    cure = doctor._namespace_cure("namespaces", True, "unshare: unshare failed: No space left on device")
    assert "user.max_user_namespaces=400" in cure


def test_doctor_names_a_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")
    findings = {finding.subject: finding for finding in doctor._packages()}
    assert "make setup" in findings["pulumi"].cure and "pulumi" in findings and not findings["pulumi"].ok
