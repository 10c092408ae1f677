"""The pilot: one GPU node proves itself before the others are asked for; whatever it shows, and whoever is killed.

An emulated account with a node group, and an API server that really answers HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest

from infra.campaign import pilot, preflight
from infra.campaign.preflight import expectation_of
from infra.cluster.fitness import PATIENCE, Sickness
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError
from infra.plan.catalogue.reading import image_versions
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.faults import PastFault, note_fault, read_faults
from infra.record.payloads.attempts import PilotProven
from infra.session.context import Context
from infra.spec.campaign import Spec
from tests.rehearsal.campaign.test_preflight_starting import DENIED, FIT, Pods, ended, pods, quarantined
from tests.worlds.account_site import until
from tests.worlds.steward_site import Fuse, StewardSite, gpu_nodes

__all__ = ["pods"]
FOUR = 4
NO_DEVICE = {"name": "accelerators", "ok": False, "seen": "0", "wanted": ">= 1"}


@pytest.fixture
def checked(made: StewardSite, context: Context, pods: Pods) -> Iterator[list[int]]:
    """A campaign of four nodes, none of which is up; the number of nodes that stood at each health check."""
    document = context.spec.model_dump(mode="json")
    document["nodes"]["count"] = FOUR
    document["training"]["global_batch"] = 32
    context.spec = Spec.model_validate(document)
    context.plan = make_plan(context.spec, survey(context.spec))
    made.group_of(0)
    seen, created = list[int](), made.api.created

    def count(document: dict[str, Any]) -> None:
        if document.get("kind") == "JobSet":
            parallelism = document["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"]
            until(lambda: parallelism == len(gpu_nodes(made)))  # one that was replaced may still be on its way out
            seen.append(parallelism)
        created(document)

    made.api.created = count
    yield seen
    made.api.created = created


def launched(made: StewardSite) -> set[str]:
    return {
        machine.settings["instance_id"]
        for machine in made.site.machines
        if "eks:nodegroup-name" in machine.settings["tags"]
    }


def kinds(context: Context) -> list[str]:
    return [event.kind for event in context.store.events() if event.kind.startswith("pilot")]


def test_one_node_proves_itself_alone_and_then_all_do_together(
    context: Context, checked: list[int], said: StringIO
) -> None:
    assert len(preflight.run(context).verdicts) == FOUR
    assert checked == [1, FOUR] and kinds(context) == ["pilot.begun", "pilot.proven"]
    assert "proved what all nodes need; 3 more are asked for" in said.getvalue()
    every = [event.kind for event in context.store.events()]
    assert every.index("launch.budget") < every.index("pilot.begun"), "before any node is asked for"


def test_what_would_fail_on_every_node_has_cost_one_and_says_what_was_saved(
    made: StewardSite, context: Context, pods: Pods, checked: list[int]
) -> None:
    before = launched(made)
    pods.state, pods.warning = lambda _: DENIED, ("Failed", "failed to pull image: 403 Forbidden")
    with pytest.raises(PermanentError, match="every node would have; the other 3 were never asked for") as refused:
        preflight.run(context)
    text = str(refused.value)
    assert checked == [1] and len(launched(made) - before) == 1 and not quarantined(pods)
    until(lambda: not gpu_nodes(made))
    assert "403 Forbidden" in text and "1 instances given back" in text and "USD saved" in text
    assert "repository" in (refused.value.cure or "") and kinds(context) == ["pilot.begun"]


def test_a_pilot_with_a_fault_of_its_own_is_replaced_and_the_next_one_proves_itself(
    context: Context, pods: Pods, checked: list[int]
) -> None:
    bad: list[str] = []

    def state(host: str) -> dict[str, Any]:
        bad.extend([] if bad else [host])
        return ended(host, {"name": "ecc", "ok": False, "seen": "GPU 0: 3", "wanted": "0"} if host in bad else FIT)

    pods.state = state
    verdicts = preflight.run(context).verdicts
    assert quarantined(pods) == bad and len(bad) == 1 and bad[0] not in [verdict["node"] for verdict in verdicts]
    assert checked == [1, 1, FOUR]
    judged = [event.data["fit"] for event in context.store.events() if event.kind == "node.verdict"]
    assert judged == [False, True, *[True] * FOUR]


def faults_noted(context: Context) -> dict[str, str]:
    """Instance -> reason, of all faults that campaigns of this name have noted in this account."""
    store = context.store
    faults = read_faults(store.s3, store.bucket, datetime.now(UTC)).faults
    return {str(fault.instance): fault.reason for fault in faults if fault.campaign == context.spec.campaign}


def test_a_pilot_that_failed_by_itself_is_noted_for_later_campaigns(
    made: StewardSite, context: Context, pods: Pods, checked: list[int]
) -> None:
    bad, before = list[str](), faults_noted(context)

    def state(host: str) -> dict[str, Any]:
        bad.extend([] if bad else [instance_of(made, host)])
        is_bad = instance_of(made, host) in bad  # another instance may get its name
        return ended(host, {"name": "ecc", "ok": False, "seen": "GPU 0: 3", "wanted": "0"} if is_bad else FIT)

    pods.state = state
    preflight.run(context)
    (instance,) = faults_noted(context).keys() - before.keys()
    assert [instance] == bad and "ecc: GPU 0: 3, wanted 0" in faults_noted(context)[instance]


def instance_of(made: StewardSite, host: str) -> str:
    return next(str(row.settings["instance_id"]) for row in gpu_nodes(made) if row.settings["hostname"] == host)


@pytest.mark.parametrize("has_another", [True, False])
def test_a_known_faulty_node_is_left_where_ec2_has_another_and_else_trains_on(
    made: StewardSite, context: Context, pods: Pods, checked: list[int], said: StringIO, has_another: bool
) -> None:
    """The pilot's node is one that an earlier campaign noted; the account has room for four nodes, or more."""
    capacity = made.site.world.routes["/_site/capacity"]
    hosts, before = list[str](), faults_noted(context)

    def state(host: str) -> dict[str, Any]:
        if not hosts:
            hosts.append(host)
            fault = PastFault(at=datetime.now(UTC), campaign="old", reason="ecc", instance=instance_of(made, host))
            note_fault(context.store.put, fault)
            if not has_another:
                capacity("", json.dumps({"add": [{"places": FOUR}]}).encode())
        return ended(host)

    pods.state = state
    try:
        fit = [verdict["node"] for verdict in preflight.run(context).verdicts]
    finally:
        capacity("", b'{"clear": true}')
    assert len(fit) == FOUR and (hosts[0] not in fit) is has_another
    assert checked == ([1, FOUR, FOUR] if has_another else [1, FOUR])
    assert ("is taken all the same" in said.getvalue()) is not has_another
    assert len(gpu_nodes(made)) == FOUR
    nodes = GpuNodes(context.account, made.client(Fuse()), context.names, context.guard)
    assert nodes.desired() == FOUR and faults_noted(context) == before


