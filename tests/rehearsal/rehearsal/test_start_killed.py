"""A driver killed with SIGKILL while it starts its site, under a path of spaces and umlauts, with every port taken."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.folders import cache_root
from infra.rehearsal.site import handle
from infra.rehearsal.site.layout import AWS_PORT
from tests.rehearsal.aws_account import until
from tests.root import ROOT
from tests.waiting import HUNG_S

BIVOUAC = [sys.executable, "-m", "infra.cli.main"]
PORTS = (AWS_PORT, 2379, 2380, 6443, 10250, 10257, 10259)
"""Of what a site runs, as a busy machine may have them in use."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of commands with a cache and a site of their own."""
    cache, name = tmp_path / "Zelte und Lücken 日本", f"begun-{os.getpid()}"
    cache.mkdir()
    for tools in ("bin", "share", "stamps"):
        (cache / tools).symlink_to(cache_root() / tools)
    variables = {"BIVOUAC_CACHE": str(cache), "BIVOUAC_SITE_NAME": name, "BIVOUAC_RESULTS": str(tmp_path / "results")}
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    try:
        yield environment | {"AWS_EC2_METADATA_DISABLED": "true"}
    finally:
        handle.remove(name)


@pytest.fixture
def ports_taken() -> Iterator[None]:
    with ExitStack() as held:
        for port in PORTS:
            taken = held.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("0.0.0.0", port))
            except OSError:
                continue  # somebody else has it already: so much the better
            taken.listen()
        yield


def spec_in(folder: Path) -> Path:
    document: dict[str, Any] = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    path = folder / "ein Feldzug.yaml"
    path.write_text(yaml.safe_dump(document | {"campaign": "begun"}))
    return path


def killed_while(reached: Callable[[], Any], spec: Path, environment: dict[str, str]) -> None:
    """`bivouac run`, SIGKILL as soon as `reached` holds; it must not have finished starting before."""
    with (spec.parent / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            [*BIVOUAC, "run", str(spec)], env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: driver.poll() is not None or reached())
        assert driver.poll() is None, (spec.parent / "driver.log").read_text()
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()


@pytest.mark.nightly
def test_what_a_driver_killed_while_pitching_leaves_is_removed_by_down_and_the_next_run(
    world: dict[str, str], tmp_path: Path, ports_taken: None
) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no namespaces here")
    name, spec = world["BIVOUAC_SITE_NAME"], spec_in(tmp_path)
    folder = handle.site_dir(name)
    killed_while(lambda: handle.supervisors(folder), spec, world)
    supervisors = handle.supervisors(folder)
    assert supervisors and not (folder / "site.json").exists(), "a site nobody has written down goes on"
    done = subprocess.run(
        [*BIVOUAC, "down", "begun", "--yes"], env=world, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S
    )
    assert done.returncode == 0 and f"site {name}" in done.stdout, done.stdout + done.stderr
    assert not folder.exists() and not handle.supervisors(folder)

    killed_while(lambda: handle.supervisors(folder), spec, world)
    orphans = handle.supervisors(folder)
    said: list[str] = []
    site = handle.ensure(name, said.append)
    assert "site: removed the leftovers of a killed start" in said
    assert not set(orphans) & set(handle.supervisors(folder)), "the killed one's site has gone"
    ask = f"import urllib.request as r; print(r.urlopen('http://10.77.0.2:{AWS_PORT}/_site/ready', timeout=9).status)"
    answer = subprocess.run(site.entry([sys.executable, "-c", ask]), capture_output=True, text=True, timeout=HUNG_S)
    assert answer.stdout.strip() == "200", answer.stderr
    begun = time.monotonic()
    assert handle.remove(name) and not site.alive()
    assert time.monotonic() - begun < handle._ENDS_WITHIN_S
