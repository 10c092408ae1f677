"""Preflight pods that do not start: who is blamed, what is said, what is given back.

An emulated account with a node group, and an API server that really answers HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from infra.campaign import preflight, proving
from infra.errors import PermanentError, UserError
from infra.session.context import Context
from tests.worlds.account_site import until
from tests.worlds.steward_site import GANG_OF, StewardSite, gpu_nodes

FIT = {"name": "cpus", "ok": True, "seen": "8", "wanted": ">= 1"}
APART = {"name": "fabric", "ok": False, "seen": "not all came", "wanted": "an all-reduce over all nodes"}
MOUNTING = {"waiting": {"reason": "ContainerCreating"}}
DENIED = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
RUNS: dict[str, Any] = {"running": {}}


def ended(host: str, *probes: dict[str, Any]) -> dict[str, Any]:
    report = {"node": host, "probes": probes or [FIT], "bus_bandwidth_gb_s": 1.0}
    return {"terminated": {"exitCode": 0, "message": json.dumps(report)}}


class Pods:
    """What the controllers, the scheduler and the kubelets make of each new JobSet, and a kubelet's warning."""

    def __init__(self, made: StewardSite) -> None:
        self.api, self.gangs = made.api, list[str]()
        self.hosts: Callable[[], list[str]] = lambda: sorted(
            gpu_node.settings["hostname"] for gpu_node in gpu_nodes(made)
        )
        self.state: Callable[[str], dict[str, Any]] = lambda host: ended(host)
        self.unplaced = frozenset[str]()
        self.warning = ("", "")

    def created(self, document: dict[str, Any]) -> None:
        if document.get("kind") != "JobSet":
            return
        self.gangs.append(document["metadata"]["name"])
        for number, host in enumerate(self.hosts()):
            name = f"{self.gangs[-1]}-gang-0-{number}"
            labels = {**document["metadata"]["labels"], proving.JOBSET_LABEL: self.gangs[-1]}
            self.api.objects["v1", "pods", "campaign", name] = {
                "metadata": {"name": name, "namespace": "campaign", "labels": labels},
                "spec": {"nodeName": "" if host in self.unplaced else host, "containers": []},
                "status": self.status(host),
            }
            about = {"kind": "Pod", "namespace": "campaign", "name": name}
            reason, message = self.warning
            if reason:
                self.api.objects["v1", "events", "campaign", f"{name}.1"] = {
                    "metadata": {"name": f"{name}.1", "namespace": "campaign"}, "involvedObject": about,
                    "type": "Warning", "reason": reason, "message": message,
                    "lastTimestamp": "2026-11-21T20:00:00Z",
                }  # fmt: skip

    def status(self, host: str) -> dict[str, Any]:
        if host in self.unplaced:
            nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
            return {"phase": "Pending", "conditions": [nowhere]}
        state = self.state(host)
        phase = {"waiting": "Pending", "running": "Running", "terminated": "Succeeded"}[next(iter(state))]
        one = {"name": "trainer", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        return {"phase": phase, "containerStatuses": [one]}


@pytest.fixture
def pods(made: StewardSite, context: Context) -> Iterator[Pods]:
    recovery = {"startup_timeout": timedelta(seconds=3), "capacity_timeout": timedelta(seconds=90)}
    context.spec = context.spec.model_copy(update={"recovery": context.spec.recovery.model_copy(update=recovery)})
    before, one = made.api.created, Pods(made)
    made.api.patches.clear()
    made.api.created = one.created
    yield one
    made.api.created = before


def quarantined(pods: Pods) -> list[str]:
    return [node for node, change in pods.api.patches.items() if change.get("spec", {}).get("unschedulable")]


def test_a_gang_whose_image_cannot_be_pulled_replaces_nobody_and_says_what_it_waits_for(
    made: StewardSite, context: Context, pods: Pods, said: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    pods.state, pods.warning = lambda _: DENIED, ("Failed", "failed to pull image: 403 Forbidden")
    monkeypatch.setattr(proving, "_WARNINGS_EVERY", 2)
    with pytest.raises(PermanentError, match=f"no report on {GANG_OF} of {GANG_OF} nodes") as refused:
        preflight.run(context)
    text = str(refused.value)
    assert "ImagePullBackOff: Back-off pulling image; last warning: Failed: failed to pull image: 403" in text
    assert f"{GANG_OF} instances given back" in text and "repository" in (refused.value.cure or "")
    assert len(pods.gangs) == 1 and not quarantined(pods)
    until(lambda: not gpu_nodes(made))
    assert f"0 of {GANG_OF} pods run; " in said.getvalue() and "ImagePullBackOff" in said.getvalue()


def test_a_node_that_alone_cannot_mount_is_replaced_and_the_next_gang_proves_itself(
    context: Context, pods: Pods
) -> None:  # fmt: skip
    bad = pods.hosts()[0]
    pods.state = lambda host: MOUNTING if host == bad else ended(host, *([APART] if bad in pods.hosts() else [FIT]))
    pods.warning = ("FailedMount", "MountVolume.SetUp failed")
    verdicts = preflight.run(context).verdicts
    assert quarantined(pods) == [bad] and bad not in [verdict["node"] for verdict in verdicts] and len(pods.gangs) == 2


def test_a_pod_that_alone_gets_no_node_blames_none_and_ends_the_campaign_next_time(
    context: Context, pods: Pods
) -> None:  # fmt: skip
    pods.unplaced, pods.state = frozenset({pods.hosts()[0]}), lambda host: ended(host, FIT, APART)
    with pytest.raises(PermanentError, match="no single node is at fault") as refused:
        preflight.run(context)
    assert "Unschedulable: 0/2 nodes" in str(refused.value) and len(pods.gangs) == 2 and not quarantined(pods)


def test_the_time_of_a_check_begins_when_all_containers_run(
    context: Context, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Each look at the pods finds them one step on: after six looks they run, after seven they have ended."""
    monkeypatch.setattr(proving, "_RUN_S", 0.5)
    recovery = context.spec.recovery.model_copy(update={"startup_timeout": timedelta(seconds=60)})
    context.spec = context.spec.model_copy(update={"recovery": recovery})
    looks, answer = [0], pods.api.handle

    def handle(verb: str, url: str, body: dict[str, Any]) -> Any:
        if verb == "GET" and "/pods?" in url:
            looks[0] += 1
            for (_, plural, _, _), one in pods.api.objects.items():
                if plural == "pods":
                    one["status"] = pods.status(one["spec"]["nodeName"])
        return answer(verb, url, body)

    pods.state = lambda host: MOUNTING if looks[0] < 6 else RUNS if looks[0] < 7 else ended(host)
    monkeypatch.setattr(pods.api, "handle", handle)
    assert len(preflight.run(context).verdicts) == GANG_OF and len(pods.gangs) == 1


def test_a_deadline_that_passes_while_pods_start_blames_no_node(
    made: StewardSite, context: Context, pods: Pods
) -> None:  # fmt: skip
    bad = pods.hosts()[0]

    def state(host: str) -> dict[str, Any]:
        context.deadline -= timedelta(days=365)
        return MOUNTING if host == bad else ended(host)

    pods.state = state
    with pytest.raises(UserError, match="deadline has passed") as refused:
        preflight.run(context)
    assert f"{GANG_OF} instances given back" in str(refused.value) and not quarantined(pods)
    until(lambda: not gpu_nodes(made))
