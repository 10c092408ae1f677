"""A steward whose nodes fall sick by themselves or fail again and again: they are replaced through AWS, and training
goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from infra.aws.account import Account
from infra.campaign import capacity
from infra.cluster.kubernetes import from_outside
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Event
from infra.record.store import LIVE
from infra.session.context import Context
from infra.session.session import opened
from infra.spec.campaign import Spec
from infra.spec.names import Names
from tests.worlds.steward_site import Fuse, StewardSite, lone_camp

SPEC: dict[str, Any] = {"campaign": "sick", "recovery": {"capacity_timeout": "2m"}}
XID = {
    "type": "AcceleratedHardwareReady",
    "status": "False",
    "reason": "NvidiaXID79Error",
    "message": "detected XID-79 on the instance, review kernel logs for additional information.",
}


class KilledAfter(Fuse):
    """Through with the first write of this name."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self._last = last

    def burn(self, what: str) -> None:
        super().burn(what)
        if what == self._last:
            self.left = len(self.writes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StewardSite]:
    with lone_camp(tmp_path_factory, **SPEC) as camp:
        yield camp


@pytest.fixture
def camp(made: StewardSite) -> StewardSite:
    made.ends = (0,)
    made.forget()
    return made


def nodes_of(camp: StewardSite) -> GpuNodes:
    return GpuNodes(Account(camp.spec.region), camp.client(Fuse()), Names(camp.spec.campaign), lambda: None)


def marked(camp: StewardSite, monkeypatch: pytest.MonkeyPatch, instance: str, **spec: Any) -> list[dict[str, Any]]:
    """Conditions of the Node of this instance, as its agents write them; and its spec, as people change it."""
    conditions, seen = list[dict[str, Any]](), camp.api.nodes

    def nodes() -> list[dict[str, Any]]:
        found = seen()
        for one in found:
            if one["spec"]["providerID"].endswith(instance):
                one["status"]["conditions"] += conditions
                one["spec"] |= spec
        return found

    monkeypatch.setattr(camp.api, "nodes", nodes)
    return conditions


def of(camp: StewardSite, kind: str) -> list[Event]:
    return [event for event in camp.store().events() if event.kind == kind]


def running(camp: StewardSite) -> set[str]:
    return {str(one.settings["instance_id"]) for one in camp.site.alive()}


