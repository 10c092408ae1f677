"""A rehearsal needs no root where user namespaces are allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.folders import cache_root
from infra.rehearsal.site import handle
from tests.root import ROOT
from tests.waiting import HUNG_S

NO_ROOT = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"] if os.geteuid() == 0 else []
"""Root's way to become somebody else: another user id, no capability, the same files."""
DAY = """
import dataclasses, json, os, subprocess, sys
from pathlib import Path
from infra.rehearsal.site import handle

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
ask = "import urllib.request as r; print(r.urlopen('http://10.77.0.2:5000/_site/ready', timeout=5).status)"
try:
    site = handle.ensure(sys.argv[1], lambda line: print(line, file=sys.stderr))
    inside = subprocess.run(site.entry([sys.executable, "-c", ask]), stdout=subprocess.PIPE, text=True, check=True)
finally:
    struck = handle.remove(sys.argv[1])
print(json.dumps({"euid": os.geteuid(), "capabilities": int(status["CapEff"], 16), "answer": inside.stdout.strip(),
                  "struck": struck, "alive": site.alive(), "site": dataclasses.asdict(site)}))
"""


def test_a_site_is_pitched_and_struck_by_an_unprivileged_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, name = tmp_path / "cache", f"rootless-{os.getpid()}"
    cache.mkdir()
    for tools in ("bin", "share", "stamps"):
        (cache / tools).symlink_to(cache_root() / tools)
    monkeypatch.setenv("BIVOUAC_CACHE", str(cache))
    try:
        done = subprocess.run(
            [*NO_ROOT, sys.executable, "-c", DAY, name], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S
        )
    finally:
        left = handle.remove(name)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["euid"] != 0 and document["capabilities"] == 0
    assert document["site"]["user_namespace"] and document["answer"] == "200"
    assert document["struck"] and not document["alive"]
    assert not left and not handle.Site(**document["site"]).alive()