def test_the_same_fault_on_a_second_pilot_is_no_nodes_own(made: StewardSite, context: Context, pods: Pods,
                                                         checked: list[int]) -> None:  # fmt: skip
    pods.state, before = lambda host: ended(host, NO_DEVICE), faults_noted(context)
    with pytest.raises(PermanentError, match="every node would have") as refused:
        preflight.run(context)
    assert checked == [1, 1] and "accelerators: 0, wanted >= 1" in str(refused.value)
    assert faults_noted(context) == before, "it is no node's own"
    until(lambda: not gpu_nodes(made))


def test_pilots_that_differ_in_their_faults_end_after_the_rounds_of_the_spec(
    made: StewardSite, context: Context, pods: Pods, checked: list[int]
) -> None:
    pods.state = lambda host: ended(host, {"name": "ecc", "ok": False, "seen": host, "wanted": "0"})
    with pytest.raises(PermanentError, match="no pilot was fit in 3 rounds; the other 3 were never asked for"):
        preflight.run(context)
    assert checked == [1, 1, 1]
    until(lambda: not gpu_nodes(made))


def test_two_pilots_that_get_no_devices_end_the_wait_for_a_third(
    made: StewardSite, context: Context, checked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no device plugin runs: the nodes join, and offer nothing."""
    before, nodes, noted = launched(made), made.api.nodes, faults_noted(context)

    def bare() -> list[dict[str, Any]]:
        return [{**node, "status": {**node["status"], "allocatable": {}}} for node in nodes()]

    monkeypatch.setattr(made.api, "nodes", bare)
    monkeypatch.setitem(PATIENCE, Sickness.LATE, timedelta(0))
    with pytest.raises(PermanentError, match="the pilot did not come; the other 3 were never asked for") as refused:
        preflight.run(context)
    assert not checked and len(launched(made) - before) <= 3
    new = faults_noted(context).keys() - noted.keys()
    assert new and all("accelerators allocatable" in faults_noted(context)[instance] for instance in new)
    until(lambda: not gpu_nodes(made))
    assert "0 of 1 within" in str(refused.value)


class Killed(BaseException):
    """SIGKILL, as the process itself would not see it."""


def test_a_driver_killed_after_the_pilot_does_not_repeat_it(
    made: StewardSite, context: Context, checked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = GpuNodes.set_desired

    def killed(self: GpuNodes, count: int) -> None:
        if count == FOUR:
            raise Killed
        right(self, count)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(GpuNodes, "set_desired", killed)
        preflight.run(context)
    assert checked == [1] and len(gpu_nodes(made)) == 1
    preflight.run(context)
    assert checked == [1, FOUR] and kinds(context) == ["pilot.begun", "pilot.proven"]


def test_a_driver_killed_in_the_pilots_check_goes_on_with_the_same_node(
    made: StewardSite, context: Context, checked: list[int]
) -> None:
    before = launched(made)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(pilot.proving, "prove", killed)
        preflight.run(context)
    assert len(gpu_nodes(made)) == 1
    assert len(preflight.run(context).verdicts) == FOUR
    assert checked == [1, FOUR] and len(launched(made) - before) == FOUR, "none was started twice"


def test_no_pilot_is_due_twice_for_one_image_or_after_all_were_asked_for(
    made: StewardSite, context: Context, checked: list[int]
) -> None:
    nodes = GpuNodes(context.account, made.client(Fuse()), context.names, context.guard)
    expectation = expectation_of(context.spec, None, image_versions())
    assert pilot.is_due(context, nodes, expectation)
    context.store.append(PilotProven(node="n", instance="i", digest=pilot._digest(context, expectation)))
    assert not pilot.is_due(context, nodes, expectation)
    context.outputs[Stage.BAKE] = context.outputs[Stage.BAKE].model_copy(update={"image": "base@sha256:1"})
    assert pilot.is_due(context, nodes, expectation)
    made.group_of(2)
    assert not pilot.is_due(context, nodes, expectation), "they bill already"
