"""Spot notices: told by the node to its agent, by the agent to the steward, who has the gang commit at once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.steward import gangs
from infra.steward.seeing import observe
from infra.steward.seeing.views import REBALANCE
from tests.part import part
from tests.unit.steward.steward_story import TURN, StewardRun, config, story
from trainer.contract import Phase, Status
from trainer.contract.job import REBALANCE_NOTICE, SPOT_NOTICE, SpotNotice
from trainer.supervisor import readings

__all__ = ["story"]
TIME = "2026-11-27T04:00:00Z"


def test_an_agent_tells_the_notice_in_ec2s_words_and_interruptions_first(
    tmp_path: Path,
) -> None:
    assert (readings.ACTION, readings.REBALANCE) == (SPOT_NOTICE, REBALANCE_NOTICE)
    action, rebalance = tmp_path / "action", tmp_path / "rebalance"
    paths = (str(action), str(rebalance))
    assert readings.notice(*paths) is None
    rebalance.write_text(f'{{"noticeTime": "{TIME}"}}')
    assert SpotNotice.model_validate(readings.notice(*paths)) == SpotNotice()
    action.write_text(f'{{"action": "terminate", "time": "{TIME}"}}')
    told = SpotNotice.model_validate(readings.notice(*paths))
    assert told.action == "terminate" and told.due is not None and told.due.isoformat() == "2026-11-27T04:00:00+00:00"
    for text in ("", "[]", "{", "7"):
        action.write_text(text)
        assert readings.notice(*paths) == readings.notice(str(tmp_path / "absent"), str(rebalance))


def tell(story: StewardRun, monkeypatch: pytest.MonkeyPatch, notice: SpotNotice, after_s: float = 120) -> None:
    """From then on the agent of the last pod tells the notice."""

    def probe(one: Any) -> Status | None:
        index = int(one.metadata.name.rpartition("-")[2])
        if index not in story.steps:
            return None
        told = notice if index == 1 and story.time() - start > after_s and not story.aws.ended else None
        step = story.steps[index]
        return part(Status, phase=Phase.TRAINING, step=step, committed_step=-1, ranks=(), notice=told, readings=None,
                    step_seconds=None, figures=None)  # fmt: skip

    start = story.time()
    monkeypatch.setattr(observe, "_probe", probe)


def test_a_gang_is_asked_to_commit_in_the_turn_that_hears_and_its_node_goes_back(
    story: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = story.time.wall() + timedelta(seconds=240)
    tell(story, monkeypatch, SpotNotice(action="terminate", due=due))
    start = story.time()
    story.run(8)
    (announced,), (end,) = story.events("node.announced"), story.events("attempt.ended")
    assert announced.data["code"] == "spot-terminate" and announced.data["instance"] == "i-1"
    assert end.data["failure"] == "interrupted" and "the gang commits at once" in end.data["detail"]
    assert (announced.at - story.time.wall()).total_seconds() + story.time() - start <= 120 + TURN.total_seconds() + 1
    assert story.aws.ended == ["i-1"], "also though no agent tells of it any more"
    assert not [key for key in story.s3.objects if key.startswith("foundation/")], "it is no fault of the node"


def test_a_recommendation_waits_for_the_next_commit_and_is_no_fault(
    story: StewardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit() -> None:
        assert story.steward is not None
        if story.time() - start > 300:
            monkeypatch.setattr(story.steward.committed, "step", lambda: 500)

    tell(story, monkeypatch, SpotNotice())
    start = story.time()
    story.run(8, commit)
    (event,), (end,) = story.events("node.announced"), story.events("attempt.ended")
    assert event.data["why"] == REBALANCE and end.data["detail"].endswith("step 500 is committed since that was seen")
    assert story.aws.ended == ["i-1"] and not [key for key in story.s3.objects if key.startswith("foundation/")]


def test_only_a_gang_of_spot_nodes_sees_its_node() -> None:
    stock = config()
    spot = stock.spec.model_copy(update={"nodes": stock.spec.nodes.model_copy(update={"capacity": "spot"})})
    assert not gangs.gang(stock, 1, "c").sees_node
    assert gangs.gang(stock.model_copy(update={"spec": spot}), 1, "c").sees_node
