"""The end of a campaign in an existing cluster: what goes, in which order, and what nobody touches."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from infra.errors import LeaseLost, NotProven, PermanentError
from infra.record.events import CampaignState, Stage
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.stages import StageStarted
from infra.spec.campaign import Spec
from infra.standing import rights as granted
from infra.standing.belongings import is_gang, own_kinds
from infra.standing.certificate import certify
from infra.standing.ending import end
from tests.unit.standing.conftest import Standing
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.tenant import BUCKET, CAMPAIGN, LABEL, SPACE, TenantApi, own, rack, tenant

PODS = ("v1", "pods")
NOTHING_LAUNCHED = CampaignState(begun_with=Stage.CHECK)


def owned(name: str, owner: dict[str, Any], kind: str, **more: Any) -> dict[str, Any]:
    """An object that a controller made for another one, without the campaign's label."""
    reference = {"apiVersion": "v1", "kind": kind, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    metadata = {"name": name, "namespace": SPACE, "uid": f"uid-{name}", "ownerReferences": [reference]}
    return {"metadata": metadata, **more}


def pod(name: str, node: str, owner: dict[str, Any], app: str = "") -> dict[str, Any]:
    document = own(name, labels={"app": app} if app else {}, spec={"nodeName": node, "containers": []})
    document["metadata"]["ownerReferences"] = owned(name, owner, "X")["metadata"]["ownerReferences"]
    return document


def inhabit(api: TenantApi) -> None:
    """The campaign's objects as a steward that trains leaves them, two gangs' pods on racks 1 and 2."""
    template = {"template": {"metadata": {"labels": {LABEL: CAMPAIGN}}}}
    steward = own("steward", spec={"selector": {}, **template})
    gang, archive = own(f"{CAMPAIGN}-a2"), own("archive")
    replicas = owned("steward-77", steward, "Deployment", spec={"selector": {}, **template})
    job = owned(f"{CAMPAIGN}-a2-gang-0", gang, "JobSet", spec=template)
    api.add("apps/v1", "deployments", steward)
    api.add("apps/v1", "replicasets", replicas)
    api.add("jobset.x-k8s.io/v1alpha2", "jobsets", gang)
    api.add("batch/v1", "jobs", job, archive)
    api.add("v1", "services", owned(f"{CAMPAIGN}-a2", gang, "JobSet"))
    api.add(*PODS, pod("steward-77-x", "system-1", replicas, "steward"))
    api.add(*PODS, pod("gang-0", "rack-1", job), pod("gang-1", "rack-2", job), pod("archive-0", "rack-1", archive))
    api.add("v1", "configmaps", *(own(name) for name in ("steward", "steward-holder", "preflight", f"{CAMPAIGN}-a2")))


def strange(api: TenantApi) -> dict[Any, Any]:
    """Objects of others in the same namespace and in another, also of a campaign whose name begins as ours."""
    other = own(f"{CAMPAIGN}-2-a1", f"{CAMPAIGN}-2")
    api.add("jobset.x-k8s.io/v1alpha2", "jobsets", other)
    api.add("v1", "services", owned(f"{CAMPAIGN}-2-a1", other, "JobSet"))
    api.add(*PODS, pod("theirs-0", "rack-1", other) | {"metadata": {"name": "theirs-0", "labels": {"app": "theirs"}}})
    api.add("v1", "configmaps", own("archive", f"{CAMPAIGN}-2"), {"metadata": {"name": "settings", "uid": "s"}})
    api.add("v1", "persistentvolumeclaims", {"metadata": {"name": "scratch", "uid": "c"}, "status": {"phase": "Bound"}})
    api.objects["v1", "configmaps", "team-b", "steward"] = own("steward")
    return {key: copy.deepcopy(document) for key, document in api.objects.items()}


def test_all_that_the_campaign_made_goes_and_nothing_of_others(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    foreign = strange(api)
    inhabit(api)
    prefix = f"bivouac/campaigns/{CAMPAIGN}"
    for key in ("carried/step-00000020/a", "requests/1.json", "spec.json"):
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=b"x")
    ended = end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert api.objects == foreign
    assert set(s3.objects) == {f"{prefix}/spec.json"}
    assert (ended.stays, ended.unreached) == ((), {})
    assert {"deployments.apps steward", f"jobsets.jobset.x-k8s.io {CAMPAIGN}-a2", "jobs.batch archive"} <= set(
        ended.removed
    )


def test_the_steward_is_gone_before_anything_else_is_deleted(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    inhabit(api)

    def insist(verb: str, plural: str, name: str) -> None:
        if plural != "deployments":
            assert not any(key[:2] in (("apps/v1", "deployments"), ("apps/v1", "replicasets")) for key in api.objects)
            assert (*PODS, SPACE, "steward-77-x") not in api.objects

    api.before = insist
    end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    # Config maps last: pods and Jobs read them.
    order = [plural for verb, plural, _ in api.calls if verb == "delete"]
    assert order[0] == "deployments" and set(order[-4:]) == {"configmaps"}


def test_a_pod_on_a_dead_node_stays_and_is_told(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> None:
    inhabit(api)
    api.racks["rack-2"] = rack("rack-2", "Unknown")
    api.racks["rack-3"] = rack("rack-3", unschedulable=True)
    ended = end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert [key for key in api.objects if key[:2] == PODS] == [(*PODS, SPACE, "gang-1")]
    assert ended.stays == ("pods gang-1 stays until node rack-2 is back or removed",)
    assert ended.unreached == {"rack-2": "not Ready (NodeStatusUnknown)", "rack-3": "cordoned by its owner"}
    assert {node for *_, node in api.emptied} == {"", "rack-1"}


def test_a_pod_group_stays_as_long_as_a_pod_on_a_dead_node(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> None:
    """Kubernetes protects it by a finalizer while a pod names it."""
    inhabit(api)
    api.gang_api = "v1alpha2"
    group = own(f"{CAMPAIGN}-a2", spec={"schedulingPolicy": {"gang": {"minCount": 2}}})
    group["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    api.add("scheduling.k8s.io/v1alpha2", "podgroups", group)
    with pytest.raises(PermanentError, match=f"{CAMPAIGN}-a2"):
        end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    inhabit(api)
    api.racks["rack-2"] = rack("rack-2", "Unknown")
    campaign = tenant(api, s3, spec, time)
    assert end(campaign, NOTHING_LAUNCHED).stays == (
        "pods gang-1 stays until node rack-2 is back or removed",
        f"podgroups.scheduling.k8s.io {CAMPAIGN}-a2 stays as long as pods gang-1",
    )
    found = certify(campaign, NOTHING_LAUNCHED, "", {}, "ada")
    assert [row.kind for row in found.looks if row.found] == []


def test_a_pod_that_does_not_go_from_a_living_node_is_an_error_with_its_name(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    stuck = own("stuck", spec={"nodeName": "rack-1", "containers": [], "terminationGracePeriodSeconds": 600})
    stuck["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    api.add(*PODS, stuck)
    begun = time()
    with pytest.raises(PermanentError, match="pods stuck") as raised:
        end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert time() - begun > 600 and "goes on" in str(raised.value.cure)
    assert not api.emptied


def test_what_is_not_archived_is_refused_before_anything_is_touched(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    inhabit(api)
    campaign = tenant(api, s3, spec, time)
    campaign.store.append(StageStarted(stage=Stage.CHECK))
    campaign.store.append(AttemptLaunched(attempt=1))
    for state in (campaign.store.state(), CampaignState()):
        with pytest.raises(NotProven):
            end(campaign, state)
    assert api.calls == []
    end(campaign, campaign.store.state(), abandon=True, person="ada")
    assert campaign.store.state().abandoned
    assert not [key for key in api.objects if key[1] != "nodes"]


def test_a_driver_that_is_killed_anywhere_goes_on(spec: Spec, time: Time) -> None:
    """Once for each change that it makes."""
    killed = 0
    while True:
        api, s3 = TenantApi(rack("rack-1"), rack("rack-2")), FakeS3(time)
        foreign = strange(api)
        inhabit(api)
        left = killed

        def guard() -> None:
            nonlocal left
            if left == 0:
                raise LeaseLost("the driver is killed")
            left -= 1

        try:
            end(tenant(api, s3, spec, time, guard=guard), NOTHING_LAUNCHED)
        except LeaseLost:
            end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
            assert api.objects == foreign
            killed += 1
            continue
        finally:
            api.stop()
        break
    assert killed > 10


def test_a_right_that_is_missing_names_the_grant(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> None:
    inhabit(api)
    api.denied = {("delete", "jobsets")}
    with pytest.raises(PermanentError, match="does not let the campaign delete jobsets") as raised:
        end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert "bivouac grant" in str(raised.value.cure)


def test_each_kind_that_a_right_lets_somebody_make_is_looked_for(standing: Standing) -> None:
    """The oracle is the grant: who may create a kind may have created it."""
    for changes in ({}, {"cluster.queue": "team-a"}):
        spec = standing(changes).spec
        assert spec.cluster is not None
        makeable = {
            ".".join(filter(None, [resource, right.group]))
            for right in (*granted.driver_rights(spec.cluster, True), *granted.steward_rights(True))
            if "create" in right.verbs
            for resource in right.resources
        }
        words = {kind.word for kind in own_kinds(spec, spec.cluster)}
        assert makeable - words == {"mpijobs.kubeflow.org"}  # which only a job by mpirun makes
        assert ("workloads.kueue.x-k8s.io" in words) == bool(changes)


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("on-racks-a1", True), ("on-racks-a12", True), ("on-racks-judge2", True), ("on-racks-check", True),
        ("on-racks-preflight-19abc", True), ("on-racks-2-a1", False), ("racks-preflight-19abc", False),
        ("on-racks-a1-a1", False), ("on-racks", False), ("on-racks-apple", False),
    ],
)  # fmt: skip
def test_a_gangs_name_is_the_campaigns_only_as_a_whole(name: str, is_ours: bool) -> None:
    assert is_gang(name, CAMPAIGN) == is_ours


def test_the_name_of_a_health_check_may_be_cut_at_its_front() -> None:
    long = "a-campaign-with-a-name-that-is-very-long-indeed"
    name = f"{long}-preflight-19abcdef0123"[-45:]
    assert is_gang(name, long) and not is_gang(name[1:], long)
