"""When a rehearsal's faults strike: each once, and a later one after the campaign has overcome the earlier."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import target
from infra.folders import site_dir
from infra.record.payloads import payload_of
from infra.record.store import LIVE, CampaignStore
from infra.rehearsal.drills.moments import Moment, moments_in, note
from infra.rehearsal.site import campaigns, faults
from infra.spec.campaign import Spec
from infra.spec.drills.scenarios import scenarios
from tests.root import ROOT
from tests.worlds.s3 import FakeS3, Time

RANK = {"kill_node": None, "kill_rank": 1, "after_step": 20}
NODE = {"kill_node": 0, "kill_rank": None, "after_step": 36}
PODS = {"pods": [{"index": n, "node": f"node-{n}"} for n in (0, 1)]}
NODES = {"nodes": [{"name": f"node-{n}", "instance": f"i-{n}"} for n in (0, 1)]}


class FaultySite:
    def __init__(self, folder: Path) -> None:
        self.folder, self.struck, self.refuses = folder, list[str](), False
        (folder / "campaigns").mkdir()
        s3: Any = FakeS3(Time())
        self.ahead = timedelta()
        self.store = CampaignStore(s3, "state", "two", "steward", now=self.now)
        site = self

        class Hands(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if not site.refuses:
                    site.struck.append(self.path)
                self.send_response(503 if site.refuses else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Hands)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def look(self, step: int, *asked: dict[str, Any], in_flight: bool = True, committed: int = -1) -> list[str]:
        """Publish training's figures, and return what strikes then."""
        before = len(self.struck)
        figures = {"at": self.now().isoformat(), "in_flight": in_flight, "step": step, "committed_step": committed}
        self.store.put_json(LIVE, figures | {"usd_per_hour": 36.0} | PODS | NODES)
        faults.strike(self.folder, self.endpoint, {"campaign": "two", "faults": list(asked)}, self.store)
        return self.struck[before:]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FaultySite]:
    faulty_site = FaultySite(tmp_path)
    yield faulty_site
    faulty_site.server.shutdown()
    faulty_site.server.server_close()


def test_a_fault_strikes_once_after_its_step_and_a_refused_one_is_tried_again(site: FaultySite) -> None:
    assert site.look(19, RANK) == [] and site.look(20, RANK, in_flight=False) == []
    site.refuses = True
    assert site.look(20, RANK) == []
    site.refuses = False
    assert site.look(21, RANK) == ["/_site/kill-rank?instance=i-1"]
    assert site.look(22, RANK) == []


@pytest.mark.parametrize("overcome", ["attempt.ended", "attempt.restarted-in-place"])
def test_a_later_fault_waits_until_the_earlier_is_overcome_however_fast_the_steps(
    overcome: str, site: FaultySite
) -> None:
    site.store.append(payload_of(overcome, {"attempt": 1}))
    assert site.look(40, NODE, RANK) == ["/_site/kill-rank?instance=i-1"]
    assert site.look(50, NODE, RANK) == [], "what was overcome before does not count"
    stale = site.now() + timedelta(seconds=1)
    site.ahead = timedelta(seconds=2)
    site.store.append(payload_of(overcome, {"attempt": 1}))
    site.ahead = stale - datetime.now(UTC)
    assert site.look(50, NODE, RANK) == [], "the figures are older than the restart"
    site.ahead = timedelta(seconds=60)
    assert site.look(35, NODE, RANK) == []
    assert site.look(37, NODE, RANK) == ["/_site/kill?instance=i-0"]


def test_faults_after_the_same_step_strike_together(site: FaultySite) -> None:
    assert len(site.look(40, RANK, NODE | {"after_step": 20})) == 2


def named(fault: str, after_step: int) -> dict[str, Any]:
    return {"kill_node": None, "kill_rank": None, "fault": fault, "after_step": after_step}


