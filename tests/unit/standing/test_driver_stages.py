"""The driver's stages in an existing cluster: who it is there, images, data, health check, launch that fails."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError

from infra import target
from infra.campaign import launch, stages
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.standing import connection
from infra.cluster.standing.connection import StandingAccount, open_account
from infra.cluster.standing.placing import placed
from infra.errors import PermanentError, UserError
from infra.notices import ways
from infra.record import borrowing
from infra.record.payloads.attempts import NodeQuarantined
from infra.record.payloads.outputs import BakeOutput
from infra.record.store import CampaignStore
from infra.spec.campaign import Spec, SpecFile
from infra.spec.standing import StandingS3
from infra.standing import bring, data, health, images, opening, tenancy
from infra.standing import stages as standing_stages
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.tenant import BUCKET, SPACE, TenantApi, own, rack

LOGIN = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
Standing = Callable[..., SpecFile]


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


def file_of(content: bytes, name: str = "a.bin") -> bring.DataFile:
    return bring.DataFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class Bucket:
    def __init__(self, *files: bring.DataFile, **objects: bytes) -> None:
        self.objects, self.asked = objects, list[str]()
        self.listing = bring.Listing(files=files).model_dump_json().encode()

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        assert Key == CONFIG.listing
        return {"Body": io.BytesIO(self.listing)}

    def download_file(self, bucket: str, key: str, path: str) -> None:
        self.asked.append(key)
        Path(path).write_bytes(self.objects[key.rpartition("/")[2].partition(".")[0]])


CONFIG = bring.BringConfig(region="r", bucket=BUCKET, prefix="bivouac/datasets/d/", listing="record/data-files.json")


def test_data_is_brought_once_and_what_is_damaged_again(tmp_path: Path) -> None:
    bucket = Bucket(file_of(b"tokens"), file_of(b"more", "init/b.bin"), a=b"tokens", b=b"more")
    assert bring.bring(CONFIG, bucket, tmp_path)["bytes"] == 10
    assert (tmp_path / "init" / "b.bin").read_bytes() == b"more"
    assert sorted(bucket.asked) == ["bivouac/datasets/d/a.bin", "bivouac/datasets/d/init/b.bin"]
    (tmp_path / "a.bin").write_bytes(b"t0kens")
    assert bring.bring(CONFIG, bucket, tmp_path)["bytes"] == 6
    assert (tmp_path / "a.bin").read_bytes() == b"tokens" and len(bucket.asked) == 3


def test_data_that_is_not_what_was_sent_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="is not what was sent"):
        bring.bring(CONFIG, Bucket(file_of(b"tokens"), a=b"altered"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_file_of_the_folder_is_listed_with_its_digest(standing: Standing, tmp_path: Path) -> None:
    spec = standing().spec
    assert spec is not None
    folder = tmp_path / "prepared"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(b"{}")
    (folder / ".lock").touch()
    made: Any = SimpleNamespace(folder=folder)
    assert data.listed(spec, made) == (file_of(b"{}", "manifest.json"),)


def test_the_datas_job_writes_to_its_own_folder_of_the_claim_alone(standing: Standing) -> None:
    spec = standing({"cluster.s3": {"bucket": BUCKET, "secret": "s3-login", "ca": "/etc/ca.pem"}}).spec
    assert spec is not None
    job = placed(data.data_job(spec, "steward@sha256:0"), spec.cluster)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert set(mounts) == {"/config", "/data", "/s3-ca"} and not mounts["/data"].get("readOnly")
    assert mounts["/data"]["subPath"] == "bivouac/team-a/on-racks/data" and mounts["/s3-ca"]["readOnly"]
    assert {"name": "AWS_CA_BUNDLE", "value": "/s3-ca/ca.pem"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-login"}}] and "resources" not in container
    assert {volume["name"] for volume in pod["volumes"]} == {"config", "shared", "s3-ca"}
    assert pod["nodeSelector"] == {"gpu": "h100"} and job["metadata"]["namespace"] == SPACE


class DataApi(TenantApi):
    """Runs the data's Job at once: to an end with this word, or not at all."""

    word: str | None = None

    def _created(self, document: dict[str, Any]) -> None:
        if document.get("kind") != "Job":
            return
        document["status"] = {} if self.word is None else {"succeeded": 1}
        ended = {"exitCode": 0, "message": self.word or ""}
        row = {"name": "data", "image": "", "imageID": "", "ready": False, "restartCount": 0,
               "state": {"terminated": ended} if self.word else {"waiting": {"reason": "ErrImagePull"}}}  # fmt: skip
        status = {"phase": "Succeeded" if self.word else "Pending", "containerStatuses": [row]}
        labels = document["metadata"]["labels"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "data", "uid": "uid-data"}
        document["metadata"]["uid"] = "uid-data"
        self.add("v1", "pods", {
            "metadata": {"name": "data-0", "namespace": SPACE, "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": []}, "status": status,
        })  # fmt: skip


