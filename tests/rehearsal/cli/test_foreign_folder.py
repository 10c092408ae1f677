"""A rehearsal from the folder of a project with an `infra` and a `trainer` of its own, that never came to a record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.cli.records import NO_RECORD
from infra.folders import cache_root
from infra.rehearsal.site import handle
from tests.root import ROOT
from tests.terminal import on_terminal
from tests.waiting import HUNG_S

BIVOUAC = [sys.executable, "-P", "-m", "infra.cli.main"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A person's folder, with a spec; and a cache and a site of its own."""
    cache, folder = tmp_path / "cache", tmp_path / "project"
    cache.mkdir()
    for tools in ("bin", "share", "stamps", "memory"):
        (cache / tools).symlink_to(cache_root() / tools)
    for foreign in ("infra", "trainer"):
        (folder / foreign).mkdir(parents=True)
        (folder / foreign / "__init__.py").write_text(f"raise SystemExit('the {foreign} of another project')\n")
    document: dict[str, Any] = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    (folder / "campaign.yaml").write_text(yaml.safe_dump(document | {"campaign": "early"}))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    name = f"foreign-{os.getpid()}"
    variables = {
        "BIVOUAC_CACHE": str(cache), "BIVOUAC_SITE_NAME": name, "BIVOUAC_RESULTS": str(tmp_path / "results"),
        "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT), "COLUMNS": "300",
    }  # fmt: skip
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    yield folder
    handle.remove(name)


def bivouac(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BIVOUAC, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HUNG_S
    )


def listed(folder: Path) -> dict[str, str]:
    found = bivouac(folder, "list", "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    return {campaign["campaign"]: campaign["stage"] for campaign in json.loads(found.stdout)["campaigns"]}


@pytest.mark.nightly
def test_what_has_no_record_is_listed_and_removed_and_no_module_there_is_imported(project: Path) -> None:
    site = os.environ["BIVOUAC_SITE_NAME"]
    # As `run` until its first record: the site is started and entered, AWS is asked.
    asked = bivouac(project, "check", "campaign.yaml", "--online")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert handle.find(site) is not None and listed(project) == {"early": NO_RECORD}
    told = bivouac(project, "status", "early")
    assert told.returncode == 0 and "not begun" in told.stdout and "`bivouac down early` removes" in told.stdout
    refused = bivouac(project, "logs", "early")
    assert refused.returncode == 64 and "has not begun" in refused.stderr, refused.stderr
    refused = bivouac(project, "down", "early")
    assert refused.returncode == 64 and "nobody can answer: Remove the site of early?" in refused.stderr
    code, shown = on_terminal([*BIVOUAC, "down", "--all"], "n\n", os.environ, project)
    assert code == 64 and f"early    {NO_RECORD}" in shown and handle.find(site) is not None, shown
    code, shown = on_terminal([*BIVOUAC, "down", "early"], "y\n", os.environ, project)
    assert code == 0 and f"site {site} is removed" in shown, shown
    assert not handle.site_dir(site).exists() and listed(project) == {}


def test_a_site_that_does_not_run_is_told_as_that_and_removed(project: Path) -> None:
    folder = handle.site_dir(os.environ["BIVOUAC_SITE_NAME"])
    (folder / "campaigns").mkdir(parents=True)
    (folder / "campaigns/early.json").write_text("{}")
    assert listed(project) == {"early": "its site does not run: bivouac down early"}
    told = bivouac(project, "status", "early")
    assert told.returncode == 64 and "the site of this rehearsal does not run" in told.stderr, told.stderr
    assert bivouac(project, "down", "early").returncode == 64 and folder.exists()
    done = bivouac(project, "down", "early", "--yes", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["site"] == "did not run" and not folder.exists()
