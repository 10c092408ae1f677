"""An account that CodeBuild holds back: what is asked of AWS, and the schedules that end what no closer ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from infra.bake import trial_build
from infra.bake.foundation import foundation
from infra.campaign import launch_budget, provision, teardown
from infra.campaign.stages import StageStep, run_step
from infra.errors import UserError
from infra.preview.read_only import look_at_stacks
from infra.record.events import Stage
from infra.spec.names import NOTICES
from tests.rehearsal.acting import FOUNDER, OPERATOR, acting
from tests.waiting import until
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly
HOLD: dict[str, Any] = {
    "service": "codebuild",
    "action": "StartBuild",
    "code": "AccountLimitExceededException",
    "message": "Cannot have more than 0 builds in queue for the account",
    "status": 400,
    "times": None,
}


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("held")) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        one.ask("faults", add=[HOLD])
        with acting(one, *FOUNDER), one.opened() as context:
            foundation(context)
        yield one


def test_the_foundation_says_what_to_ask_and_nobody_leaves_before_a_build_has_run(founded: CampaignSite) -> None:
    said = " ".join(founded.said.getvalue().split())
    assert HOLD["message"] in said and "L-9D07B6EF of codebuild in us-east-1" in said and "AWS Support" in said
    with acting(founded, *FOUNDER), founded.opened() as context:
        with pytest.raises(UserError, match="more than 0 builds in queue"):
            trial_build.insist(context)
        founded.ask("faults", clear=True)
        trial_build.insist(context)
    with acting(founded, *OPERATOR), founded.opened() as context:
        trial_build.insist(context)
    (build,) = founded.client("codebuild").batch_get_builds(
        ids=founded.client("codebuild").list_builds_for_project(projectName="bivouac_closer")["ids"]
    )["builds"]
    assert build["buildStatus"] == "SUCCEEDED"


def sizes(founded: CampaignSite) -> dict[str, Any]:
    group = {"clusterName": founded.names.cluster, "nodegroupName": founded.names.gpu_group}
    return dict(founded.client("eks").describe_nodegroup(**group)["nodegroup"]["scalingConfig"])


def subjects(founded: CampaignSite) -> list[str]:
    (topic,) = [topic for topic in founded.world.backend("sns").topics.values() if topic.name == NOTICES]
    return [str(notification[2]) for notification in topic.sent_notifications]


def test_gpu_nodes_that_no_driver_brings_to_training_go_and_people_hear_of_it(
    founded: CampaignSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    eks, names = founded.client("eks"), founded.names
    late = "bivouac drilled: training did not begin in time"

    def ask_for_a_node() -> None:
        until(lambda: eks.describe_nodegroup(clusterName=names.cluster, nodegroupName=names.gpu_group)["nodegroup"][
            "status"] == "ACTIVE", "the group")  # fmt: skip
        eks.update_nodegroup_config(
            clusterName=names.cluster, nodegroupName=names.gpu_group, scalingConfig={"minSize": 0, "desiredSize": 1}
        )

    with acting(founded, *OPERATOR), founded.opened() as context:
        run_step(context, StageStep(Stage.PROVISION, "by the operator", provision.run))
        launch_budget.postpone(context)
        assert not [row for look in look_at_stacks(context) for row in look.drifted], "a postponement is no drift"
        launch_budget.switch_off(context)
        monkeypatch.setattr(launch_budget, "budget", lambda spec: timedelta(seconds=3))
        ask_for_a_node()
        launch_budget.postpone(context)
    until(lambda: sizes(founded)["desiredSize"] == 0 and late in subjects(founded), "the launch's schedules")
    assert sizes(founded)["minSize"] == 0
    with acting(founded, *OPERATOR), founded.opened() as context:
        launch_budget.switch_off(context)
        context.outputs |= context.state().finished_stages
        run_step(context, StageStep(Stage.TEARDOWN, "by the operator", teardown.run))
    assert founded.client("scheduler").list_schedules()["Schedules"] == []
    assert subjects(founded).count(late) == 1
