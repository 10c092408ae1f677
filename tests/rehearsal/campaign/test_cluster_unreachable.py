"""An API server that drops connections, falls silent or is gone: what may pass is waited for, what bills is given back.

An emulated account with a node group, and an API server that really answers HTTP.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from botocore.exceptions import ClientError
from lightkube.resources.core_v1 import ConfigMap

from infra.campaign import capacity, preflight, supervise
from infra.campaign.launch import deploy
from infra.campaign.stages import StageStep, run_step
from infra.campaign.supervise import StewardWatch
from infra.cluster import kubernetes
from infra.cluster import nodes as nodes_module
from infra.cluster.attempts import create_config
from infra.cluster.nodes import GpuNodes
from infra.engine import adoption, kubernetes_state
from infra.engine.engine import Engine
from infra.errors import LeaseLost, PermanentError
from infra.record.events import Stage
from infra.record.meter import read
from infra.record.payloads.outputs import PreflightOutput, StageOutput
from infra.rehearsal.aws.eks import nodegroups
from infra.session.context import Context
from infra.spec import waits
from infra.spec.names import NAMESPACE
from tests.unit.record.cost_lines import lines
from tests.waiting import HUNG_S
from tests.worlds.account_site import until
from tests.worlds.steward_site import GANG_OF, Fuse, StewardSite, gpu_nodes


def patient(context: Context) -> None:
    """Where the bound is not what is tested, a machine that stalls must not meet it."""
    recovery = context.spec.recovery.model_copy(update={"capacity_timeout": timedelta(seconds=60)})
    context.spec = context.spec.model_copy(update={"recovery": recovery})


def nodes_of(context: Context) -> GpuNodes:
    client = kubernetes.from_outside(context.account, context.names.cluster)
    return GpuNodes(context.account, client, context.names, context.guard)


def test_a_dropped_connection_is_no_end_of_a_wait(made: StewardSite, context: Context) -> None:
    patient(context)
    nodes = nodes_of(context)
    made.api.dropping = 1
    assert len(capacity.wait_for_nodes(context, nodes)) == GANG_OF


def test_an_api_server_that_is_gone_for_a_while_is_waited_for(
    made: StewardSite, context: Context, said: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PATIENCE_S", 0.0, raising=False)
    patient(context)
    nodes = nodes_of(context)
    made.api.dropping = 3
    assert len(capacity.wait_for_nodes(context, nodes)) == GANG_OF
    assert made.api.dropping == 0


def test_an_api_server_that_stays_away_is_said_and_the_nodes_are_given_back(
    made: StewardSite, context: Context
) -> None:
    nodes = nodes_of(context)
    made.api.dropping = 10_000
    with pytest.raises(PermanentError, match="the nodes did not come") as refused:
        capacity.wait_for_nodes(context, nodes)
    text = str(refused.value)
    assert "the cluster does not answer" in text and f"{GANG_OF} instances given back" in text
    assert "kubectl get nodes" in (refused.value.cure or "")
    assert nodes.desired() == 0
    until(lambda: not gpu_nodes(made))


def test_a_health_check_that_cannot_be_started_gives_the_nodes_back(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gone for good between the nodes' coming and their check."""
    wait = preflight.wait_for_nodes

    def then_gone(context: Context, nodes: GpuNodes) -> Any:
        fit = wait(context, nodes)
        made.api.dropping = 10_000
        return fit

    monkeypatch.setattr(preflight, "wait_for_nodes", then_gone)
    with pytest.raises(PermanentError, match="the cluster does not answer") as refused:
        preflight.run(context)
    assert f"{GANG_OF} instances given back" in str(refused.value)
    until(lambda: not gpu_nodes(made))


