"""A gang in a cluster that binds gangs as a whole, and in those that do so only in part, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from lightkube.core.exceptions import ApiError

from infra.cluster import attempts
from infra.cluster.gang import GangJob
from infra.cluster.standing.pod_groups import pod_groups
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster
from infra.standing.openings import health_gang
from tests.root import ROOT
from tests.worlds.tenant import SPACE, TenantApi

SPEC: dict[str, Any] = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())
NAME = "on-racks-a1"
LEAF = "topology.k8s.aws/network-node-layer-3"
JOBSET = ("jobset.x-k8s.io/v1alpha2", "jobsets", SPACE, NAME)


class GangApi(TenantApi):
    """An API server that serves PodGroups, with what a cluster may lack beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.gang_api = "v1alpha2"
        self.drops_group = False
        """Its JobSet knows no `schedulingGroup`."""
        self.status = 0
        """The answer to a PodGroup with constraints of topology, where it is not 0."""

    def handle(self, verb: str, url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body.get("kind") == "PodGroup" and "schedulingConstraints" in body["spec"] and self.status:
            return self.status, {"message": "spec.schedulingConstraints: Forbidden", "code": self.status}
        if body.get("kind") == "JobSet":
            body["metadata"]["uid"] = "uid-of-the-jobset"
            pod = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
            if self.drops_group:
                pod.pop("schedulingGroup", None)
        return super().handle(verb, url, body)

    def launch(self, nodes: int = 3, **changes: Any) -> None:
        cluster = StandingCluster.model_validate({**SPEC["cluster"], **changes})
        gang: GangJob = health_gang(Spec.model_validate(SPEC)).model_copy(update={"name": NAME, "nodes": nodes})
        attempts.launch(self.client(), gang, cluster)

    @property
    def group_of_pods(self) -> dict[str, Any] | None:
        job = self.objects[JOBSET]["spec"]["replicatedJobs"][0]["template"]["spec"]
        return job["template"]["spec"].get("schedulingGroup")  # type: ignore[no-any-return]

    @property
    def groups(self) -> list[dict[str, Any]]:
        return list(pod_groups(self.client()))


@pytest.fixture
def api() -> Iterator[GangApi]:
    gang_api = GangApi()
    yield gang_api
    gang_api.stop()


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v1beta1"])
def test_a_gang_is_bound_as_a_whole_and_its_group_goes_with_it(version: str, api: GangApi) -> None:
    api.gang_api = version
    api.launch()
    assert api.group_of_pods == {"podGroupName": NAME}
    (group,) = api.groups
    assert group["apiVersion"] == f"scheduling.k8s.io/{version}" and group["metadata"]["name"] == NAME
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("JobSet", "uid-of-the-jobset")
    assert group["metadata"]["labels"]["bivouac.dev/campaign"] == SPEC["campaign"]


def test_a_launcher_that_died_between_the_two_leaves_the_group_to_the_next(api: GangApi) -> None:
    def die(verb: str, plural: str, name: str) -> None:
        if plural == "podgroups" and JOBSET in api.objects:
            raise RuntimeError("killed")

    api.before = die
    with pytest.raises(RuntimeError, match="killed"):
        api.launch()
    assert api.group_of_pods and not api.groups
    api.before = lambda verb, plural, name: None
    api.launch()
    assert len(api.groups) == 1


@pytest.mark.parametrize("lack", ["no version", "a JobSet that drops it", "no right", "a queue", "one pod"])
def test_a_gang_is_as_ever_where_one_thing_is_missing(lack: str, api: GangApi) -> None:
    if lack == "no version":
        api.gang_api = ""
    api.drops_group = lack == "a JobSet that drops it"
    if lack == "no right":
        api.denied = {("create", "podgroups")}
    api.launch(1 if lack == "one pod" else 3, **({"queue": "team"} if lack == "a queue" else {}))
    assert api.group_of_pods is None and api.groups == []


@pytest.mark.parametrize(("status", "keys"), [(0, [LEAF]), (422, [])])
def test_one_leaf_is_asked_of_the_scheduler_where_its_gate_is_on(status: int, keys: list[str], api: GangApi) -> None:
    api.status = status
    api.launch(topology={"label": LEAF, "required": True})
    (group,) = api.groups
    topology = group["spec"].get("schedulingConstraints", {}).get("topology", [])
    assert [row["key"] for row in topology] == keys


def test_a_server_that_tells_nothing_is_no_server_without_gangs(api: GangApi) -> None:
    api.status = 503
    with pytest.raises(ApiError):
        api.launch(topology={"label": LEAF, "required": True})
    assert JOBSET not in api.objects
