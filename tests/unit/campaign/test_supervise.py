"""What the driver says of an archive that has failed: which part is safe, and what may be done about the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import supervise
from infra.campaign.closing import SILENT
from infra.cli.run import run
from infra.errors import PermanentError
from infra.record.payloads import payload_of
from infra.record.store import CampaignStore
from tests.worlds.closer import UnattendedCampaign
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time

SPEC: Any = SimpleNamespace(campaign="story", cluster=None, job=SimpleNamespace(grace_s=1))


def archived(*ended: tuple[str, dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The stage's outcome for a training that has committed step 60, and what it noted."""
    s3: Any = FakeS3(Time())
    store, notes = CampaignStore(s3, "state", "story", "w"), list[str]()
    for kind, data in (
        ("training.finished", {"outcome": "done", "why": "", "committed_step": 60}),
        *ended,
        ("nodes.at-zero", {"group": "gpu"}),
    ):
        store.append(payload_of(kind, data))
    context: Any = SimpleNamespace(
        store=store, state=store.state, spec=SPEC, turns=lambda seconds: iter([1]),
        deadline=datetime.now(UTC) + timedelta(hours=1),
        progress=SilentProgress(notes),
    )  # fmt: skip
    return supervise.archive(context).data(), notes


def test_a_turn_of_the_watch_lists_the_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each listing is a request that AWS bills, or several."""
    listings: list[str] = []
    looked = CampaignStore.events

    def count(store: CampaignStore) -> Any:
        listings.append(store.campaign)
        return looked(store)

    monkeypatch.setattr(CampaignStore, "events", count)
    verified = {"step": 60, "objects": 9, "bytes": 100, "proof": "evaluated by the job's own command"}
    losses = {"restored_evaluation_loss": None, "reference_evaluation_loss": None}
    archived(("archive.verified", {**verified, **losses, "metrics": {"loss": 2.125}}))
    assert len(listings) == 2, "one before the first turn, one in it"


def test_a_bad_evaluation_says_that_the_bytes_are_safe_and_how_to_go_on() -> None:
    with pytest.raises(PermanentError) as told:
        archived(("archive.failed", {"error": "loss: 2.0 of the checkpoint, 3.0 of the export", "step": 60}))
    said = str(told.value)
    assert "step 60 is in the archive, every byte read back" in said and "loss: 2.0 of the checkpoint" in said
    for command in ("bivouac logs story", "rollout restart deployment/steward", "bivouac down story --abandon"):
        assert command in said


def test_an_archive_that_failed_itself_calls_nothing_archived() -> None:
    with pytest.raises(PermanentError, match=r"nothing is archived.*AccessDenied"):
        archived(("archive.failed", {"error": "AccessDenied"}))


def test_the_metrics_of_a_job_s_own_evaluation_are_told() -> None:
    verified = {"step": 60, "objects": 9, "bytes": 100, "proof": "evaluated by the job's own command"}
    losses = {"restored_evaluation_loss": None, "reference_evaluation_loss": None}
    found, notes = archived(("archive.verified", {**verified, **losses, "metrics": {"loss": 2.125}}))
    assert found["metrics"] == {"loss": 2.125}
    assert notes[-1].endswith("; loss 2.125, evaluated by the job's own command")


LEFT = {"files": 3, "bytes": 12, "newest": "run/e=3.ckpt", "why": "looked for *.pt", "fits": "lightning"}
COPIED = {
    "prefix": "s3://archive/x/unproven/attempt-0001",
    "files": 3,
    "bytes": 12,
    "why": "looked for *.pt",
    "fits": "lightning",
}
UNCOMMITTED = {"outcome": "done", "why": "", "committed_step": -1}


def trained(left: dict[str, Any] | None, *ended: tuple[str, dict[str, Any]]) -> Any:
    launched = ("attempt.launched", {"attempt": 1, "committed_step": -1})
    return archived(
        ("stage.started", {"stage": "check"}), launched,
        ("attempt.ended", {"attempt": 1, "failure": None, "step": 80, "committed_at_end": -1}),
        ("training.finished", {**UNCOMMITTED, "unrecognised": left}), *ended,
    )  # fmt: skip


@pytest.mark.parametrize(("left", "seen"), [(None, "nobody could look"), (LEFT, r"3 files \(12 B\).*run/e=3.ckpt")])
def test_what_nobody_recognised_or_saw_is_not_nothing_to_lose(left: dict[str, Any] | None, seen: str) -> None:
    with pytest.raises(PermanentError, match=f"archived nothing; seen: {seen}"):
        trained(left)


def test_a_raw_copy_lets_the_campaign_end_and_tells_its_place_and_what_would_fit() -> None:
    found, notes = trained(LEFT, ("archive.unproven", COPIED))
    assert found == {"unproven": COPIED}
    assert "s3://archive/x/unproven/attempt-0001" in notes[0] and "`format: lightning` would have" in notes[0]
    assert "no checkpoint is proven" in notes[-1] and not any("nothing to lose" in note for note in notes)


def test_a_folder_that_was_seen_empty_is_nothing_to_archive() -> None:
    found, notes = trained({**LEFT, "files": 0})
    assert found == {"nothing_committed": True} and "the job left nothing" in notes[-1]


def test_a_copy_that_failed_holds_the_campaign() -> None:
    with pytest.raises(PermanentError, match="AccessDenied"):
        trained(LEFT, ("archive.failed", {"error": "AccessDenied"}))


def test_a_copy_beside_the_golden_checkpoint_that_failed_is_called_by_its_name() -> None:
    part = "the copy of what else the job left"
    with pytest.raises(PermanentError, match=f"step 60 is in the archive, every byte read back, but {part} has failed"):
        archived(("archive.failed", {"error": "AccessDenied", "step": 60, "part": part}))


def exit_code(*events: tuple[str, dict[str, Any]]) -> int:
    s3: Any = FakeS3(Time())
    store = CampaignStore(s3, "state", "story", "w")
    for kind, data in events:
        store.append(payload_of(kind, data))
    return run._exit_code(store.state())


def test_a_campaign_without_a_proven_checkpoint_never_ends_well() -> None:
    verified = ("archive.verified", {"step": 60, "manifest": "m"})
    done, stopped = (("training.finished", {**UNCOMMITTED, "outcome": how}) for how in ("done", "stopped"))
    assert (exit_code(done, verified), exit_code(stopped, verified)) == (0, 75)
    assert exit_code(done) == exit_code(stopped) == exit_code(done, ("archive.unproven", COPIED)) == 73


@pytest.mark.parametrize("enters", [True, False], ids=["driver", "closer"])
@pytest.mark.parametrize("stage", [supervise.run, supervise.archive])
def test_a_steward_that_stays_silent_costs_the_nodes_and_a_person_hears_what_can_be_done(
    monkeypatch: pytest.MonkeyPatch, stage: Callable[[Any], Any], enters: bool
) -> None:
    """Its Deployment is there and its pod cannot run; the closer does not even ask whether it is there."""
    world = UnattendedCampaign(monkeypatch)
    world.drive(lambda world: world.size(world.names.gpu_group, 2))
    world.steward()
    asked = list[str]()

    def cluster_client() -> Any:
        asked.append("the cluster")
        return SimpleNamespace(list=lambda *_, **__: [SimpleNamespace()])

    monkeypatch.setattr(supervise, "recorded_config", lambda store, version: None)
    monkeypatch.setattr(supervise.time, "monotonic", world.time)
    monkeypatch.setattr(supervise, "StorageWatch", lambda context: SimpleNamespace(look=str))
    context = world.context()
    context.enters_cluster, context.account, context.names = enters, world.account, world.names
    context.cluster_client, context.progress = cluster_client, SilentProgress()
    context.state = world.store.state

    def turns(seconds: float, interval: float = 0.5) -> Iterator[None]:
        for _ in range(1000):
            yield
            world.time.go(60.0)

    context.turns = turns
    begun = world.time.wall()
    with pytest.raises(PermanentError, match="silent for 20 minutes: the GPU nodes are given back") as told:
        stage(context)
    assert world.gpu_nodes() == 0 and world.at_zero is not None
    assert SILENT < world.at_zero - begun <= SILENT + timedelta(minutes=2)
    assert "--tier shared" in (told.value.cure or "") and "bivouac down first-contact --abandon" in str(told.value)
    assert not world.store.state().gpu_nodes_up and bool(asked) == enters


def test_a_driver_that_slept_does_not_take_its_own_absence_for_the_stewards_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = UnattendedCampaign(monkeypatch)
    world.drive(lambda world: world.size(world.names.gpu_group, 2))
    monkeypatch.setattr(supervise.time, "monotonic", world.time)
    context = world.context()
    context.enters_cluster, context.account, context.names = False, world.account, world.names
    context.progress = SilentProgress()
    world.steward()
    watch = supervise.StewardWatch(context)
    world.time.go(3600)
    world.steward()  # it lived all the time, and its pod has just been moved
    world.time.go(300)
    assert watch.look(False) is not None and world.gpu_nodes() == 2
    world.time.go(SILENT.total_seconds())
    with pytest.raises(PermanentError, match="the GPU nodes are given back"):
        watch.look(False)
    assert world.gpu_nodes() == 0
