"""Provision at an existing cluster: a job's data goes to the claim once, by a Job that ends and is removed."""

from __future__ import annotations

import hashlib
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra import target
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.standing.placing import placed
from infra.errors import PermanentError, UserError
from infra.record.payloads.outputs import BakeOutput
from infra.spec.campaign import Spec
from infra.standing import bring, data, tenancy
from infra.standing import stages as standing_stages
from tests.unit.standing.conftest import Standing
from tests.unit.standing.test_driver_stages import store_of
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time
from tests.worlds.tenant import BUCKET, SPACE, TenantApi, own, rack


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
    namespace: Any = SimpleNamespace(folder=folder)
    assert data.listed(spec, namespace) == (file_of(b"{}", "manifest.json"),)


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
    document = json.loads(api.objects["v1", "configmaps", SPACE, "data"]["data"]["bring.json"])
    listing = json.loads(context.store.get(document["listing"]))
    assert [file["name"] for file in listing["files"]] == ["source-2.tar"]
    assert target.renewal(spec) is standing_stages.RENEWAL
