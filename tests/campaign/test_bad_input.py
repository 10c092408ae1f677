"""What a newcomer gets wrong: a clear error with its cure, and nothing left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.root import ROOT
from tests.waiting import HUNG_S

TEN_MISTAKES: dict[str, Any] = {
    "campaign": "A Name",
    "target": "moon",
    "account": "12",
    "money": {"budget_usd": -1, "deadlin": "4h"},
    "nodes": {"count": 0, "instance_type": "p5.4xlarge", "capacity": "free"},
    "training": {"steps": 0, "global_batch": 16, "zero_stage": 9},
    "zzz": 1,
}


def run(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BIVOUAC_CACHE": str(cache), "COLUMNS": "200"}
    command = [sys.executable, "-m", "infra.cli.main", "run", str(path)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)


def written(folder: Path, content: dict[str, Any] | None) -> Path:
    path = folder / "campaign.yaml"
    path.write_text("" if content is None else yaml.safe_dump(content))
    return path


def missing_data() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    return spec | {"data": {"source": "/nowhere/at/all"}}


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, ["an empty file"]), (missing_data(), ["/nowhere/at/all"]), (TEN_MISTAKES, ["deadline", "zzz", "capacity"])],
    ids=["empty", "missing data folder", "ten mistakes"],
)
def test_a_bad_spec_is_refused_with_cures_and_nothing_is_started(
    tmp_path: Path, content: dict[str, Any] | None, told: list[str]
) -> None:
    done = run(written(tmp_path, content), tmp_path / "cache")
    assert done.returncode == 64, done.stdout + done.stderr
    assert "cure" in done.stdout and all(word in done.stdout for word in told), done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cache" / "sites").exists()


def test_all_ten_mistakes_are_told_at_once(tmp_path: Path) -> None:
    done = run(written(tmp_path, TEN_MISTAKES), tmp_path / "cache")
    assert done.stdout.count("ERROR") >= 10, done.stdout


def test_an_unknown_campaign_is_told_with_what_there_is(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    environment |= {"BIVOUAC_CACHE": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-m", "infra.cli.main", "status", "nobody"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 64 and "cure" in done.stderr and "Traceback" not in done.stderr, done.stderr
