"""The driver's stages in an existing cluster: who it is there, images, data, health check, launch that fails."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError

from infra import target
from infra.campaign import launch, stages
from infra.cluster.gang import ATTEMPT_LABEL
from infra.cluster.standing import connection
from infra.cluster.standing.connection import StandingAccount, open_account
from infra.errors import PermanentError, UserError
from infra.notices import ways
from infra.record import borrowing
from infra.record.payloads.attempts import NodeQuarantined
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec
from infra.spec.standing import StandingS3
from infra.standing import health, images, opening
from infra.standing import stages as standing_stages
from tests.unit.standing.conftest import Standing
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.tenant import BUCKET, SPACE, TenantApi, own, rack

LOGIN = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_the_stages_are_those_of_aws_in_the_same_order(standing: Standing) -> None:
    assert [step.stage for step in standing_stages.STEPS] == [step.stage for step in stages.STEPS]
    spec = standing().spec
    assert spec is not None and target.steps(spec) is standing_stages.STEPS


def test_no_service_but_s3_can_be_asked_and_s3_is_the_specs(tmp_path: Path) -> None:
    place = StandingS3(bucket=BUCKET, secret="s3-login", endpoint="https://minio.example.org:9000")
    account = StandingAccount(place, LOGIN)
    s3 = account.client("s3")
    assert s3.meta.endpoint_url == "https://minio.example.org:9000"
    assert s3.meta.config.s3["addressing_style"] == "path"
    url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "a"})
    assert url.startswith(f"https://minio.example.org:9000/{BUCKET}/a?") and "AKIA" in url
    for service in ("sts", "ec2", "sns"):
        with pytest.raises(PermanentError, match="AWS was to be asked"):
            account.client(service)


def test_a_login_that_is_not_whole_and_a_ca_that_is_not_there_are_told(tmp_path: Path) -> None:
    place = StandingS3(bucket=BUCKET, secret="s3-login", ca=str(tmp_path / "none.pem"))
    with pytest.raises(UserError, match="AWS_SECRET_ACCESS_KEY"):
        StandingAccount(place, {"AWS_ACCESS_KEY_ID": "a"})
    with pytest.raises(UserError, match=r"cluster\.s3\.ca"):
        StandingAccount(place, LOGIN)


def test_the_driver_is_whom_the_cluster_knows_with_the_secrets_login(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, spec = TenantApi(), standing().spec
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in LOGIN.items()}
    api.add("v1", "secrets", {"metadata": {"name": "s3-login", "namespace": SPACE}, "data": encoded})
    monkeypatch.setattr(connection, "connect", lambda cluster: api.client())
    monkeypatch.setattr(connection, "user_of", lambda client, cluster: "ada")
    assert spec is not None
    account, user = open_account(spec)
    assert user == "ada" and account.client("s3").meta.endpoint_url == "https://minio.example.org"
    api.denied.add(("get", "secrets"))
    with pytest.raises(UserError, match="the login to S3 cannot be read"):
        open_account(spec)


def test_people_are_told_by_the_webhook_of_the_logins_secret_alone(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, spec, posted = TenantApi(), standing().spec, list[str]()
    assert spec is not None
    monkeypatch.setenv("NOTIFY_WEBHOOK", "https://strangers.example.org")
    content = {**LOGIN, "NOTIFY_WEBHOOK": "https://hooks.example.org/T0\n"}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in content.items()}
    api.add("v1", "secrets", {"metadata": {"name": "s3-login", "namespace": SPACE}, "data": encoded})
    monkeypatch.setattr(connection, "connect", lambda cluster: api.client())
    monkeypatch.setattr(connection, "user_of", lambda client, cluster: "ada")
    account, _ = open_account(spec)
    monkeypatch.setattr(ways, "post", lambda address, notice: posted.append(address))
    (way,) = ways.ways(spec, None, account.webhook).values()
    way(SimpleNamespace())  # type: ignore[arg-type]
    assert posted == ["https://hooks.example.org/T0"]
    assert ways.ways(spec) == {} and ways.way_names(spec) == ()


def store_of(spec: Spec, s3: FakeS3) -> CampaignStore:
    return CampaignStore(s3, BUCKET, spec.campaign, "driver", f"bivouac/campaigns/{spec.campaign}")


def test_images_are_the_specs_and_the_record_has_their_manifest(standing: Standing) -> None:
    spec, s3 = standing().spec, FakeS3(Time())
    assert spec is not None
    store = store_of(spec, s3)
    context: Any = SimpleNamespace(spec=spec, store=store, guard=lambda: None, progress=SilentProgress())
    baked = images.run(context)
    assert (baked.image, baked.steward_image) == (spec.image.base, spec.image.steward_base)
    assert baked.manifest == f"bivouac/images/{baked.code}.json" and spec.image.base.endswith(baked.code)
    content = store.get(baked.manifest)
    assert content is not None and json.loads(content)["image"] == baked.image


def test_a_node_is_judged_without_what_only_awss_nodes_have(standing: Standing) -> None:
    spec = standing().spec
    assert spec is not None and spec.cluster is not None
    expectation = health.expectation_of(spec, spec.cluster, "https://minio.example.org")
    assert (expectation.accelerators, expectation.efa_devices) == (8, 0) and "efa" not in expectation.versions
    assert expectation.gpudirect and expectation.rdma and expectation.time_source == "https://minio.example.org"
    spec = standing({"cluster.nodes.devices": {"nvidia.com/gpu": 8}, "cluster.s3.ca": "/etc/ca.pem"}).spec
    assert spec is not None and spec.cluster is not None
    expectation = health.expectation_of(spec, spec.cluster, "https://minio.example.org")
    assert not expectation.gpudirect and not expectation.rdma and expectation.time_source is None
    assert (expectation.adapters, expectation.one_leaf) == (0, False)
    spec = standing({"cluster.fabric": {"adapters": 8, "one_leaf": True}}).spec
    assert spec is not None and spec.cluster is not None
    expectation = health.expectation_of(spec, spec.cluster, "https://minio.example.org")
    assert (expectation.adapters, expectation.one_leaf) == (8, True)


def test_a_node_that_the_health_check_leaves_out_is_recorded_once_for_later_drivers(
    standing: Standing,
) -> None:
    spec, api = standing().spec, TenantApi(rack("rack-1"), rack("rack-2"))
    assert spec is not None and spec.cluster is not None
    store = store_of(spec, FakeS3(Time()))
    context: Any = SimpleNamespace(spec=spec, store=store, guard=lambda: None)
    nodes = health.JudgedNodes(api.client(), spec.cluster, context)
    nodes.quarantine("rack-1", "unfit")
    nodes.quarantine("rack-1", "unfit")
    (event,) = store.events()
    assert isinstance(event.payload, NodeQuarantined) and (event.payload.node, event.payload.died) == ("rack-1", False)
    again = health.JudgedNodes(api.client(), spec.cluster, context)
    assert again.left_out == ("rack-1",) and [node.quarantined for node in again.facts()] == [True, False]


def test_a_silent_steward_costs_its_gang_and_no_node(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, api = standing().spec, TenantApi(rack("rack-1"))
    assert spec is not None
    api.add("apps/v1", "deployments", own("steward", labels={"app": "steward"}))
    gang = own("on-racks-a1", labels={ATTEMPT_LABEL: "1"})
    api.add("jobset.x-k8s.io/v1alpha2", "jobsets", gang)
    store = store_of(spec, FakeS3(Time()))
    context: Any = SimpleNamespace(
        spec=spec, store=store, guard=lambda: None, progress=SilentProgress(), cluster_client=api.client,
        turns=lambda seconds, interval=0.5: range(2), enters_cluster=True,
    )  # fmt: skip
    with pytest.raises(PermanentError, match="its gang is ended"):
        opening.BorrowedStewardWatch(context).give_up()
    assert [call for call in api.calls if call[0] == "delete"] == [
        ("delete", "deployments", "steward"), ("delete", "jobsets", "on-racks-a1"),
    ]  # fmt: skip


def test_a_launch_that_fails_leaves_the_nodes_to_who_lent_them() -> None:
    left = opening._nodes_stay(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    assert isinstance(left, launch.NodesLeft) and "borrowed" in left.words


def test_this_machine_knows_its_campaigns_in_existing_clusters(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    spec = standing().spec
    assert spec is not None and borrowing.recall("on-racks") is None and borrowing.remembered() == []
    borrowing.remember(spec)
    assert borrowing.recall("on-racks") == spec and borrowing.remembered() == ["on-racks"]
    next(tmp_path.rglob("on-racks.json")).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        borrowing.recall("on-racks")


def test_an_unknown_login_is_told_with_its_cure(standing: Standing) -> None:
    spec = standing().spec
    assert spec is not None and spec.cluster is not None

    def create(review: Any) -> Any:
        body = {"message": "Unauthorized", "code": 401, "status": "Failure"}
        response = SimpleNamespace(json=lambda: body, status_code=401)
        raise ApiError(request=None, response=response)  # type: ignore[arg-type]

    client: Any = SimpleNamespace(create=create)
    with pytest.raises(UserError, match="does not know this login"):
        connection.user_of(client, spec.cluster)