def test_a_fault_that_passes_is_undone_and_the_next_waits_until_a_new_step_is_committed(
    site: FaultySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = named("api-server-down", 20), named("steward-killed", 30)
    shorter = {**scenarios(), "api-server-down": scenarios()["api-server-down"].model_copy(update={"lasts_s": 0.0})}
    monkeypatch.setattr(faults, "scenarios", lambda: shorter)
    assert site.look(19, first, second) == []
    assert site.look(40, first, second) == ["/_site/control-plane?hand=freeze"]
    assert site.look(40, first, second, in_flight=False) == ["/_site/control-plane?hand=thaw"]
    site.ahead = timedelta(seconds=-5)
    assert site.look(90, first, second, committed=90) == [], "the figures are older than its end"
    site.ahead = timedelta(seconds=5)
    assert site.look(90, first, second, committed=90, in_flight=False) == []
    assert site.look(40, first, second, committed=40) == [], "no step was trained since"
    assert site.look(41, first, second, committed=40) == []
    assert site.look(61, first, second, committed=40) == [], "no such step is committed"
    assert site.look(62, first, second, committed=60) == [] != site.look(62, first, second, committed=60)
    seen = moments_in(site.folder, "two")
    assert {kind for number, kind in seen if number == 0} == {"struck", "over", "caught-up", "recovered"}
    assert (seen[0, "caught-up"].step, seen[0, "recovered"].step, seen[0, "struck"].usd_per_hour) == (41, 60, 36.0)
    assert (1, "struck") in seen and set(campaigns.struck_in(site.folder, "two")) == {0, 1}


def test_a_fault_that_costs_processes_is_overcome_once_they_are_back(site: FaultySite) -> None:
    fault = named("node-killed", 20)
    assert site.look(25, fault) == ["/_site/kill?instance=i-1"]
    site.ahead = timedelta(seconds=5)
    assert site.look(25, fault) == [] and site.look(31, fault, committed=30) == []
    site.store.append(payload_of("attempt.ended", {"attempt": 1, "step": 33}))
    site.ahead = timedelta(seconds=9)
    for step, committed in ((32, 30), (33, 32), (34, 32)):
        assert site.look(step, fault, committed=committed) == []
    seen = moments_in(site.folder, "two")
    assert seen[0, "caught-up"].step == 34, "33 was trained before"
    assert (0, "recovered") not in seen


def test_a_fault_that_follows_an_event_waits_for_it(site: FaultySite) -> None:
    fault = named("lustre-gone", 20)
    assert site.look(40, fault) == []
    site.store.append(payload_of("checkpoint.copied", {"step": 20}))
    assert site.look(40, fault) == ["/_site/lost-file-systems?campaign=two"]


def test_what_is_expected_in_the_record_is_waited_for(site: FaultySite) -> None:
    fault = named("prometheus-down", 20)
    moment = Moment(fault=0, kind="struck", at=site.now(), step=25)
    for kind in ("struck", "over"):
        note(site.folder, "two", moment.model_copy(update={"kind": kind}))
    site.ahead = timedelta(seconds=5)
    assert site.look(90, fault, committed=80) == [] and (0, "caught-up") not in moments_in(site.folder, "two")
    site.store.append(payload_of("alerts.unseen", {"why": "it is silent"}))
    assert site.look(90, fault, committed=80) == [] and (0, "caught-up") in moments_in(site.folder, "two")


def test_a_fault_of_the_teardown_waits_until_that_has_begun_and_needs_no_gang(
    site: FaultySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = named("dependency-violation", 20), named("destroy-interrupted", 30)
    assert site.look(40, first, second) == []
    site.store.append(payload_of("stage.started", {"stage": "archive"}))
    assert site.look(40, first, second) == []
    site.store.append(payload_of("stage.started", {"stage": "teardown"}))
    monkeypatch.setitem(PODS, "pods", [])
    assert site.look(40, first, second, in_flight=False) == ["/_site/faults?"]
    assert {(0, "struck"), (1, "due")} <= moments_in(site.folder, "two").keys(), "they strike together"


def test_a_fault_that_ends_the_training_is_over_with_it(site: FaultySite) -> None:
    fault = named("user-error", 20)
    assert len(site.look(25, fault)) == 1
    site.ahead = timedelta(seconds=5)
    for step in (25, 60, 90):
        site.look(step, fault, committed=step)
    assert (0, "recovered") not in moments_in(site.folder, "two"), "it trains on"
    site.store.append(payload_of("training.finished", {"outcome": "held", "why": ""}))
    site.look(90, fault, in_flight=False)
    assert (0, "recovered") in moments_in(site.folder, "two")


def test_a_driver_is_left_to_whoever_conducts_the_drill(site: FaultySite) -> None:
    fault = named("driver-killed", 20)
    assert site.look(25, fault) == site.look(26, fault) == []
    assert set(moments_in(site.folder, "two")) == {(0, "due")} and campaigns.struck_in(site.folder, "two") == {}


def test_a_hand_that_is_refused_strikes_in_the_next_round(site: FaultySite) -> None:
    site.refuses = True
    assert site.look(25, named("node-killed", 20)) == [] and moments_in(site.folder, "two") == {}
    site.refuses = False
    assert site.look(25, named("node-killed", 20)) == ["/_site/kill?instance=i-1"]


def test_what_has_not_struck_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    content = yaml.safe_load((ROOT / "tests/unit/base.yaml").read_text())
    content["rehearsal"] = {"faults": [{"kill_rank": 1, "after_step": 20}, {"kill_node": 0, "after_step": 36}]}
    spec, folder = Spec.model_validate(content), site_dir(campaigns.SITE)
    folder.mkdir(parents=True)
    campaigns.remember(spec, folder)
    assert target.missed_faults(spec) == (), "this is no site"
    monkeypatch.setenv("BIVOUAC_SITE", campaigns.SITE)
    assert target.missed_faults(spec) == ("kill_rank: 1, after_step: 20", "kill_node: 0, after_step: 36")
    campaigns.note_struck(folder, spec.campaign, 0)
    assert target.missed_faults(spec) == ("kill_node: 0, after_step: 36",)
    assert [one["campaign"] for one in campaigns.campaigns_in(folder)] == [spec.campaign], "the note is no campaign"


def test_a_fault_of_the_teardown_keeps_none_of_the_training_waiting(site: FaultySite) -> None:
    end = {"fault": "destroy-interrupted", "kill_node": None, "kill_rank": None, "after_step": 10}
    assert site.look(21, end, RANK) == ["/_site/kill-rank?instance=i-1"]