@pytest.fixture
def refusing(made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Has AWS refuse calls of the driver from now on; what botocore repeats by itself is not in question."""
    faults = f"{made.site.world.endpoint_url}/_site/faults"

    def refuse(action: str, code: str, times: int | None, status: int = 400) -> None:
        rule = {"action": action, "code": code, "message": "not now", "status": status, "times": times}
        urllib.request.urlopen(faults, data=json.dumps({"add": [rule]}).encode()).close()

    yield refuse
    urllib.request.urlopen(faults, data=b'{"clear": true}').close()


@pytest.mark.parametrize(
    "action", ["DescribeScalingActivities", pytest.param("DescribeInstances", marks=pytest.mark.nightly)]
)
def test_a_look_for_onlookers_that_aws_refuses_neither_ends_the_wait_nor_keeps_the_nodes(
    made: StewardSite, context: Context, refusing: Callable[..., None], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The nodes boot and none joins: it ended the driver, and all of them went on billing."""
    monkeypatch.setattr(waits, "SHUTDOWN", replace(waits.SHUTDOWN, minutes=0.05))
    nodes, seen = nodes_of(context), made.api.nodes
    refusing(action, "AccessDenied", None, 403)
    made.api.nodes = lambda: []
    try:
        with pytest.raises(PermanentError, match="the nodes did not come") as refused:
            capacity.wait_for_nodes(context, nodes)
    finally:
        made.api.nodes = seen
    assert "could not" in str(refused.value) and "not now" in str(refused.value)
    assert nodes.desired() == 0
    until(lambda: not gpu_nodes(made))


def test_a_preflight_that_aws_cuts_off_gives_the_nodes_back(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(context: Context, nodes: GpuNodes) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "DescribeNodegroup")

    monkeypatch.setattr(preflight, "wait_for_nodes", cut_off)
    with pytest.raises(PermanentError, match="AWS or the cluster does not answer, or refuses") as refused:
        preflight.run(context)
    assert f"{GANG_OF} instances given back" in str(refused.value)
    until(lambda: not gpu_nodes(made))


@pytest.mark.nightly
def test_a_size_that_is_wanted_while_the_last_one_is_being_set_is_asked_for_again(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EKS takes one change of a node group at a time, and botocore does not repeat what it refuses so."""
    monkeypatch.setattr(nodegroups, "SETTLE_S", 6.0)
    nodes, eks = nodes_of(context), made.site.client("eks")
    nodes.set_desired(GANG_OF + 1)
    key = {"clusterName": context.names.cluster, "nodegroupName": context.names.gpu_group}
    assert eks.describe_nodegroup(**key)["nodegroup"]["status"] == "UPDATING"
    with pytest.raises(ClientError, match="ResourceInUseException"):
        eks.update_nodegroup_config(**key, scalingConfig={"desiredSize": 1})
    nodes.set_desired(0)
    assert nodes.desired() == 0
    monkeypatch.setattr(nodes_module, "SETTLES_S", 0.0)
    with pytest.raises(ClientError, match="ResourceInUseException"):
        nodes.set_desired(1)


def test_what_an_engine_was_making_in_a_lost_cluster_is_forgotten_for_a_teardown(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked for it in the cluster met the same silence, and ended the teardown."""
    monkeypatch.setattr(kubernetes_state, "PATIENCE_S", 0.2)
    release = {"urn": "urn:jobset", "type": adoption.RELEASE, "inputs": {"namespace": "jobset", "name": "jobset"}}
    vpc = {"urn": "urn:vpc", "type": "aws:ec2/vpc:Vpc", "inputs": {}}
    deployment = {"resources": [vpc], "pending_operations": [{"type": "creating", "resource": release}]}
    stored: list[Any] = []
    exported = SimpleNamespace(deployment=deployment)
    name = context.names.stack
    stack: Any = SimpleNamespace(name=name, export_stack=lambda: exported, import_stack=stored.append)
    made.api.dropping = 10_000
    with pytest.raises(httpx2.HTTPError):
        adoption.adoptable(context.account, context.names.cluster, deployment)
    Engine(context, context.results).amend(stack, partial(kubernetes_state.forget_kubernetes, context))
    assert stored[0].deployment["resources"] == [vpc] and not stored[0].deployment["pending_operations"]
    assert adoption.adoptable(context.account, context.names.cluster, stored[0].deployment) == {}


def test_a_stage_that_the_world_cuts_off_is_recorded_and_says_what_bills(
    made: StewardSite, context: Context, said: StringIO
) -> None:
    nodes = nodes_of(context)

    def cut_off(_: Context) -> StageOutput:
        made.api.dropping = 10_000
        nodes.facts()
        return PreflightOutput()

    with pytest.raises(httpx2.HTTPError):
        run_step(context, StageStep(Stage.PREFLIGHT, "to be cut off", cut_off))
    assert "2 x GPU nodes" in said.getvalue() and "`bivouac down deaf` ends it" in said.getvalue()
    failed = [event for event in context.store.events() if event.kind == "stage.failed"]
    assert len(failed) == 1 and "cannot be reached" in failed[0].data["error"]
    state = context.state()
    assert state.running_stage is None and state.gpu_nodes_up, "nobody has given them back"
    assert read(lines(1, 5), context.store.events(), datetime.now(UTC)).usd_per_hour == 6


def test_a_silent_steward_behind_an_api_server_that_is_gone_is_said(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_SILENT_S", 0.2)
    monkeypatch.setattr(supervise, "_LOOK_EVERY_S", 0.0)
    watch = StewardWatch(context)
    made.api.dropping = 10_000
    until(lambda: "and the cluster does not answer" in (watch.look() or ""))


def test_a_driver_that_wakes_without_its_lease_changes_nothing_in_the_cluster(
    made: StewardSite, context: Context
) -> None:
    """It was stopped behind the look at its lease: the call comes only now."""
    client = kubernetes.from_outside(context.account, context.names.cluster)

    def lost() -> None:
        raise LeaseLost("the driver lease is lost")

    deploy(client, context.store, made.config())
    before, guard = dict(made.api.objects), context.account.guard
    context.account.guard = lost
    try:
        with pytest.raises(LeaseLost):
            create_config(client, "preflight", {}, {"expectation.json": "{}"})
        with pytest.raises(LeaseLost):
            client.delete(ConfigMap, "steward-0")
        with pytest.raises(LeaseLost):
            nodes_of(context).client.patch(ConfigMap, "steward-0", {"data": {}})
        assert list(client.list(ConfigMap, namespace=NAMESPACE)), "looking goes on"
    finally:
        context.account.guard = guard
    assert made.api.objects == before


def test_a_write_that_is_sent_again_asks_the_lease_again(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PATIENCE_S", HUNG_S)
    client, guard, asked = kubernetes.from_outside(context.account, context.names.cluster), context.account.guard, []

    def later() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise LeaseLost("the driver lease is lost")

    made.api.dropping = 1
    context.account.guard = later
    try:
        with pytest.raises(LeaseLost):
            create_config(client, "late", {}, {})
    finally:
        context.account.guard = guard
    assert len(asked) == 2 and ("v1", "configmaps", NAMESPACE, "late") not in made.api.objects


def test_a_write_that_was_carried_out_though_its_answer_was_lost_is_done_once(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PATIENCE_S", HUNG_S)
    client = kubernetes.from_outside(context.account, context.names.cluster)
    made.api.losing = 1
    create_config(client, "twice", {}, {"a": "1"})
    assert made.api.objects["v1", "configmaps", NAMESPACE, "twice"]["data"] == {"a": "1"}
    assert made.client(Fuse()).get(ConfigMap, "twice").data == {"a": "1"}
