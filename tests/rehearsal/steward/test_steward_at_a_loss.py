"""A steward whose archive finds no node, or whose file system falls silent: both end in time, and are said."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.campaign import supervise
from infra.campaign.supervise import StewardWatch
from infra.cluster.nodes import GpuNodes
from infra.cluster.steward_config import STEWARD_LEASE
from infra.errors import PermanentError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched
from infra.record.store import LIVE
from infra.session.session import opened
from infra.spec.names import Names
from infra.steward import archiving, returns
from infra.steward.seeing import committed
from infra.steward.seeing.committed import Committed
from tests.worlds.account_site import until
from tests.worlds.steward_site import Fuse, StewardSite, lone_camp

SPEC: dict[str, Any] = {"campaign": "loss", "recovery": {"capacity_timeout": "4s"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StewardSite]:
    with lone_camp(tmp_path_factory, **SPEC) as camp:
        yield camp


@pytest.fixture
def camp(made: StewardSite, monkeypatch: pytest.MonkeyPatch) -> StewardSite:
    """Trained to its end; its archive's Job fails for its own cause, or has a pod once there is a node."""
    made.ends = (0,)
    made.forget()
    return made


def job(camp: StewardSite, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """As Kubernetes: a Job's pod waits until there is a node."""

    def created(document: dict[str, Any]) -> None:
        if document.get("kind") != "Job":
            camp.created(document)
        elif fails:
            document["status"] = {"failed": 3}
        elif camp.site.alive():
            camp.created(document)

    def with_a_node() -> list[dict[str, Any]]:
        for (_, plural, _, _), document in list(camp.api.objects.items()):
            if plural == "jobs" and not document.get("status") and camp.site.alive() and not fails:
                camp.created(document)
        return nodes()

    nodes = camp.api.nodes
    monkeypatch.setattr(camp.api, "created", created)
    monkeypatch.setattr(camp.api, "nodes", with_a_node)


def nodes_of(camp: StewardSite) -> GpuNodes:
    return GpuNodes(Account(camp.spec.region), camp.client(Fuse()), Names(camp.spec.campaign), lambda: None)


def errors(camp: StewardSite) -> list[str]:
    return [str(e.data["error"]) for e in camp.store().events() if e.kind == "archive.failed"]


def failed_once(camp: StewardSite, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as patch:
        job(camp, patch, fails=True)
        assert camp.steward(Fuse())
    assert len(errors(camp)) == 1 and camp.state().closed and nodes_of(camp).desired() == 0
    until(lambda: not camp.site.alive())


@pytest.mark.nightly
def test_a_steward_that_starts_after_a_failed_archive_asks_for_one_node_and_archives(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_once(camp, monkeypatch)
    job(camp, monkeypatch, fails=False)
    assert camp.steward(Fuse())
    assert camp.state().archive is not None and camp.state().closed and nodes_of(camp).desired() == 0
    kinds = camp.kinds()
    assert kinds[-3:] == ["archive.begun", "archive.verified", "nodes.at-zero"]
    assert camp.steward(Fuse()) and camp.kinds() == kinds, "another one finds nothing to do"


@pytest.mark.parametrize("short_of", ["time", pytest.param("money", marks=pytest.mark.nightly)])
def test_no_node_is_asked_for_when_deadline_or_budget_do_not_cover_the_archive(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch, short_of: str
) -> None:
    failed_once(camp, monkeypatch)
    changes: dict[str, Any] = {"deadline": datetime.now(UTC) + timedelta(seconds=5), "archive": timedelta(minutes=1)}
    if short_of == "money":
        changes = {"node_usd_per_hour": Decimal(10**9), "archive": timedelta(minutes=1)}
    assert camp.steward(Fuse(), **changes)
    words = errors(camp)[-1]
    assert "no GPU node for the archive" in words and "checkpoints restore loss FOLDER --tier shared" in words
    assert ("deadline" in words) == (short_of == "time") and not camp.site.alive() and camp.state().closed


@pytest.mark.nightly
def test_an_archive_whose_node_never_comes_ends_and_says_what_it_waited_for(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training that ended for want of capacity: no node was left."""
    failed_once(camp, monkeypatch)

    monkeypatch.setattr(camp.api, "created", lambda document: None)
    assert camp.steward(Fuse())
    assert "found no GPU node within 0:00:04" in errors(camp)[-1] and "checkpoints restore" in errors(camp)[-1]
    assert nodes_of(camp).desired() == 0 and camp.state().closed
    assert not [key for key in camp.api.objects if key[1] == "jobs"], "nothing waits for the next node"


def test_an_archive_that_the_deadline_cuts_off_ends_with_it(camp: StewardSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline's schedule has taken the nodes away under the Job."""
    monkeypatch.setattr(archiving, "_AFTER_DEADLINE", timedelta(seconds=1))

    def created(document: dict[str, Any]) -> None:
        if document.get("kind") == "Job":
            nodes_of(camp).set_desired(0)
        else:
            camp.created(document)

    monkeypatch.setattr(camp.api, "created", created)
    # Well before the 4 s within which a node must come.
    assert camp.steward(Fuse(), deadline=datetime.now(UTC) + timedelta(seconds=2))
    assert "did not end by the deadline" in errors(camp)[-1] and camp.state().closed


@pytest.mark.nightly
def test_the_driver_names_both_ways_to_a_checkpoint_that_is_not_archived(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_once(camp, monkeypatch)
    plan = make_plan(camp.spec, survey(camp.spec))
    with (
        opened(camp.spec, plan, Console(file=StringIO()), None) as context,
        pytest.raises(PermanentError, match="the archive failed") as refused,
    ):
        supervise.archive(context)
    assert "rollout restart" in (refused.value.cure or "") and "checkpoints restore" in (refused.value.cure or "")


def test_training_goes_on_after_a_dead_node_that_aws_took_back_only_at_the_third_call(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals passed for success: the gang never was whole again, and what was left of it billed for nothing."""
    monkeypatch.setattr(returns, "AGAIN_S", 0.1)
    spec = camp.spec.model_copy(
        update={"recovery": camp.spec.recovery.model_copy(update={"capacity_timeout": timedelta(minutes=2)})}
    )
    bad = nodes_of(camp).facts()[0]
    camp.store().append(AttemptLaunched(attempt=1, jobset="loss-a1", committed_step=-1))
    told = {"failure": "node", "detail": "died", "committed_at_end": 10, "dead_nodes": [bad.name], "step": 12}
    camp.store().append(AttemptEnded(attempt=1, **told))
    action = "TerminateInstanceInAutoScalingGroup"
    rule = {"action": action, "code": "ResourceContention", "message": "not now", "status": 400, "times": 2}
    faults = f"{camp.site.world.endpoint_url}/_site/faults"
    urllib.request.urlopen(faults, data=json.dumps({"add": [rule]}).encode()).close()
    assert camp.steward(Fuse(), spec=spec)
    with urllib.request.urlopen(faults, data=b"") as answer:
        assert json.loads(answer.read())["rules"][-1]["hits"] == 2
    state = camp.state()
    assert state.outcome == "done" and len(state.attempts) == 2 and len(state.repairs) == 1
    assert bad.instance not in {one.settings["instance_id"] for one in camp.site.alive()}


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lustre's client blocks in stat, from the second look on, until its server is back."""
    back, looks, real = threading.Event(), [0], Committed._newest

    def newest(self: Committed) -> int:
        looks[0] += 1
        if looks[0] > 1:
            back.wait(60)
        return real(self)

    monkeypatch.setattr(Committed, "_newest", newest)
    monkeypatch.setattr(committed, "PATIENCE_S", 0.5)
    yield back
    back.set()


def test_a_steward_whose_file_system_falls_silent_still_keeps_the_deadline(
    camp: StewardSite, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camp.api, "created", lambda document: None)  # the gang never starts, nor does the archive
    monkeypatch.setattr(archiving, "_AFTER_DEADLINE", timedelta(seconds=1))
    assert camp.steward(Fuse(), deadline=datetime.now(UTC) + timedelta(seconds=6), grace_seconds=0)
    state = camp.state()
    assert state.outcome == "stopped" and state.closed and nodes_of(camp).desired() == 0
    live = camp.store().get_json(LIVE)
    assert live and "the shared tier cannot be seen" in live["why"]


def test_what_nobody_could_look_at_is_not_recorded_as_nothing(
    camp: StewardSite, hung: threading.Event, tmp_path: Path
) -> None:
    tier = Committed("loss", camp.state(), str(tmp_path))
    assert tier.step() == -1 and not tier.troubles(), "seen once"
    assert tier.may_be_there() and tier.to_record() is None and tier.troubles()
    camp.store().append(AttemptLaunched(attempt=1, jobset="loss-a1", committed_step=20))
    later = Committed("loss", camp.state(), str(tmp_path))
    assert later.step() == 20 and later.to_record() == 20 and "20 is the last known" in later.troubles()[0]
    hung.set()
    assert until(lambda: later.step() == -1 and not later.troubles()), "seen again, it is believed"


def test_a_steward_that_renews_its_lease_and_decides_nothing_is_said(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_LOOK_EVERY_S", 0.0)
    store = camp.store("steward-mute")
    lease = store.lease(STEWARD_LEASE, timedelta(seconds=60))
    lease.acquire()
    store.put_json(LIVE, {"at": "then"})
    try:
        with opened(camp.spec, make_plan(camp.spec, survey(camp.spec)), Console(file=StringIO()), None) as context:
            watch = StewardWatch(context)
            assert watch.look() is None
            monkeypatch.setattr(watch, "_mute_s", 0.2)
            until(lambda: "has decided nothing" in (watch.look() or ""))
            store.put_json(LIVE, {"at": "now"})
            assert watch.look() is None
    finally:
        lease.release()
