"""The closer end to end on the emulated account: a build, started by the schedule's request, tears down and certifies.

The foundation by the founder, the campaign by the operator, the end by nobody: with the closer's role alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.bake.foundation import foundation
from infra.campaign import provision
from infra.campaign.stages import StageStep, run_step
from infra.record.events import Stage
from infra.record.payloads.stages import Abandoned, Detached, StageFailed, StageStarted
from infra.session.session import STACK_CONFIG
from infra.spec.names import CLOSER, NOTICES
from tests.rehearsal.acting import FOUNDER, OPERATOR, acting
from tests.waiting import until
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("closed")) as camped, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        with acting(camped, *FOUNDER), camped.opened() as context:
            foundation(context)
        with acting(camped, *OPERATOR), camped.opened() as context:
            run_step(context, StageStep(Stage.PROVISION, "by the operator", provision.run))
        yield camped


def asked(camped: CampaignSite) -> dict[str, Any]:
    """The schedule's request, in CodeBuild's own spelling."""
    schedule = camped.client("scheduler").get_schedule(Name=camped.names.closer_schedule)
    document = json.loads(schedule["Target"]["Input"])
    variables = [{key.lower(): value for key, value in one.items()} for one in document["EnvironmentVariablesOverride"]]
    return {"projectName": document["ProjectName"], "environmentVariablesOverride": variables}


def built(camped: CampaignSite) -> tuple[str, str]:
    """Status and output of a build that is started as the schedule does it."""
    codebuild = camped.client("codebuild")
    id = codebuild.start_build(**asked(camped))["build"]["id"]

    def ended() -> str | None:
        (build,) = codebuild.batch_get_builds(ids=[id])["builds"]
        return build["buildStatus"] if build["buildComplete"] else None

    status = str(until(ended, "the build"))
    return status, Path(camped.world.work, "aws", "builds", id.rpartition(":")[2], "log").read_text()


def of_group(machine: Any) -> str:
    return str(machine.settings["tags"].get("eks:nodegroup-name", ""))


def test_the_closer_tells_once_by_its_own_rights_that_a_stage_failed_before_a_steward(
    provisioned: CampaignSite,
) -> None:
    with provisioned.opened() as context:
        context.store.append(StageFailed(stage="preflight", error="no capacity", cut_off=True))
    for _ in range(2):
        status, text = built(provisioned)
        assert status == "SUCCEEDED", text
    (topic,) = [topic for topic in provisioned.world.backend("sns").topics.values() if topic.name == NOTICES]
    told = [(str(notification[2]), str(notification[1])) for notification in topic.sent_notifications]
    ((_, body),) = [one for one in told if one[0] == "bivouac drilled: preflight has failed: no capacity"]
    assert "Cost: bills now: " in body and "EKS control plane" in body and "could not look" not in body


def test_a_campaign_that_is_not_over_or_is_driven_is_left_alone(provisioned: CampaignSite) -> None:
    status, text = built(provisioned)
    theirs = "drilled waits for whoever interrupted its driver"
    assert (status, theirs in text) == ("SUCCEEDED", True), text
    with provisioned.opened() as context:
        context.store.append(Abandoned())
        status, text = built(provisioned)
        assert (status, "drilled is driven by" in text) == ("SUCCEEDED", True), text
        context.store.append(Detached(holder="me", deadline=""))
    assert provisioned.client("eks").list_clusters()["clusters"] == [provisioned.names.cluster]


def test_what_nobody_drives_any_more_is_torn_down_and_certified_with_the_closers_rights(
    provisioned: CampaignSite,
) -> None:
    """Its GPU nodes first, which a driver had asked for, and without a word to the cluster's API, which is closed."""
    plane, names = provisioned.plane(), provisioned.names
    group = {"clusterName": names.cluster, "nodegroupName": names.gpu_group}
    provisioned.client("eks").update_nodegroup_config(**group, scalingConfig={"desiredSize": 1})
    until(
        lambda: [
            machine for machine in provisioned.site.machines if machine.alive() and of_group(machine) == names.gpu_group
        ],
        "a node",
    )
    with provisioned.opened() as context:
        context.store.append(StageStarted(stage="preflight"))
    plane.freeze()
    asked = len(plane.api.tokens)
    status, text = built(provisioned)
    assert status == "SUCCEEDED", text
    assert len(plane.api.tokens) == asked, "it asks the cluster nothing"
    assert "the cluster is not entered by the closer" in text
    with provisioned.opened() as context:
        state = context.state()
        assert "bivouac:closerCode" in (context.store.get_json(STACK_CONFIG) or {})
    assert state.certificate is not None and state.certificate.clean, text
    assert state.ended and not state.certificate.could_not_look
    (why,) = [event.data["why"] for event in context.store.events() if event.kind == "closing"]
    assert why == "its teardown was begun and nobody finished it"
    kinds = [event.kind for event in context.store.events()]
    assert kinds.index("nodes.at-zero") < kinds.index("closing")
    assert not provisioned.client("eks").list_clusters()["clusters"]
    assert not provisioned.client("scheduler").list_schedules()["Schedules"]
    assert [
        project["name"] for project in provisioned.client("codebuild").batch_get_projects(names=[CLOSER])["projects"]
    ]
