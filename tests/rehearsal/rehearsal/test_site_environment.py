"""A site started and entered from a shell that is set up for another world: none of that is in any of its processes."""

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
from tests.unit.rehearsal.test_site_environment import HOSTILE
from tests.waiting import HUNG_S

DAY = """
import json, os, subprocess, sys
from pathlib import Path

os.environ.update(json.loads(sys.argv[2]))  # after our own imports: this process is not the one that is tried
from infra.rehearsal.site import handle

site = handle.ensure(sys.argv[1], lambda line: print(line, file=sys.stderr))
children = Path(f"/proc/{site.inner_pid}/task/{site.inner_pid}/children").read_text().split()
inner = [Path(f"/proc/{pid}/environ").read_text().split(chr(0)) for pid in (site.inner_pid, *children)]
print(json.dumps({"inside": inner}), flush=True)
look = '''
import json, os, boto3
buckets = boto3.client("s3").list_buckets()["Buckets"]
who = boto3.client("sts").get_caller_identity()["Account"]
print(json.dumps({"entered": dict(os.environ), "account": who, "buckets": len(buckets)}))
'''
handle.enter(site, [sys.executable, "-c", look])
"""


@pytest.mark.nightly
def test_a_site_is_started_and_entered_whatever_the_shell_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, name = tmp_path / "cache", f"bare-{os.getpid()}"
    cache.mkdir()
    for tools in ("bin", "share", "stamps"):
        (cache / tools).symlink_to(cache_root() / tools)
    monkeypatch.setenv("BIVOUAC_CACHE", str(cache))
    hostile = {key: value for key, value in HOSTILE.items() if key not in ("LD_PRELOAD", "PYTHONHOME")}
    try:
        command = [sys.executable, "-c", DAY, name, json.dumps(hostile)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    finally:
        handle.remove(name)
    assert done.returncode == 0, done.stderr
    inside, entered = (json.loads(line) for line in done.stdout.splitlines())
    assert len(inside["inside"]) >= 3, "the supervisor, the emulated AWS and the faults"
    for environment in inside["inside"]:
        assert {word for word in environment if HOSTILE.get(word.partition("=")[0]) == word.partition("=")[2]} == set()
    assert {key for key, value in entered["entered"].items() if HOSTILE.get(key) == value} == set()
    assert entered["account"].isdigit() and entered["account"] != HOSTILE["MOTO_ACCOUNT_ID"]
