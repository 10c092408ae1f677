"""`bivouac rehearse` of the shipped spec for 32 nodes, as it is; a rehearsal by an installed wheel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.campaign.rehearsal import quick, rehearsing
from tests.root import ROOT
from tests.waiting import HUNG_S
from tests.wheel import Installed

pytestmark = pytest.mark.nightly
REAL = ROOT / "infra/campaigns/p5-32-nodes.yaml"


def test_the_shipped_spec_is_rehearsed_as_it_is_and_its_page_says_what_that_shows(tmp_path: Path) -> None:
    with rehearsing(tmp_path, {"campaign": "p5-32-nodes-dry"}) as rehearsal:
        done = rehearsal.run("rehearse", str(REAL), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(done.stdout)
        assert document["outcome"] == "done"
        events = rehearsal.events()
        assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]
        assert max(event["data"]["attempt"] for event in events if event["kind"] == "attempt.running") == 2
        page = (rehearsal.results / "rehearsed.md").read_text()
        assert "ended well" in page and "- `storage.shared.deployment`" in page and "| `nodes.count` | 32 | 2 |" in page


def test_an_installed_wheel_rehearses_without_a_clone(tmp_path: Path) -> None:
    """Its code is in the images and in the nodes."""
    installed = Installed(tmp_path, self_contained=True)
    with rehearsing(tmp_path, quick(40, campaign="wheel")) as rehearsal:
        environment = rehearsal.environment | {"PATH": installed.environment["PATH"]}
        environment.pop("PYTHONPATH", None)
        command = [str(installed.bivouac), "run", str(rehearsal.path)]
        done = subprocess.run(
            command, env=environment, cwd=installed.folder, capture_output=True, text=True, timeout=HUNG_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        assert [event["data"]["clean"] for event in rehearsal.events() if event["kind"] == "certified"] == [True]
        assert rehearsal.report()["training"]["steps_done"] == 40
