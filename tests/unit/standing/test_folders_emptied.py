"""The campaign's folders on nodes and on the claim are emptied by Jobs, whatever becomes of a node meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from infra.errors import LeaseLost, PermanentError
from infra.record.payloads.attempts import AttemptRunning, NodeQuarantined
from infra.spec.campaign import Spec
from infra.standing.belongings import Tenant
from infra.standing.ending import end
from infra.standing.folders import local_place
from tests.unit.standing.conftest import Standing
from tests.unit.standing.test_tenant_end import NOTHING_LAUNCHED
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.tenant import CAMPAIGN, SPACE, TenantApi, own, rack, tenant


def test_each_node_and_the_claim_are_emptied_by_a_job_within_the_tenants_folder(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    paths = (f"/place/{CAMPAIGN}", "/place/.archive")
    assert sorted(api.emptied) == sorted([
        (f"scratch:bivouac/{SPACE}", (f"/place/{CAMPAIGN}",), ""),
        *((f"local:{SPACE}", paths, name) for name in ("rack-1", "rack-2", "rack-3")),
    ])  # fmt: skip
    assert not [key for key in api.objects if key[1] == "jobs"]


def test_a_job_for_folders_has_no_login_no_token_and_no_device(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    jobs: list[dict[str, Any]] = []
    api.created = jobs.append
    campaign = tenant(api, s3, spec, time, pause=lambda: (_ for _ in ()).throw(LeaseLost("enough")))
    with pytest.raises(LeaseLost):
        end(campaign, NOTHING_LAUNCHED)
    assert jobs
    for job in jobs:
        pod_spec = job["spec"]["template"]["spec"]
        (container,) = pod_spec["containers"]
        assert "envFrom" not in container and "resources" not in container
        assert pod_spec["automountServiceAccountToken"] is False
        # The cluster's quota, and Kubernetes' own eviction, end a pod on a dead node.
        waits = [row for row in pod_spec["tolerations"] if row["key"] == "node.kubernetes.io/unreachable"]
        assert [row["tolerationSeconds"] for row in waits] == [60]


def test_nodes_of_the_record_are_emptied_though_their_label_is_gone(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    campaign = tenant(api, s3, spec, time)
    campaign.store.append(AttemptRunning(attempt=1, nodes=("other",)))
    campaign.store.append(NodeQuarantined(node="removed", reason="dead"))
    ended = end(campaign, NOTHING_LAUNCHED)
    assert "other" in {node for *_, node in api.emptied}
    assert ended.unreached == {"removed": "the cluster has no such node any more"}


def test_a_place_that_is_not_emptied_is_an_error_once_the_others_are(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    api.failing = {"rack-2": "rm: cannot remove '/place/on-racks': Read-only file system"}
    ran_on(tenant(api, s3, spec, time), "rack-2")
    with pytest.raises(PermanentError, match="node rack-2: rm: cannot remove"):
        end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert {node for *_, node in api.emptied} == {"", "rack-1", "rack-3"}
    api.failing = {}
    end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert not [key for key in api.objects if key[1] in ("jobs", "pods")]


def ran_on(campaign: Tenant, node: str) -> None:
    """The record says that an attempt ran there."""
    campaign.store.append(AttemptRunning(attempt=1, nodes=(node,)))


def test_a_node_that_no_attempt_had_holds_nothing_up(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> None:
    api.failing = {"rack-2": "the image cannot be pulled"}
    ended = end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert ended.unreached == {"rack-2": "no attempt ran there; the image cannot be pulled"}


def test_a_job_whose_node_dies_is_no_failure(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> None:
    api.failing = {"rack-2": "no word"}
    whole = api.created

    def die(document: dict[str, Any]) -> None:
        whole(document)
        if document.get("kind") == "Job" and not document["status"].get("succeeded"):
            api.racks["rack-2"] = rack("rack-2", "Unknown")

    api.created = die
    ended = end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert ended.unreached == {"rack-2": "not Ready (NodeStatusUnknown)"}


def died(campaign: Tenant, node: str) -> None:
    campaign.store.append(NodeQuarantined(node=node, instance=node, reason="its peer failed", died=True))


def test_no_job_goes_to_a_dead_node_that_kubernetes_still_calls_ready(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    api.racks["rack-2"] = rack("rack-2", since="2020-01-01T00:00:00Z")
    begun = time()

    def pause() -> None:
        time.go(10)
        if time() - begun >= 50:
            api.racks["rack-2"] = rack("rack-2", "Unknown", since="2099-01-01T00:00:00Z")

    campaign = tenant(api, s3, spec, time, pause=pause)
    died(campaign, "rack-2")
    ended = end(campaign, NOTHING_LAUNCHED)
    assert ended.unreached == {"rack-2": "not Ready (NodeStatusUnknown)"}
    jobs = {name for verb, plural, name in api.calls if (verb, plural) == ("create", "jobs")}
    assert local_place(campaign, "rack-1").job in jobs and local_place(campaign, "rack-2").job not in jobs


@pytest.mark.parametrize(("since", "waited_s"), [("2020-01-01T00:00:00Z", 130), ("2099-01-01T00:00:00Z", 0)])
def test_a_node_that_was_called_dead_and_lives_is_emptied(
    since: str, waited_s: int, api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    """Kubernetes may never have missed it, or it is back."""
    api.racks["rack-2"] = rack("rack-2", since=since)
    waits: list[float] = []

    def pause() -> None:
        if not api.emptied:
            waits.append(10)
        time.go(10)

    campaign = tenant(api, s3, spec, time, pause=pause)
    died(campaign, "rack-2")
    assert end(campaign, NOTHING_LAUNCHED).unreached == {}
    assert "rack-2" in {node for *_, node in api.emptied} and sum(waits) == waited_s


def test_a_job_that_does_not_start_is_an_error_while_its_node_lives_and_no_word_after(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    api.pending = {"rack-2"}
    ran_on(tenant(api, s3, spec, time), "rack-2")
    begun = time()
    with pytest.raises(PermanentError, match="node rack-2: its Job has no pod"):
        end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    assert time() - begun > 600

    def pause() -> None:
        time.go(10)
        api.racks["rack-2"] = rack("rack-2", "Unknown")

    ended = end(tenant(api, s3, spec, time, pause=pause), NOTHING_LAUNCHED)
    assert ended.unreached == {"rack-2": "not Ready (NodeStatusUnknown)"}
    assert not [key for key in api.objects if key[1] == "jobs"]


def test_a_job_of_somebody_elses_under_that_name_is_left_and_proves_nothing(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    campaign = tenant(api, s3, spec, time)
    name = local_place(campaign, "rack-2").job
    theirs = own(name, "other", status={"succeeded": 1})
    api.add("batch/v1", "jobs", theirs)
    with pytest.raises(PermanentError, match=f"Job {name} stands there and is somebody else's"):
        end(campaign, NOTHING_LAUNCHED)
    assert api.objects["batch/v1", "jobs", SPACE, name] == own(name, "other", status={"succeeded": 1})
    assert "rack-2" not in {node for *_, node in api.emptied}


def test_the_claim_of_the_campaigns_own_goes_and_no_job_empties_it(
    api: TenantApi, s3: FakeS3, standing: Standing, time: Time
) -> None:
    made = {"claim": None, "storage_class": "lustre", "capacity_gib": 102400, "write_mb_s": 20000}
    api.add("v1", "persistentvolumeclaims", own(f"bivouac-{CAMPAIGN}"), {"metadata": {"name": "scratch", "uid": "c"}})
    end(tenant(api, s3, standing({"cluster.shared": made}).spec, time), NOTHING_LAUNCHED)
    assert [key[3] for key in api.objects if key[1] == "persistentvolumeclaims"] == ["scratch"]
    assert all(node for *_, node in api.emptied)
