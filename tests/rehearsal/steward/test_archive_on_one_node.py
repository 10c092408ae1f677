"""Once training is over all nodes but one are given back, and the archive's pod comes to the one that stays."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from infra.aws.account import Account
from infra.cluster.nodes import GpuNodes
from infra.record.events import Event, Stage
from infra.record.meter import read
from infra.record.payloads.stages import StageStarted
from infra.spec.names import Names
from infra.steward import archiving
from infra.steward.seeing import committed
from infra.steward.seeing.committed import Committed
from tests.unit.record.cost_lines import lines
from tests.worlds.account_site import until
from tests.worlds.steward_site import Fuse, StewardSite, lone_camp

SPEC: dict[str, Any] = {"campaign": "one", "recovery": {"capacity_timeout": "20s"}}
NODES = 5
"""More than the gang needs: which of them stays is no accident of two."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StewardSite]:
    with lone_camp(tmp_path_factory, **SPEC) as camp:
        yield camp


@pytest.fixture
def camp(made: StewardSite, monkeypatch: pytest.MonkeyPatch) -> StewardSite:
    monkeypatch.setattr(archiving, "AGAIN_S", 0.05)
    made.ends = (0,)
    made.forget()
    made.group_of(NODES)
    return made


class Archive:
    """Kubernetes' part: the Job's pod comes to any node that takes pods, and ends once the others are gone."""

    def __init__(self, camp: StewardSite, patch: pytest.MonkeyPatch, left: int = 1) -> None:
        self.camp, self.left = camp, left
        self.open: list[str] = []
        """Instances whose nodes took pods when the Job was made."""
        patch.setattr(camp.api, "created", self._created)

    def _created(self, document: dict[str, Any]) -> None:
        if document.get("kind") != "Job":
            self.camp.created(document)
            return
        self.open = [node.instance for node in nodes_of(self.camp).facts() if not node.cordoned]
        threading.Thread(target=self._end, args=(document,), daemon=True).start()

    def _end(self, document: dict[str, Any]) -> None:
        until(lambda: len(self.camp.site.alive()) == self.left and self._said())
        self.camp.created(document)

    def _said(self) -> bool:
        return self.left > 1 or "archive.begun" in self.camp.kinds()


def nodes_of(camp: StewardSite) -> GpuNodes:
    return GpuNodes(Account(camp.spec.region), camp.client(Fuse()), Names(camp.spec.campaign), lambda: None)


def event(camp: StewardSite, kind: str) -> Event:
    (found,) = (one for one in camp.store().events() if one.kind == kind)
    return found


def watched(camp: StewardSite, patch: pytest.MonkeyPatch) -> list[str]:
    """Instances in the order in which they are given back."""
    gone: list[str] = []
    real = GpuNodes.release

    def noted(self: GpuNodes, instance: str) -> bool:
        gone.append(instance)
        return real(self, instance)

    patch.setattr(GpuNodes, "release", noted)
    return gone


def test_the_archive_runs_on_one_node_while_the_others_are_given_back(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, before = Archive(camp, monkeypatch), len(camp.site.machines)
    gone = watched(camp, monkeypatch)
    assert camp.steward(Fuse())
    assert len(archive.open) == 1 and len(gone) == NODES - 1 and not set(archive.open) & set(gone)
    assert len(camp.site.machines) == before, "none came in their place"
    kinds = camp.kinds()
    assert kinds[-4:] == ["training.finished", "archive.begun", "archive.verified", "nodes.at-zero"]
    assert nodes_of(camp).desired() == 0 and camp.state().closed


def test_the_meter_counts_one_node_as_soon_as_the_others_are_gone(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    Archive(camp, monkeypatch)
    camp.store().append(StageStarted(stage=Stage.PREFLIGHT))
    assert camp.steward(Fuse())
    begun = event(camp, "archive.begun")
    until_then = [one for one in camp.store().events() if one.at <= begun.at]
    bill, later = lines(10, 2 * camp.spec.nodes.count), begun.at + timedelta(hours=1)
    assert read(bill, until_then[:-1], begun.at).usd_per_hour == 10 + 2 * NODES
    before, after = (read(bill, until_then, at) for at in (begun.at, later))
    assert before.usd_per_hour == after.usd_per_hour == 10 + 2
    assert float(after.spent_usd - before.spent_usd) == pytest.approx(10 + 2)
    assert begun.data["released"] == NODES - 1


@pytest.mark.nightly
def test_the_successor_of_a_steward_killed_while_giving_nodes_back_archives_on_the_same(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Archive(camp, patch)
        whole = Fuse()
        assert camp.steward(whole)
    first = next(at for at, what in enumerate(whole.writes) if what == "record training.finished") + 1
    last = next(at for at, what in enumerate(whole.writes) if "jobs" in what and at > first)
    giving = [whole.writes[at] for at in range(first, last)]
    assert sum("give back" in what for what in giving) == NODES - 1 and sum("PATCH" in w for w in giving) == NODES - 1
    every, said = range(first, last + 1), whole.writes.index("record archive.begun")
    for at in every if "BIVOUAC_EVERY_WRITE" in os.environ else (first + 2, first + NODES + 1, said):
        camp.forget()
        camp.group_of(NODES)
        archive, before = Archive(camp, monkeypatch), len(camp.site.machines)
        assert not camp.steward(Fuse(at)), whole.writes[at]
        open_ = [node.instance for node in nodes_of(camp).facts() if not node.cordoned]
        assert camp.steward(Fuse()), f"killed before {whole.writes[at]}"
        assert len(archive.open) == 1 and archive.open[0] in open_, f"killed before {whole.writes[at]}"
        assert len(camp.site.machines) == before, f"none came in their place: killed before {whole.writes[at]}"
        assert camp.state().archive is not None and camp.kinds().count("archive.begun") == 1
        assert nodes_of(camp).desired() == 0


def test_an_instance_that_aws_does_not_take_back_is_offered_again_while_the_archive_runs(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(camp, monkeypatch)
    rule = {
        "action": "TerminateInstanceInAutoScalingGroup", "code": "ResourceContention", "message": "not now",
        "status": 400, "times": 5,
    }  # fmt: skip
    faults = f"{camp.site.world.endpoint_url}/_site/faults"
    urllib.request.urlopen(faults, data=json.dumps({"add": [rule]}).encode()).close()
    assert camp.steward(Fuse())
    with urllib.request.urlopen(faults, data=b"") as answer:
        assert json.loads(answer.read())["rules"][-1]["hits"] == 5
    assert len(archive.open) == 1 and camp.state().archive is not None
    assert "archive.begun" in camp.kinds()


def test_while_the_shared_tier_cannot_be_seen_every_node_stays(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest checkpoint may lie on the nodes' own disks alone."""
    archive, back, real = Archive(camp, monkeypatch, left=NODES), threading.Event(), Committed._newest
    gone = watched(camp, monkeypatch)

    def newest(self: Committed) -> int:
        if camp.state().attempts:
            back.wait(60)
        return real(self)

    monkeypatch.setattr(Committed, "_newest", newest)
    monkeypatch.setattr(committed, "PATIENCE_S", 0.3)
    try:
        assert camp.steward(Fuse())
    finally:
        back.set()
    assert len(archive.open) == NODES and not gone and "archive.begun" not in camp.kinds()
    assert camp.state().archive is not None