def test_a_node_whose_accelerators_the_agent_calls_broken_is_replaced(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as fit, and EKS's own repair is off for it."""
    bad = nodes_of(camp).facts()[0]
    conditions = marked(camp, monkeypatch, bad.instance)
    ordinary = camp.created

    def created(document: dict[str, Any]) -> None:
        if document.get("kind") == "JobSet" and not conditions:
            ago = datetime.now(UTC) - timedelta(minutes=2)
            conditions.append(XID | {"lastTransitionTime": ago.isoformat(timespec="seconds")})
        ordinary(document)

    monkeypatch.setattr(camp.api, "created", created)
    camp.ends = (70, 0)
    assert camp.steward(Fuse())
    state = camp.state()
    assert state.outcome == "done" and [attempt.failure for attempt in state.attempts] == ["process", None]
    (quarantined,) = of(camp, "node.quarantined")
    assert (quarantined.data["node"], quarantined.data["instance"]) == (bad.name, bad.instance)
    assert quarantined.data["reason"].startswith("AcceleratedHardwareReady is False since 20")
    assert "NvidiaXID79Error: detected XID-79" in quarantined.data["reason"] and len(state.repairs) == 1
    (decided,) = [event.data["why"] for event in of(camp, "decision") if event.data["action"] == "replace"]
    assert decided == f"after attempt 1: {bad.name}: {quarantined.data['reason']}"


def test_a_node_that_fails_first_twice_is_replaced_also_when_stewards_change_in_between(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPU fails each attempt while the other node only loses its peer."""
    bad, good = nodes_of(camp).facts()
    where = {bad.instance: bad.name, good.instance: good.name}
    ordinary = camp.created

    def created(document: dict[str, Any]) -> None:
        ordinary(document)
        if document.get("kind") != "JobSet" or bad.instance not in running(camp):
            return
        labels, name = document["metadata"]["labels"], document["metadata"]["name"]
        # The victim has the lower index: it is not the first of the list that is to blame.
        for index, (node, reason) in enumerate(((where[good.instance], "peer-lost"), (bad.name, "internal"))):
            message = json.dumps({"reason": reason, "detail": "a collective failed" if index == 0 else "ECC error"})
            camp.pod(f"{name}-{index}", labels, index, 70, message, node)

    monkeypatch.setattr(camp.api, "created", created)
    assert not camp.steward(KilledAfter("record attempt.ended"))
    assert len(camp.state().attempts) == 1 and not camp.state().repairs
    assert camp.steward(Fuse())
    state = camp.state()
    assert [(a.failure, a.ended and a.ended.first_failed) for a in state.attempts] == [
        ("process", bad.name), ("process", bad.name), (None, None),
    ]  # fmt: skip
    (quarantined,) = of(camp, "node.quarantined")
    assert quarantined.data["instance"] == bad.instance and len(state.repairs) == 1
    assert quarantined.data["reason"] == "attempts 1 and 2 failed first on it, without a newer checkpoint"
    assert state.outcome == "done"


def test_a_cordoned_node_gets_no_attempt_and_is_waited_for(camp: StewardSite, monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = nodes_of(camp).facts()
    marked(camp, monkeypatch, held.instance, unschedulable=True)
    recovery = camp.spec.recovery.model_copy(update={"capacity_timeout": timedelta(seconds=2)})
    assert camp.steward(Fuse(), spec=camp.spec.model_copy(update={"recovery": recovery}))
    state = camp.state()
    assert state.outcome == "stopped" and not state.attempts and not state.repairs
    live = camp.store().get_json(LIVE)
    assert live and f"{held.name}: cordoned by somebody else" in live["why"]
    why = of(camp, "training.finished")[0].data["why"]
    assert "1 of 2 nodes are fit" in why and held.name in why


@contextmanager
def driving(camp: StewardSite, spec: Spec, said: StringIO) -> Iterator[tuple[Context, GpuNodes]]:
    with opened(spec, make_plan(spec, survey(spec)), Console(file=said, width=400), None) as context:
        client = from_outside(context.account, context.names.cluster)
        yield context, GpuNodes(context.account, client, context.names, context.guard)


@pytest.fixture
def with_gpus(camp: StewardSite, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = camp.api.nodes

    def nodes() -> list[dict[str, Any]]:
        found = seen()
        for one in found:
            one["status"]["allocatable"]["nvidia.com/gpu"] = "1"
        return found

    monkeypatch.setattr(camp.api, "nodes", nodes)


@pytest.mark.usefixtures("with_gpus")
def test_a_sick_node_is_replaced_also_before_the_health_check(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pod can prove what is not Ready: it was waited for until all nodes were given back."""
    bad, said = nodes_of(camp).facts()[0], StringIO()
    ago = datetime.now(UTC) - timedelta(minutes=2)
    marked(camp, monkeypatch, bad.instance).append(XID | {"lastTransitionTime": ago.isoformat(timespec="seconds")})
    with driving(camp, camp.spec, said) as (context, nodes):
        fit = capacity.wait_for_nodes(context, nodes)
    assert len(fit) == 2 and bad.instance not in {one.instance for one in fit} | running(camp)
    assert f"{bad.name} does not become fit: AcceleratedHardwareReady is False" in said.getvalue()
    (verdict,) = of(camp, "node.verdict")
    assert (verdict.data["instance"], verdict.data["fit"]) == (bad.instance, False)
    assert "NvidiaXID79Error" in verdict.data["probes"][0]["seen"]


@pytest.mark.usefixtures("with_gpus")
def test_nodes_that_came_and_stay_unfit_are_named_when_all_are_given_back(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = nodes_of(camp).facts()[0]
    marked(camp, monkeypatch, held.instance, unschedulable=True)
    recovery = camp.spec.recovery.model_copy(update={"capacity_timeout": timedelta(seconds=2)})
    with (
        driving(camp, camp.spec.model_copy(update={"recovery": recovery}), StringIO()) as (context, nodes),
        pytest.raises(PermanentError) as refused,
    ):
        capacity.wait_for_nodes(context, nodes)
    assert f"1 of 2 within 0:00:02; {held.name}: cordoned by somebody else" in str(refused.value)
    assert "somebody else's cordon or taint" in (refused.value.cure or "")
    assert nodes_of(camp).desired() == 0


@pytest.mark.usefixtures("with_gpus")
def test_when_every_node_is_called_sick_none_is_replaced_and_the_health_check_judges(
    camp: StewardSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others in their place would be too: what they share is at fault, and each costs its first minute."""
    came, said = nodes_of(camp).facts(), StringIO()
    ago = datetime.now(UTC) - timedelta(minutes=2)
    for one in came:
        marked(camp, monkeypatch, one.instance).append(XID | {"lastTransitionTime": ago.isoformat(timespec="seconds")})
    with driving(camp, camp.spec, said) as (context, nodes):
        wait_for_nodes = capacity.wait_for_nodes(context, nodes)
    assert {one.name for one in wait_for_nodes} == {one.name for one in came} and not of(camp, "node.verdict")
    assert "it is replaced" not in said.getvalue() and "the health check will judge them" in said.getvalue()
