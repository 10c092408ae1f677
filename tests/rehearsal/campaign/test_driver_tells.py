"""The driver tells of its own stages, once, with what bills now; what cannot be told stops no stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.campaign.stages import StageStep, run_step
from infra.errors import PermanentError
from infra.notices.outbox import AGAIN
from infra.record.events import Stage
from infra.session.context import Context
from infra.spec.names import NOTICES
from tests.worlds.campaign_site import CampaignSite, camp


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp"), notify={"webhook": {"secret": "bivouac_webhook"}}) as one:
        yield one


def failing(context: Context) -> Any:
    raise PermanentError("the VPC limit is reached", cure="ask AWS for more")


def drive(camped: CampaignSite, stage: Stage, run: Any) -> None:
    with camped.opened() as context:
        run_step(context, StageStep(stage, "a test", run))


def told(camped: CampaignSite) -> list[tuple[str, str]]:
    """Subject and text of what was published."""
    (topic,) = camped.world.backend("sns").topics.values()
    return [(str(notification[2]), str(notification[1])) for notification in topic.sent_notifications]


def unsent(camped: CampaignSite) -> list[dict[str, Any]]:
    with camped.opened() as context:
        return [event.data for event in context.store.events() if event.kind == "notice.failed"]


def test_a_stage_ends_as_it_ends_though_nobody_can_be_told(camped: CampaignSite) -> None:
    """No foundation, no topic, no secret: each way's failure is recorded once."""
    with pytest.raises(PermanentError, match="VPC limit"):
        drive(camped, Stage.BAKE, failing)
    drive(camped, Stage.REPORT, lambda context: {})
    assert [(one["way"], one["error"].rpartition(": ")[2].partition(";")[0]) for one in unsent(camped)] == [
        ("topic", "NotFound"), ("webhook", "ResourceNotFoundException"),
    ]  # fmt: skip


def test_a_failed_stage_is_told_once_with_the_bill_and_the_command(
    camped: CampaignSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.notices.outbox.AGAIN", AGAIN * 0)
    camped.client("sns").create_topic(Name=NOTICES)
    with pytest.raises(PermanentError, match="VPC limit"):
        drive(camped, Stage.PROVISION, failing)
    before = told(camped)
    assert [subject for subject, _ in before] == [
        "bivouac drilled: bake has failed: the VPC limit is reached; cure: ask AWS for more",
        "bivouac drilled: provision has failed: the VPC limit is reached; cure: ask AWS for more",
    ]
    assert "Cost: nothing of this campaign bills by the hour now" in before[1][1]
    assert "`bivouac down drilled` ends it" in before[1][1]
    drive(camped, Stage.TEARDOWN, lambda context: {"resources": 91, "swept": []})
    assert [subject for subject, _ in told(camped)[2:]] == ["bivouac drilled: torn down, 91 resources destroyed"]
