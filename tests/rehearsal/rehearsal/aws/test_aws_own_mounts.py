"""Mounts with volumes of their own in a rehearsal: S3 by Mountpoint with the pod's rights."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from infra.errors import TemporaryError
from infra.rehearsal.aws.world import World
from infra.rehearsal.nodelet.pods import mountpoint
from infra.rehearsal.nodelet.pods.mountpoint import Mountpoint
from infra.rehearsal.site import mounts
from infra.spec.campaign import Spec
from infra.stack.access.mounts import reading_mounts
from infra.stack.cluster.mounts import mount_volumes
from tests.example import example_spec
from tests.rehearsal.aws_account import make_user, signed_in

EKS = SimpleNamespace(describe_addon=lambda **_: {"addon": {"status": "ACTIVE"}})


def spec_with(folder: Path, **sections: Any) -> Spec:
    job = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 10, "step_seconds": 1},
        "mounts": sections, "rehearsal": {"mounts": dict.fromkeys(sections, str(folder))},
    }  # fmt: skip
    return example_spec(target="rehearsal", training=None, data=None, workload=job)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.txt", "deep/b.txt"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(name)
    return tmp_path / "mine"


def test_a_prefix_is_a_folder_for_pods_with_the_trainers_rights_and_nothing_beside_it_is(
    world: World, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with(folder, shards={"s3": "s3://their-shards/v2", "by": "mountpoint"})
    s3 = signed_in(monkeypatch, world).client("s3")
    mounts.give(spec)
    s3.put_object(Bucket="their-shards", Key="secret/c.txt", Body=b"c")
    key, secret = make_user(world, "trainer", *reading_mounts(spec))
    monkeypatch.setattr(mountpoint, "pod_credentials", lambda *_: json.dumps(
        {"AccessKeyId": key, "SecretAccessKey": secret, "Token": ""}
    ))  # fmt: skip
    session = boto3.Session(key, secret, region_name=world.region)
    credentials: Any = SimpleNamespace(
        agent_client=lambda _: EKS, session=lambda *_: session.client("s3", endpoint_url=world.endpoint_url)
    )
    assert spec.workload is not None
    (volume,) = mount_volumes(spec, spec.workload).values()
    document = {"csi": {"volumeAttributes": volume.attributes}, "mountOptions": list(volume.options)}
    shown = Mountpoint(credentials, "c").mount(document, "token", tmp_path / "shown")
    files = {str(path.relative_to(shown)): path.read_text() for path in shown.rglob("*") if path.is_file()}
    assert files == {"a.txt": "a.txt", "deep/b.txt": "deep/b.txt"}
    beside = {**document, "mountOptions": ["prefix secret/"]}
    with pytest.raises(TemporaryError, match="AccessDenied"):
        Mountpoint(credentials, "c").mount(beside, "token", tmp_path / "beside")


def test_without_the_pods_identity_the_driver_has_no_rights(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="no role"):
        Mountpoint(SimpleNamespace(), "c").mount({"csi": {"volumeAttributes": {}}}, "token", tmp_path)  # type: ignore[arg-type]
