"""The look at an existing cluster after the end: what is found, what nobody could see, what is given back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.errors import NotProven
from infra.inventory.certify import Certificate, refuse_unclean
from infra.record.events import CampaignState, Stage
from infra.record.payloads.attempts import NodeQuarantined
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.record.payloads.training import ArchiveVerified
from infra.spec.campaign import Spec
from infra.standing.belongings import own_kinds
from infra.standing.certificate import certify, look
from infra.standing.ending import end
from tests.unit.standing.conftest import Standing
from tests.unit.standing.test_tenant_end import inhabit, owned, strange
from tests.worlds.s3 import FakeS3, Time, refusal
from tests.worlds.tenant import BUCKET, CAMPAIGN, SPACE, TenantApi, own, rack, tenant

IDENTITY = "20261127T000000Z-0badcafe"
RECORD = f"bivouac/campaigns/{CAMPAIGN}"
NOTHING_LAUNCHED = CampaignState(begun_with=Stage.CHECK)
ARCHIVED = NOTHING_LAUNCHED.model_copy(
    update={"archive": ArchiveVerified(step=20, manifest=f"s3://{BUCKET}/{RECORD}/{IDENTITY}/manifest.json")}
)


@pytest.fixture
def api() -> Iterator[TenantApi]:
    tenant_api = TenantApi(rack("rack-1"), rack("rack-2"), rack("other", labels={"gpu": "a100"}))
    quota = {"hard": {"pods": "18", "requests.nvidia.com/gpu": "32"}, "used": {"pods": "1"}}
    tenant_api.add("v1", "resourcequotas", {"metadata": {"name": "bivouac", "uid": "q"}, "status": quota})
    yield tenant_api
    tenant_api.stop()


@pytest.fixture
def spec(standing: Standing) -> Spec:
    return standing().spec


@pytest.fixture
def seen(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> Callable[..., Certificate]:
    def one_look(state: CampaignState = NOTHING_LAUNCHED, **unreached: str) -> Certificate:
        return look(tenant(api, s3, spec, time), state, IDENTITY, unreached, "ada")

    return one_look


def test_a_campaign_that_ended_beside_others_is_clean(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time, seen: Callable[..., Certificate]
) -> None:
    strange(api)
    inhabit(api)
    end(tenant(api, s3, spec, time), NOTHING_LAUNCHED)
    certificate = seen()
    assert certificate.clean and certificate.suspects == ()
    refuse_unclean(certificate)
    by_kind = {row.kind: row.listed for row in certificate.looks}
    # What others have was seen, and is not ours.
    assert by_kind["configmaps"] == 2 and by_kind["pods"] == 1 and by_kind["nodes"] == 2
    assert set(certificate.borrowed) >= {
        "node rack-1: Ready; no pod of ours on it", "claim scratch: Bound",
        "claim local: it is not there any more",
        "quota bivouac: 1 of 18 pods, ? of 32 requests.nvidia.com/gpu in use",
    }  # fmt: skip


def test_claims_of_devices_that_no_right_shows_are_named_to_a_person(
    api: TenantApi, s3: FakeS3, standing: Standing, time: Time
) -> None:
    spec = standing({"cluster.fabric": {"claim_template": "two-vfs"}}).spec
    (words,) = look(tenant(api, s3, spec, time), NOTHING_LAUNCHED, IDENTITY, {}, "ada").suspects
    assert words.startswith(f"resourceclaims {CAMPAIGN}-* of resource.k8s.io, which go with their pods")
    assert f"kubectl -n {SPACE} get resourceclaims" in words


def test_each_object_that_is_left_is_found_with_its_evidence(api: TenantApi, seen: Callable[..., Certificate]) -> None:
    inhabit(api)
    certificate = seen()
    assert not certificate.clean
    assert set(certificate.found) == {
        "deployments.apps steward", "replicasets.apps steward-77", f"jobsets.jobset.x-k8s.io {CAMPAIGN}-a2",
        "jobs.batch archive", f"jobs.batch {CAMPAIGN}-a2-gang-0", f"services {CAMPAIGN}-a2",
        "pods steward-77-x", "pods gang-0", "pods gang-1", "pods archive-0",
        "configmaps steward", "configmaps steward-holder", "configmaps preflight", f"configmaps {CAMPAIGN}-a2",
    }  # fmt: skip
    evidence = {row.kind: row.evidence for row in certificate.looks}
    assert evidence["services"] == (f"its owner JobSet {CAMPAIGN}-a2",)
    assert evidence["replicasets.apps"] == ("the label of its pods",)
    assert "node rack-1: Ready; left on it: pods gang-0, pods archive-0" in certificate.borrowed


def test_an_orphan_of_a_gang_is_found_though_its_owner_is_gone(
    api: TenantApi, seen: Callable[..., Certificate]
) -> None:
    api.add("v1", "services", owned(f"{CAMPAIGN}-a2", own(f"{CAMPAIGN}-a2"), "JobSet"))
    assert seen().found == (f"services {CAMPAIGN}-a2",)


@pytest.mark.parametrize("plural", ["deployments", "services", "pods", "nodes", "resourcequotas", "configmaps"])
def test_a_kind_that_nobody_may_list_is_not_gone(plural: str, api: TenantApi, seen: Callable[..., Certificate]) -> None:
    assert seen().clean
    api.denied = {("list", plural)}
    certificate = seen()
    assert not certificate.clean and certificate.found == ()
    assert any(plural in words and "forbidden" in words for words in certificate.blind)
    with pytest.raises(NotProven, match=f"could not look: {plural}.*forbidden"):
        refuse_unclean(certificate)
    if plural == "pods":
        assert "node rack-1: Ready; nobody could look for pods of ours on it" in certificate.borrowed


def test_every_kind_blinds_for_itself(api: TenantApi, spec: Spec, seen: Callable[..., Certificate]) -> None:
    assert spec.cluster is not None
    words = [kind.word for kind in own_kinds(spec, spec.cluster)]
    api.denied = {("list", word.partition(".")[0]) for word in words}
    assert len(set(words) & {row.kind for row in seen().looks if row.could_not_look}) == len(words)


def test_a_dead_node_keeps_what_was_deleted_and_is_told_by_name(
    api: TenantApi, s3: FakeS3, spec: Spec, time: Time
) -> None:
    inhabit(api)
    api.racks["rack-2"] = rack("rack-2", "Unknown")
    campaign = tenant(api, s3, spec, time)
    campaign.store.append(NodeQuarantined(node="rack-2", reason="dead: silent"))
    ended = end(campaign, NOTHING_LAUNCHED)
    certificate = certify(campaign, NOTHING_LAUNCHED, IDENTITY, ended.unreached, "ada")
    assert certificate.clean
    (words,) = (words for words in certificate.borrowed if words.startswith("node rack-2"))
    assert words == (
        "node rack-2: not Ready (NodeStatusUnknown); left on it until it is back or removed: pods gang-1 (deleted); "
        f"our folder /var/lib/bivouac/{SPACE}/{CAMPAIGN} was not reached: not Ready (NodeStatusUnknown); "
        "left out by us: dead: silent"
    )


@pytest.mark.parametrize("change", ["not deleted", "node lives", "no such node"])
def test_only_a_deleted_pod_on_a_node_that_is_there_and_dead_is_excused(
    change: str, api: TenantApi, seen: Callable[..., Certificate]
) -> None:
    lost = own("lost", spec={"nodeName": "rack-2", "containers": []})
    lost["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    api.add("v1", "pods", lost)
    api.racks["rack-2"] = rack("rack-2", "Unknown")
    assert seen().clean
    if change == "not deleted":
        del lost["metadata"]["deletionTimestamp"]
    elif change == "node lives":
        api.racks["rack-2"] = rack("rack-2")
    else:
        del api.racks["rack-2"]
    assert seen().found == ("pods lost",)


def test_record_and_archive_are_kept_and_copies_for_people_are_left(
    s3: FakeS3, seen: Callable[..., Certificate]
) -> None:
    for key in ("spec.json", f"{IDENTITY}/manifest.json", f"{IDENTITY}/model"):
        s3.put_object(Bucket=BUCKET, Key=f"{RECORD}/{key}", Body=b"x")
    certificate = seen(ARCHIVED)
    assert certificate.clean
    assert certificate.kept == (
        f"s3://{BUCKET}/{RECORD}/{IDENTITY}/manifest.json (golden checkpoint of step 20)",
        f"s3://{BUCKET}/{RECORD}/{IDENTITY}/ (2 objects of the archive)",
        f"s3://{BUCKET}/{RECORD}/ (record and what lies below it, 3 objects)",
    )
    s3.put_object(Bucket=BUCKET, Key=f"{RECORD}/carried/step-00000020/shard", Body=b"x")
    assert seen(ARCHIVED).found == (f"s3://{BUCKET}/{RECORD}/carried/ 1 objects",)


def test_data_and_names_of_images_are_kept_as_on_aws(s3: FakeS3, seen: Callable[..., Certificate]) -> None:
    s3.put_object(Bucket=BUCKET, Key="bivouac/datasets/d1/shard", Body=b"x")
    stages = {
        Stage.PROVISION: ProvisionOutput(data_digest="d1"),
        Stage.BAKE: BakeOutput(manifest="bivouac/images/c.json"),
    }
    rows = {
        f"s3://{BUCKET}/bivouac/datasets/d1/ (prepared data, 1 objects)",
        f"s3://{BUCKET}/bivouac/images/c.json (names of the images)",
    }
    assert rows <= set(seen(NOTHING_LAUNCHED.model_copy(update={"finished_stages": stages})).kept)
    assert not rows & set(seen().kept)


def test_copies_are_kept_until_an_archive_makes_them_needless(s3: FakeS3, seen: Callable[..., Certificate]) -> None:
    s3.put_object(Bucket=BUCKET, Key=f"bivouac/copies/{CAMPAIGN}/{IDENTITY}/step-00000010/shard", Body=b"x")
    s3.put_object(Bucket=BUCKET, Key=f"bivouac/copies/{CAMPAIGN}-2/{IDENTITY}/step-00000010/shard", Body=b"x")
    unarchived = seen()
    assert unarchived.clean and "1 objects of interval copies; the campaign has no archive" in str(unarchived.kept)
    s3.put_object(Bucket=BUCKET, Key=f"bivouac/campaigns/{CAMPAIGN}/{IDENTITY}/golden/shard", Body=b"x")
    assert seen(ARCHIVED).found == (f"s3://{BUCKET}/bivouac/copies/{CAMPAIGN}/{IDENTITY}/ 1 objects",)


def test_an_archive_of_which_s3_has_nothing_is_not_kept(seen: Callable[..., Certificate]) -> None:
    (row,) = seen(ARCHIVED).found
    assert row.startswith(f"s3://{BUCKET}/bivouac/campaigns/{CAMPAIGN}/{IDENTITY}/ nothing")


def test_a_bucket_that_does_not_answer_is_no_empty_one(s3: FakeS3, seen: Callable[..., Certificate]) -> None:
    s3.away = refusal("AccessDenied", 403, "ListObjectsV2")
    certificate = seen(ARCHIVED)
    assert not certificate.clean
    assert sum("AccessDenied" in words for words in certificate.blind) >= 4


def test_what_the_controllers_remove_later_is_waited_for(api: TenantApi, s3: FakeS3, spec: Spec, time: Time) -> None:
    api.add("v1", "configmaps", own("late"))
    said: list[str] = []

    def pause() -> None:
        time.go(10)
        if len(said) == 2:
            api.objects.pop(("v1", "configmaps", SPACE, "late"), None)

    campaign = tenant(api, s3, spec, time, pause=pause, say=said.append)
    assert certify(campaign, NOTHING_LAUNCHED, IDENTITY, {}, "ada").clean
    assert said == ["not clean yet: configmaps late"] * 2
    api.add("v1", "configmaps", own("for-ever"))
    said.extend(["", ""])
    assert certify(campaign, NOTHING_LAUNCHED, IDENTITY, {}, "ada").found == ("configmaps for-ever",)


def test_a_look_changes_nothing(api: TenantApi, s3: FakeS3, seen: Callable[..., Certificate]) -> None:
    inhabit(api)
    objects: dict[Any, Any] = copy.deepcopy(api.objects)
    keys = dict(s3.objects)
    seen(ARCHIVED)
    assert (api.objects, s3.objects, api.calls) == (objects, keys, [])
