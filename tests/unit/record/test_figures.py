"""What the record tells of the driver's stages and of copies, as metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from infra.monitoring.series import parse
from infra.record.events import Event, Stage
from infra.record.figures import driver_lines, record_figures
from infra.record.payloads import Payload
from infra.record.payloads.checkpoints import CheckpointCopied, CheckpointCopyFailed
from infra.record.payloads.stages import (
    Attached,
    Detached,
    DriverTookOver,
    StageFailed,
    StageFinished,
    StageStarted,
)

BEGIN = datetime(2026, 11, 27, 12, tzinfo=UTC)
STORY: tuple[tuple[int, Payload], ...] = (
    (0, StageStarted(stage=Stage.BAKE)),
    (60, StageFinished(stage=Stage.BAKE)),
    (60, StageStarted(stage=Stage.PROVISION)),
    (100, StageFailed(stage=Stage.PROVISION, error="no")),
    (200, StageStarted(stage=Stage.PROVISION)),
    (230, DriverTookOver(holder="b", previous="a")),
    (240, StageStarted(stage=Stage.PROVISION)),
    (250, StageFinished(stage=Stage.PROVISION)),
    (250, StageStarted(stage=Stage.SUPERVISE)),
    (300, CheckpointCopied(step=10)),
    (400, CheckpointCopyFailed(error="503")),
    (500, CheckpointCopied(step=20)),
    (600, Detached()),
)


def events(count: int = len(STORY)) -> list[Event]:
    return [
        Event.of(payload, BEGIN + timedelta(seconds=at), "w", number)
        for number, (at, payload) in enumerate(STORY[:count])
    ]


def test_each_run_of_a_stage_counts_until_its_end_the_next_driver_or_now() -> None:
    figures = record_figures(events(), BEGIN + timedelta(seconds=650))
    assert figures["stage_seconds"] == {"bake": 60, "provision": 40 + 30 + 10, "supervise": 400}
    assert figures["stage_running"] == {"bake": False, "provision": False, "supervise": True}
    assert figures["driver_gone"] is True
    attached = [*events(), Event.of(Attached(), BEGIN + timedelta(seconds=610), "w", 99)]
    assert record_figures(attached, BEGIN + timedelta(seconds=650))["driver_gone"] is False


def test_copies_are_counted_by_outcome_and_the_newest_has_step_and_time() -> None:
    figures = record_figures(events(), BEGIN)
    assert figures["copies"] == {"copied": 2, "failed": 1} and figures["copied_step"] == 20
    assert figures["copied_at"] == BEGIN + timedelta(seconds=500)
    before = record_figures(events(9), BEGIN)
    assert before["copies"] == {} and "copied_step" not in before


def test_the_driver_s_metrics_are_text_that_is_read_back() -> None:
    rows = {(row.name, row.labels.get("stage")): row for row in parse(driver_lines(events(), "camp"))}
    seconds = rows["bivouac_stage_seconds_total", "provision"]
    offsets = [(at - BEGIN.timestamp(), value) for at, value in seconds.points]
    assert offsets[0] == (60, 0) and (100, 40) in offsets and (230, 70) in offsets and offsets[-1] == (600, 80)
    assert seconds.labels["campaign"] == "camp"
    assert rows["bivouac_driver_gone", None].points[-1] == (BEGIN.timestamp() + 600, 1)
    assert rows["bivouac_stage_running", "bake"].points[0] == (BEGIN.timestamp(), 1)
