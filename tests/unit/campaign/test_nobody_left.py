"""From the first GPU node to the archive: whenever driver and steward die for good, nodes end within a stated bound."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.campaign import launch_budget
from infra.campaign.closing import SILENT, give_launch_budget
from infra.errors import NotProven
from infra.plan.estimates.clock import launch_wait
from infra.record.payloads import payload_of
from infra.record.payloads.attempts import AttemptRunning, LaunchBudget
from infra.record.payloads.stages import Certified
from infra.record.payloads.training import ArchiveBegun, TrainingFinished
from infra.session.session import SPEC
from infra.spec.campaign import Spec
from infra.stack.closer import EVERY
from tests.root import ROOT
from tests.worlds.closer import FIRST_CONTACT, FIRST_PLAN, LAPTOP, TTL, UnattendedCampaign
from tests.worlds.s3 import NOON

Step = Callable[[UnattendedCampaign], None]
NODES = FIRST_CONTACT.nodes.count


def event(kind: str, **data: object) -> Step:
    return lambda world: world.store.append(payload_of(kind, data))  # type: ignore[return-value, func-returns-value]


def nodes(count: int) -> Step:
    return lambda world: world.size(world.names.gpu_group, count)


def budget(world: UnattendedCampaign) -> None:
    give_launch_budget(world.context())
    launch_budget.postpone(world.context())


def watched(world: UnattendedCampaign) -> None:
    """The driver sees the first attempt: the nodes are the steward's from here on."""
    launch_budget.switch_off(world.context())


def begun(stage: str) -> Step:
    return event("stage.started", stage=stage)


def finished(stage: str) -> Step:
    return event("stage.finished", stage=stage, seconds=1.0)


def trained(world: UnattendedCampaign) -> None:
    world.store.append(TrainingFinished(outcome="done", why="", committed_step=60))
    world.steward()


def archiving(world: UnattendedCampaign) -> None:
    world.store.append(ArchiveBegun(group=world.names.gpu_group, nodes=1, of=NODES))
    world.steward()


def minutes(stage: str) -> float:
    return float(next(row.seconds for row in FIRST_PLAN.clock if row.stage == stage)) / 60


PROVISION, TRAINING = minutes("provision"), minutes("supervise")
LIFE: tuple[tuple[str, float, tuple[Step, ...]], ...] = (
    (
        "the first node is asked for",
        minutes("provision"),
        (finished("provision"), begun("preflight"), budget, nodes(1)),
    ),
    ("a pilot proves itself", 2.0, (event("pilot.begun", nodes=1, of=NODES),)),
    ("all nodes are asked for", 2.0, (event("pilot.proven", digest="d"), nodes(NODES))),
    ("a node is unfit", 4.0, (event("node.verdict", node="n", instance="i", fit=False, probes=[]),)),
    ("all are fit", 2.0, (finished("preflight"),)),
    ("the launch begins", 0.0, (begun("launch"), budget)),
    ("the steward's pod does not run", 1.0, (lambda world: None,)),
    (
        "the first attempt starts",
        1.0,
        (UnattendedCampaign.steward, event("attempt.launched", attempt=1, committed_step=-1), watched),
    ),
    (
        "training is nearly over",
        minutes("supervise"),
        (event("attempt.running", attempt=1, nodes=["n"]), UnattendedCampaign.steward),
    ),
    ("the archive is made", 1.0, (trained, archiving, nodes(1))),
)
MOMENTS = [name for name, _, _ in LIFE]
BEFORE_A_STEWARD = MOMENTS[:7]


def lived(patch: pytest.MonkeyPatch, moment: str, spec: Spec = FIRST_CONTACT) -> UnattendedCampaign:
    """A campaign whose driver and steward have died at this moment."""
    world = UnattendedCampaign(patch, spec)
    world.drive(begun("provision"), minutes=0)
    for name, before, steps in LIFE:
        world.drive(*steps, minutes=before)
        if name == moment:
            break
    assert world.gpu_nodes() > 0
    return world


def cost_on_page(mishap: str) -> Decimal:
    """The first figure that the page calls the most that a mishap costs."""
    text = " ".join((ROOT / "docs/mishaps.md").read_text().split())
    (item,) = [item for item in text.split(" - ") if item.startswith(f"**{mishap}**")]
    (costs,) = re.findall(r"\*costs at most\*: (\d+\.\d+)", item)
    return Decimal(costs)


