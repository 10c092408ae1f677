"""What the driver says of an archive that has failed: which part is safe, and what may be done about the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import supervise
from infra.errors import PermanentError
from infra.record.events import Kind
from infra.record.store import CampaignStore
from tests.unit.fake_s3 import FakeS3, Time


def archived(*ended: tuple[Kind, dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The stage's outcome for a training that has committed step 60, and what it noted."""
    s3: Any = FakeS3(Time())
    store, notes = CampaignStore(s3, "state", "story", "w"), list[str]()
    for kind, data in (
        (Kind.TRAINING_FINISHED, {"outcome": "done", "why": "", "committed_step": 60}),
        *ended,
        (Kind.NODES_AT_ZERO, {"group": "gpu"}),
    ):
        store.append(kind, **data)
    context: Any = SimpleNamespace(
        store=store, state=store.state, spec=SimpleNamespace(campaign="story"), turns=lambda seconds: iter([1]),
        deadline=datetime.now(UTC) + timedelta(hours=1),
        progress=SimpleNamespace(step=lambda text: None, note=notes.append),
    )  # fmt: skip
    return supervise.archive(context), notes


def test_a_bad_evaluation_says_that_the_bytes_are_safe_and_how_to_go_on() -> None:
    with pytest.raises(PermanentError) as told:
        archived((Kind.ARCHIVE_FAILED, {"error": "loss: 2.0 of the checkpoint, 3.0 of the export", "step": 60}))
    said = str(told.value)
    assert "step 60 is in the archive, every byte read back" in said and "loss: 2.0 of the checkpoint" in said
    for command in ("bivouac logs story", "rollout restart deployment/steward", "bivouac down story --abandon"):
        assert command in said


def test_an_archive_that_failed_itself_calls_nothing_archived() -> None:
    with pytest.raises(PermanentError, match=r"nothing is archived.*AccessDenied"):
        archived((Kind.ARCHIVE_FAILED, {"error": "AccessDenied"}))


def test_the_metrics_of_a_job_s_own_evaluation_are_told() -> None:
    verified = {"step": 60, "objects": 9, "bytes": 100, "proof": "evaluated by the job's own command"}
    losses = {"restored_evaluation_loss": None, "reference_evaluation_loss": None}
    found, notes = archived((Kind.ARCHIVE_VERIFIED, {**verified, **losses, "metrics": {"loss": 2.125}}))
    assert found["metrics"] == {"loss": 2.125}
    assert notes[-1].endswith("; loss 2.125, evaluated by the job's own command")
