"""`bivouac rehearse` of the shipped spec for 32 nodes, as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.campaign.rehearsal import rehearsing
from tests.root import ROOT

pytestmark = pytest.mark.nightly
REAL = ROOT / "infra/campaigns/p5-32-nodes.yaml"


def test_the_shipped_spec_is_rehearsed_as_it_is_and_its_page_says_what_that_shows(tmp_path: Path) -> None:
    with rehearsing(tmp_path, {"campaign": "p5-32-nodes-dry"}) as rehearsal:
        done = rehearsal.run("rehearse", str(REAL), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        ended = json.loads(done.stdout)
        assert ended["outcome"] == "done"
        events = rehearsal.events()
        assert [one["data"]["clean"] for one in events if one["kind"] == "certified"] == [True]
        assert max(one["data"]["attempt"] for one in events if one["kind"] == "attempt.running") == 2
        page = (rehearsal.results / "rehearsed.md").read_text()
        assert "ended well" in page and "- `storage.shared.deployment`" in page and "| `nodes.count` | 32 | 2 |" in page