def data_context(spec: Spec, turns: int = 3) -> Any:
    outputs = {BakeOutput.stage: BakeOutput(image="i", steward_image="s@sha256:0")}
    return SimpleNamespace(
        spec=spec, outputs=outputs, guard=lambda: None, progress=SilentProgress(),
        turns=lambda seconds, interval=0.5: range(turns), store=store_of(spec, FakeS3(Time())),
        deadline=datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip


def test_the_datas_job_is_run_to_its_end_and_removed(standing: Standing) -> None:
    api, spec = DataApi(), standing().spec
    assert spec is not None and spec.cluster is not None
    api.word = '{"files": 1, "bytes": 6}'
    summary = data._bring(data_context(spec), api.client(), spec.cluster, CONFIG)
    assert summary == {"files": 1, "bytes": 6}
    assert [call[:2] for call in api.calls if call[1] == "jobs"][-1] == ("delete", "jobs")
    config = api.objects["v1", "configmaps", SPACE, "data"]
    assert config["metadata"]["labels"] == {CAMPAIGN_LABEL: "on-racks"}
    assert json.loads(config["data"]["bring.json"])["listing"] == CONFIG.listing


def test_a_pod_of_the_data_that_does_not_start_is_told_with_its_reason(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, spec, time = DataApi(), standing().spec, Time()
    assert spec is not None and spec.cluster is not None
    monkeypatch.setattr(data.time, "monotonic", lambda: time.go(60) or time())
    with pytest.raises(PermanentError, match="ErrImagePull"):
        data._bring(data_context(spec), api.client(), spec.cluster, CONFIG)


def test_a_job_of_the_data_that_somebody_removes_ends_the_stage(standing: Standing) -> None:
    api, spec = DataApi(), standing().spec
    assert spec is not None and spec.cluster is not None

    def remove(document: dict[str, Any]) -> None:
        api.objects.pop(("batch/v1", "jobs", SPACE, "data"), None)

    api.created = remove
    with pytest.raises(PermanentError, match="was removed"):
        data._bring(data_context(spec), api.client(), spec.cluster, CONFIG)


def test_others_objects_under_our_names_end_the_stage_before_anything_is_removed(standing: Standing) -> None:
    api, spec = TenantApi(rack("rack-1")), standing().spec
    assert spec is not None and spec.cluster is not None
    api.add(
        "apps/v1",
        "deployments",
        own("steward", "theirs", labels={"app": "steward"}, spec={"selector": {}, "template": {}}),
    )
    with pytest.raises(UserError, match="Deployment steward of campaign theirs"):
        tenancy.refuse_held(api.client(), spec, spec.cluster)
    assert api.calls == []


def test_new_code_of_a_relaunch_comes_beside_the_first(standing: Standing, tmp_path: Path) -> None:
    api, spec, sent = DataApi(), standing().spec, list[str]()
    assert spec is not None
    api.word = '{"files": 1, "bytes": 4}'
    (tmp_path / "source-2.tar").write_bytes(b"code")
    context = data_context(spec)
    s3 = SimpleNamespace(upload_file=lambda path, bucket, key: sent.append(key))
    context.account, context.buckets = SimpleNamespace(client=lambda service: s3), spec.buckets
    context.cluster_client = api.client
    data.lay(context, [tmp_path / "source-2.tar"], "d1")
    assert sent == ["bivouac/datasets/d1/source-2.tar"]
    told = json.loads(api.objects["v1", "configmaps", SPACE, "data"]["data"]["bring.json"])
    listing = json.loads(context.store.get(told["listing"]))
    assert [file["name"] for file in listing["files"]] == ["source-2.tar"]
    assert target.renewal(spec) is standing_stages.RENEWAL


def test_a_node_is_judged_without_what_only_awss_nodes_have(standing: Standing) -> None:
    spec = standing().spec
    assert spec is not None and spec.cluster is not None
    wanted = health.expectation_of(spec, spec.cluster, "https://minio.example.org")
    assert (wanted.accelerators, wanted.efa_devices) == (8, 0) and "efa" not in wanted.versions
    assert wanted.gpudirect and wanted.rdma and wanted.time_source == "https://minio.example.org"
    spec = standing({"cluster.nodes.devices": {"nvidia.com/gpu": 8}, "cluster.s3.ca": "/etc/ca.pem"}).spec
    assert spec is not None and spec.cluster is not None
    wanted = health.expectation_of(spec, spec.cluster, "https://minio.example.org")
    assert not wanted.gpudirect and not wanted.rdma and wanted.time_source is None
    assert (wanted.adapters, wanted.one_leaf) == (0, False)
    spec = standing({"cluster.fabric": {"adapters": 8, "one_leaf": True}}).spec
    assert spec is not None and spec.cluster is not None
    wanted = health.expectation_of(spec, spec.cluster, "https://minio.example.org")
    assert (wanted.adapters, wanted.one_leaf) == (8, True)


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