@pytest.mark.parametrize(
    ("refused", "first"), [(0, EVERY), (0, SILENT - TTL), (1, EVERY)], ids=["early", "late", "refused"]
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_whoever_dies_for_good_the_gpu_nodes_end_within_the_bound(
    monkeypatch: pytest.MonkeyPatch, moment: str, refused: int, first: timedelta
) -> None:
    world = lived(monkeypatch, moment)
    died = world.time.wall()
    world.nobody(12, refused, first)
    assert world.at_zero is not None and world.at_zero - died <= SILENT + EVERY * (1 + refused)
    state = world.store.state()
    if moment in BEFORE_A_STEWARD:
        assert state.ended and state.certificate == Certified(clean=True)
        launch = launch_wait(FIRST_CONTACT)
        ended = world.store.events()[-1].at
        assert ended - died <= launch + EVERY * (1 + refused), "then nothing waits for a driver any more"
    else:
        assert not state.ended and world.ends == 0, "a checkpoint may lie on the file system alone"
        assert "waits for a person" in world.said.getvalue().splitlines()[-1]
        (why,) = [str(one.data["why"]) for one in world.store.events() if one.kind == "nodes.at-zero"]
        assert re.fullmatch(r"the steward has been silent for \d+ minutes", why)
    if not refused:
        idle = Decimal(str(FIRST_PLAN.totals.usd_per_hour_idle.value))
        waiting = 0 if state.ended else idle * Decimal((world.time.wall() - world.at_zero).total_seconds()) / 3600
        assert world.spent() - waiting <= cost_on_page("Nobody comes back at all")


@pytest.mark.parametrize("interrupted", [False, True])
def test_nodes_that_prepare_the_data_go_within_a_look_of_their_limit(
    monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    prepare = {"where": "cluster", "nodes": 4, "limit": "1h"}
    money = {**FIRST_CONTACT.money.model_dump(mode="json"), "deadline": "6h"}
    spec = FIRST_CONTACT.model_dump(mode="json") | {"money": money}
    spec["data"] = {**spec["data"], "source": "s3://texts/web", "prepare": prepare}
    world = UnattendedCampaign(monkeypatch, Spec.model_validate(spec))
    group = world.names.of("node group", "data")
    world.drive(begun("provision"), event("data.begun", nodes=4), lambda world: world.size(group, 4))
    if interrupted:
        world.hold("driver", LAPTOP, TTL).release()
    world.nobody(1)
    assert world.sizes[group] == 4, "their Job goes on without a driver"
    world.nobody(2)
    assert world.sizes[group] == 0 and world.time.wall() < world.deadline
    (ended,) = [one for one in world.store.events() if one.kind == "data.ended"]
    assert "the closer gave their nodes back" in str(ended.data["error"])
    assert not [one for one in world.store.events() if one.kind == "nodes.at-zero"], "of GPU nodes"
    world.nobody(1)
    assert len([one for one in world.store.events() if one.kind == "data.ended"]) == 1


@pytest.mark.parametrize("moment", BEFORE_A_STEWARD)
def test_the_bill_passes_the_budget_with_nobody_there_and_the_nodes_go_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    money = FIRST_CONTACT.money.model_copy(update={"budget_usd": Decimal("0.20")})
    world = lived(monkeypatch, moment, FIRST_CONTACT.model_copy(update={"money": money}))
    world.nobody(1)
    assert world.at_zero is not None and world.store.state().ended
    assert "has passed the budget of 0.20 USD" in world.said.getvalue()


def test_the_bill_passes_the_budget_under_a_driver_that_lives_and_only_the_nodes_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    money = FIRST_CONTACT.money.model_copy(update={"budget_usd": Decimal(1)})
    world = lived(monkeypatch, "all nodes are asked for", FIRST_CONTACT.model_copy(update={"money": money}))
    for _ in range(2):
        world.drive(UnattendedCampaign.look, minutes=30)
    assert world.at_zero is not None and world.ends == 0 and not world.store.state().gpu_nodes_up


@pytest.mark.parametrize(
    ("moment", "usd"), [("the first attempt starts", "2.6"), ("training is nearly over", "2.6"), (MOMENTS[-1], "1.4")]
)
def test_a_steward_that_lives_keeps_its_nodes_without_a_driver_until_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, moment: str, usd: str
) -> None:
    world, archives = lived(monkeypatch, moment), moment == MOMENTS[-1]
    budget_usd = world.spent() + Decimal(usd)
    money = FIRST_CONTACT.money.model_copy(update={"budget_usd": budget_usd})
    world.store.put_json(SPEC, FIRST_CONTACT.model_copy(update={"money": money}).model_dump(mode="json"))
    for _ in range(3):
        world.time.go(600)
        world.steward()
        world.look()
    assert world.gpu_nodes() > 0 and world.ends == 0 and world.spent() < budget_usd
    world.time.go(900)
    world.steward()
    assert world.spent() > budget_usd and world.time.wall() < world.deadline
    with nullcontext() if archives else pytest.raises(NotProven):  # the real one waits for the steward's archive
        world.look()
    assert (world.gpu_nodes() > 0) == archives, "an archive has bounds of its own"


def test_an_interrupted_driver_keeps_its_stack_but_no_nodes_beyond_the_launch_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lived(monkeypatch, "all are fit")
    world.hold("driver", LAPTOP, TTL).release()
    world.nobody(1)
    assert world.gpu_nodes() == NODES, "somebody is there"
    world.nobody(1)
    assert world.at_zero is not None and world.ends == 0
    assert "training did not run by" in world.said.getvalue()
    world.nobody(2)
    assert world.store.state().ended, "the deadline has passed"


def test_a_launch_budget_is_time_and_money_and_either_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(monkeypatch, "all are fit")
    budget = world.store.state().launch_budget
    assert budget is not None
    launch = launch_wait(FIRST_CONTACT)
    (written,) = [one for one in world.store.events() if one.kind == "launch.budget"]
    assert budget.until == written.at + launch and written.at - NOON > timedelta(minutes=PROVISION)
    idle, rate = (
        Decimal(str(one.value)) for one in (FIRST_PLAN.totals.usd_per_hour_idle, FIRST_PLAN.totals.usd_per_hour)
    )
    so_far = idle * Decimal((written.at - NOON).total_seconds()) / 3600
    by_size = budget.usd - so_far - rate * Decimal(launch.total_seconds()) / 3600
    assert Decimal("0.2") < by_size < Decimal("0.4"), "storage and builds bill at once"
    world.store.append(LaunchBudget(until=world.deadline.isoformat(), usd="0.5"))
    world.hold("driver", LAPTOP, TTL).release()
    world.nobody(1)
    assert "before 0.5 USD were spent, the end of its launch budget" in world.said.getvalue()
    world.store.append(AttemptRunning(attempt=1, nodes=[]))
    assert world.store.state().launch_budget is None


@pytest.mark.parametrize("code", ["ResourceInUseException", "AccessDeniedException"])
def test_a_refusal_of_eks_is_met_by_another_try_or_by_ec2_and_the_next_look(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    world = lived(monkeypatch, "all nodes are asked for")
    world.refusals = [code]
    monkeypatch.setattr("infra.cluster.nodes._SETTLE_PAUSE_S", 0.0)
    with nullcontext() if code.startswith("Resource") else pytest.raises(ClientError):
        world.nobody(1)
    gone = [f"{world.names.gpu_group}-{index}" for index in range(NODES)]
    assert world.terminated == ([] if code.startswith("Resource") else gone)
    world.nobody(1)
    assert world.at_zero is not None and not world.store.state().gpu_nodes_up


def test_an_instance_that_its_group_does_not_end_is_terminated_and_the_stewards_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lived(monkeypatch, "training is nearly over")
    world.stuck = {"i-stuck"}
    world.nobody(1)
    assert world.terminated == ["i-stuck"] and world.gpu_nodes() == 0
    assert world.sizes[world.names.system_group] == 1


def test_somebody_who_begins_to_drive_in_the_same_moment_keeps_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived(monkeypatch, "all nodes are asked for")
    describe = world.describe_nodegroup

    def quicker(**asked: str) -> dict[str, Any]:
        world.hold("driver", LAPTOP, TTL)
        return describe(**asked)

    monkeypatch.setattr(world, "describe_nodegroup", quicker)
    world.nobody(1)
    assert world.gpu_nodes() == NODES and "is driven again" in world.said.getvalue()
