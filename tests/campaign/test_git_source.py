"""A job whose source is a branch of a repository trains from the commit that it was when the campaign began."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.campaign.rehearsal import rehearsing
from tests.root import ROOT

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/ddp"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


def test_a_branch_is_fetched_packed_and_trained_and_its_commit_is_in_record_and_report(tmp_path: Path) -> None:
    code = tmp_path / "code"
    shutil.copytree(ROOT / EXAMPLE, code)
    git(code, "init", "-q", "-b", "main"), git(code, "add", "-A"), git(code, "commit", "-qm", "one")
    commit = git(code, "rev-parse", "HEAD").strip()
    (code / "train.py").write_text("raise SystemExit('not committed, so not of the branch')\n")
    workload = {"source": {"git": f"file://{code}", "ref": "main"}}
    changes = {"campaign": "by-branch", "workload": workload, "rehearsal": {"faults": []}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["outcome"] == "done"
        assert [text for text in map(json.dumps, rehearsal.events()) if f'"source_commit": "{commit}"' in text]
        assert f"{commit}" in (rehearsal.results / "report.html").read_text()
