"""A campaign in a capacity block, in process: its clock is the block's, and no node is asked for before its begin."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.campaign import capacity, provision
from infra.cluster.kubernetes import from_outside
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError, UserError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.session import block_clock
from infra.session.context import Context
from infra.spec.campaign import Spec
from tests.worlds.account_site import until
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly

END = timedelta(hours=24)


def buy(camped: CampaignSite, count: int = 2) -> dict[str, Any]:
    """The first offering, as it would begin now, in the camp's zone."""
    ec2 = camped.client("ec2")
    wanted = {"InstanceType": camped.spec.nodes.instance_type, "InstanceCount": count, "CapacityDurationHours": 24}
    offerings = ec2.describe_capacity_block_offerings(**wanted)["CapacityBlockOfferings"]
    chosen = next(offering for offering in offerings if offering["AvailabilityZone"] == camped.spec.zone)
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=chosen["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return dict(bought["CapacityReservation"])


def use(camped: CampaignSite, name: str, reservation_id: str, **changes: Any) -> None:
    """The camp's spec from now on."""
    nodes = camped.spec.nodes.model_dump(mode="json") | {"capacity": "capacity-block", "reservation_id": reservation_id}
    money = {"budget_usd": "10000", "deadline": "7d"}
    document = camped.spec.model_dump(mode="json") | {"campaign": name, "nodes": nodes, "money": money} | changes
    camped.spec = Spec.model_validate(document)
    camped.plan, camped.names = make_plan(camped.spec, survey(camped.spec)), type(camped.names)(camped.spec)


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp"), recovery={"capacity_timeout": "3s"}) as one:
        one.ask("blocks", start_in_s=1, late_s=3600)
        yield one


@pytest.fixture(scope="module")
def block(camped: CampaignSite) -> dict[str, Any]:
    bought = buy(camped)
    use(camped, "drilled", bought["CapacityReservationId"])
    return bought


@pytest.fixture(scope="module")
def context(camped: CampaignSite, block: dict[str, Any]) -> Iterator[Context]:
    with camped.opened() as one:
        one.outputs[Stage.PROVISION] = provision.run(one)
        yield one


@pytest.fixture
def nodes(context: Context) -> GpuNodes:
    client = from_outside(context.account, context.names.cluster)
    return GpuNodes(context.account, client, context.names, context.guard)


def test_the_deadline_is_forty_minutes_before_the_block_ends_for_plan_schedule_and_group(
    camped: CampaignSite, context: Context, block: dict[str, Any]
) -> None:
    until_ = (block["EndDate"] - timedelta(minutes=40)).replace(microsecond=0)
    assert context.deadline == until_
    schedule = camped.client("scheduler").get_schedule(Name=camped.names.schedule)
    assert schedule["ScheduleExpression"] == f"at({until_:%Y-%m-%dT%H:%M:%S})"
    key = {"clusterName": camped.names.cluster, "nodegroupName": camped.names.gpu_group}
    group = camped.client("eks").describe_nodegroup(**key)["nodegroup"]
    assert (group["capacityType"], group["scalingConfig"]["desiredSize"]) == ("CAPACITY_BLOCK", 0)
    (scaling,) = group["resources"]["autoScalingGroups"]
    actions = camped.client("autoscaling").describe_scheduled_actions(AutoScalingGroupName=scaling["name"])
    (action,) = actions["ScheduledUpdateGroupActions"]
    assert action["DesiredCapacity"] == 0 and action["StartTime"].replace(microsecond=0) == until_
    planned = make_plan(
        camped.spec.model_copy(update={"nodes": camped.spec.nodes.model_copy(update={"block_end": block["EndDate"]})}),
        survey(camped.spec),
    ).block
    assert planned is not None and planned.nodes_until.replace(microsecond=0) == until_
    interval = context.plan.checkpoint.every_steps * (context.spec.job.step_seconds_estimate or 0)
    archive = next(float(one.seconds) for one in context.plan.clock if one.stage == "archive")
    assert planned.nodes_until - planned.train_until == timedelta(seconds=interval + archive)


def test_a_block_that_never_becomes_active_ends_with_a_clear_word_and_no_instance(
    camped: CampaignSite, context: Context, nodes: GpuNodes
) -> None:
    with pytest.raises(PermanentError, match="did not become active") as refused:
        block_clock.await_active(context)
    text = str(refused.value)
    assert "is scheduled" in text and "late by more than 3s" in text and "none bills" in text
    assert "`bivouac down drilled`" in text and nodes.desired() == 0 and not any(one.bills for one in nodes.launched())
    camped.ask("blocks", payment="fails")
    with pytest.raises(PermanentError, match=r"payment-failed.*took the block back"):
        block_clock.await_active(context)
    camped.ask("blocks", payment="succeeds")
    assert not camped.site.client("ec2").describe_instances(
        Filters=[{"Name": "tag:eks:nodegroup-name", "Values": [camped.names.gpu_group]}]
    )["Reservations"]


def test_a_block_that_comes_late_is_used_and_its_end_takes_the_nodes_away(
    camped: CampaignSite, context: Context, nodes: GpuNodes
) -> None:
    camped.ask("blocks", late_s=0)
    block_clock.await_active(context)
    nodes.set_desired(2)
    assert len(capacity.wait_for_nodes(context, nodes)) == 2
    assert all(one.state == "running" for one in nodes.launched())
    camped.ask("blocks", end_in_s=1790)
    until(lambda: not nodes.launched())
    since = datetime.now(UTC)
    until(lambda: nodes.refusals(since))
    assert any("ReservationCapacityExceeded" in refusal for refusal in nodes.refusals(since))
    assert not nodes.launched()
    nodes.set_desired(0)


def test_a_block_that_does_not_fit_is_refused_before_the_campaign_s_name_is_taken(camped: CampaignSite) -> None:
    camped.ask("blocks", start_in_s=1, late_s=0)
    bought = buy(camped, count=1)
    refused: tuple[tuple[str, str, dict[str, str], str], ...] = (
        ("toosmall", bought["CapacityReservationId"], {}, "fewer instances"),
        (
            "elsewhere",
            bought["CapacityReservationId"],
            {"zone": "us-east-1d", "second_zone": "us-east-1b"},
            "another type",
        ),
        ("nosuch", "cr-00000000000000000", {}, "no such capacity block"),
    )
    ids = [bought["CapacityReservationId"]]
    ec2 = camped.client("ec2")
    found = lambda: ec2.describe_capacity_reservations(CapacityReservationIds=ids)["CapacityReservations"]  # noqa: E731
    until(lambda: found()[0]["State"] == "active")
    was = camped.spec, camped.plan, camped.names
    for name, reservation, changes, words in refused:
        use(camped, name, reservation, **changes)
        with pytest.raises(UserError, match=words), camped.opened():
            pass
        state = camped.client("s3").list_objects_v2(Bucket=f"bivouac-state-{camped.spec.account}-us-east-1",
                                                    Prefix=f"campaigns/{name}/spec")  # fmt: skip
        assert not state.get("Contents")
    camped.spec, camped.plan, camped.names = was


def test_ahead_of_its_block_a_campaign_waits_with_nothing_made_until_the_block_ends(
    camped: CampaignSite,
) -> None:
    was = camped.spec, camped.plan, camped.names
    camped.ask("blocks", start_in_s=block_clock.LEAD.total_seconds() + 20, late_s=0, payment="succeeds", end_in_s=None)
    bought = buy(camped)
    use(camped, "early", bought["CapacityReservationId"])
    try:
        with camped.opened() as context:
            near = bought["StartDate"] - block_clock.LEAD
            assert datetime.now(UTC) < near
            block_clock.await_lead(context)
            assert near <= datetime.now(UTC) < near + timedelta(seconds=20)
            assert context.deadline == (bought["EndDate"] - timedelta(minutes=40)).replace(microsecond=0)
            assert "nothing is created yet" in camped.said.getvalue() and not context.state().running_stage
            assert camped.names.cluster not in camped.client("eks").list_clusters()["clusters"]
            block_clock.await_lead(context)  # its time has come: no further wait
        camped.ask("blocks", start_in_s=7 * 86400)
        use(camped, "unpaid", buy(camped)["CapacityReservationId"])
        with camped.opened() as context:
            camped.ask("blocks", payment="fails")
            begun = datetime.now(UTC)
            with pytest.raises(PermanentError, match=r"payment-failed.*nothing else was made yet"):
                block_clock.await_lead(context)
            assert datetime.now(UTC) - begun < timedelta(seconds=60), "not only when a week is over"
    finally:
        camped.ask("blocks", payment="succeeds")
        camped.spec, camped.plan, camped.names = was
