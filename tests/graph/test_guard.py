"""The guard over the graph: budget, freeze, deadline; and that a killed engine leaves no second one."""

from __future__ import annotations

import json

import pytest

from infra.kinds import kind_of_type
from infra.plan.catalogue import instance_type
from infra.rehearsal.aws.schedules import parse
from infra.rehearsal.plugins.aws.catalogue import RESOURCES
from infra.spec.names import Names
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, Graph, campaign_graph, foundation_with, held


def test_every_campaign_has_a_budget_that_tells_a_topic(campaign: Graph, full: Graph) -> None:
    for graph, mails in ((campaign, []), (full, ["someone@example.com"])):
        budget = graph.one("Budget", "budget").inputs
        assert budget["limitAmount"] == "10000"
        assert budget["costFilters"] == [{"name": "TagKeyValue", "values": ["user:bivouac:campaign$example"]}]
        assert [notification["threshold"] for notification in budget["notifications"]] == [80, 100]
        for one in budget["notifications"]:
            assert one["subscriberSnsTopicArns"] and one.get("subscriberEmailAddresses", []) == mails
    (statement,) = json.loads(campaign.one("Topic", "alarms").inputs["policy"])["Statement"]
    assert statement["Principal"] == {"Service": "budgets.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_a_blocks_fee_is_no_part_of_what_the_budget_waits_for() -> None:
    """The fee bills by a purchase without the campaign's tag, so 80 % of the whole would never be reached."""
    block = {"instance_type": "p5en.48xlarge", "capacity": "capacity-block", "reservation_id": "cr-0123456789abcdef0",
             "block_fee_usd": "7988.88"}  # fmt: skip
    graph = campaign_graph(example_spec(nodes=block))
    assert graph.one("Budget", "budget").inputs["limitAmount"] == "2011.12"


def test_a_spent_budget_freezes_the_named_roles_and_lets_them_tear_down(
    campaign: Graph, full: Graph, foundation: Graph
) -> None:
    assert not campaign.of("BudgetAction") and not campaign.of("Policy") and not full.of("Policy")
    action = full.one("BudgetAction", "freeze").inputs
    assert action["approvalModel"] == "AUTOMATIC" and action["actionThreshold"]["actionThresholdValue"] == 100
    assert action["definition"]["iamActionDefinition"]["roles"] == ["ci"]
    (denial,) = json.loads(foundation.one("Policy", "freeze").inputs["policy"])["Statement"]
    assert denial["Effect"] == "Deny" and "ec2:RunInstances" in denial["Action"]
    ends = ("Delete", "Terminate", "Cancel", "Release", "Describe", "List", "Get", "UpdateNodegroupConfig")
    assert not [action for action in denial["Action"] if any(word in action for word in ends)]
    (may,) = [one for role, one in held(full) if role == "budget"]
    assert may["Condition"]["ArnEquals"]["iam:PolicyARN"].endswith(":policy/bivouac_freeze_us-east-1")
    attached = action["definition"]["iamActionDefinition"]["policyArn"]
    assert attached == "arn:aws:iam::123456789012:policy/bivouac_freeze_us-east-1"


def test_gpu_nodes_come_after_both_guards_and_fall_before_them(campaign: Graph) -> None:
    gpu = campaign.one("NodeGroup", "gpu-nodes")
    schedules = (("Schedule", name) for name in ("deadline", "launch", "silence"))
    guards = (*schedules, ("Budget", "budget"), ("Topic", "alarms"))
    for kind, name in guards:
        assert campaign.comes_after(gpu, campaign.one(kind, name)), name


@pytest.mark.parametrize("kind", ["launch", "silence"])
def test_a_late_launch_and_a_silent_steward_end_like_a_deadline_once_switched_on(campaign: Graph, kind: str) -> None:
    moved, notice, deadline = (campaign.one("Schedule", name) for name in (kind, f"{kind}-notice", "deadline"))
    assert moved.inputs["target"] == deadline.inputs["target"]
    assert (moved.inputs["state"], deadline.inputs["state"]) == ("DISABLED", "ENABLED")
    for one in (moved, notice):
        assert one.ignore_changes == ("scheduleExpression", "state") and not deadline.ignore_changes
    names = Names("example")
    expected = {"launch": names.launch_schedules, "silence": names.silence_schedules}[kind]
    assert (moved.inputs["name"], notice.inputs["name"]) == expected


def test_the_steward_moves_its_schedules_and_passes_their_role_to_scheduler_only(campaign: Graph) -> None:
    """UpdateSchedule names the role again, so its caller must be allowed to pass it."""
    of = [one for role, one in held(campaign) if role == "steward"]
    (moves,) = [one for one in of if "scheduler:UpdateSchedule" in one["Action"]]
    (hands_on,) = [one for one in of if "iam:PassRole" in one["Action"]]
    schedules = [campaign.one("Schedule", name).inputs for name in ("silence", "silence-notice")]
    arn = f"arn:aws:scheduler:us-east-1:{ACCOUNT}:schedule/default/"
    assert moves["Resource"] == sorted(arn + schedule["name"] for schedule in schedules)
    assert hands_on["Resource"] == [f"arn:aws:iam::{ACCOUNT}:role/{campaign.one('Role', 'guard').inputs['name']}"]
    assert hands_on["Condition"] == {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}}


def test_schedules_tell_people_on_the_campaigns_topic_the_command_that_goes_on(campaign: Graph) -> None:
    topic = f"arn:aws:sns:us-east-1:{ACCOUNT}:bivouac_notices"
    subjects = {
        "deadline": "its deadline has passed",
        "launch": "training did not begin in time",
        "silence": "its steward is silent",
    }
    for moment, subject in subjects.items():
        one = campaign.one("Schedule", f"{moment}-notice")
        asked = parse(one.inputs["target"]["arn"], one.inputs["target"]["input"])
        assert (asked.service, asked.method) == ("sns", "publish")
        assert asked.arguments["TopicArn"] == topic and asked.arguments["Subject"] == f"bivouac example: {subject}"
        assert "`bivouac down example`" in asked.arguments["Message"]
        other = campaign.one("Schedule", moment)
        for name in ("scheduleExpression", "state"):
            assert one.inputs[name] == other.inputs[name]
    (may,) = [one for role, one in held(campaign) if role == "guard" and one["Action"] == ["sns:Publish"]]
    assert may["Resource"] == [topic]


def test_charts_for_neuron_devices_come_without_those_for_gpus() -> None:
    from infra.stack.cluster.workloads import wanted_charts

    names = {chart.name for chart in wanted_charts(instance_type("trn2.48xlarge"))}
    assert "neuron-helm-chart" in names and not any("nvidia" in name or "dcgm" in name for name in names)


def test_every_type_of_the_programs_is_in_the_reviewed_table_and_survives_a_kill(full: Graph) -> None:
    foundation = foundation_with(own_key=True, lock_days=30)
    nat = campaign_graph(example_spec())
    used = {n.type for graph in (full, nat, foundation) for n in graph.custom if n.type.startswith("aws:")}
    assert len(used) >= 38
    assert used <= set(RESOURCES), used - set(RESOURCES)
    kinds = [kind for kind in map(kind_of_type, used) if not (kind.find or kind.remake or kind.made_over)]
    assert not kinds, f"a killed engine would leave a second one: {kinds}"
