"""The mounts of a rehearsed job: files in the emulated S3, what the shared file system shows of them, S3 by Mountpoint
with the pod's rights, and file systems that exist."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from infra.aws.given.file_systems import given_file_systems
from infra.data.in_cluster import refuse_unmarked
from infra.errors import TemporaryError, UserError
from infra.inventory.certify import look_through
from infra.plan.facts import Admission
from infra.rehearsal.aws.world import World
from infra.rehearsal.nodelet.pods import mountpoint
from infra.rehearsal.nodelet.pods.mountpoint import Mountpoint
from infra.rehearsal.site import surroundings
from infra.spec.campaign import Spec
from infra.spec.names import Names
from infra.stack.access.identity import reading_mounts
from infra.stack.cluster.mounts import mount_volumes
from tests.example import example_spec
from tests.rehearsal.aws_account import Account, make_user, pitch_lustre, signed_in, until

EKS = SimpleNamespace(describe_addon=lambda **_: {"addon": {"status": "ACTIVE"}})


def test_a_folders_files_come_under_the_mounts_prefix_and_the_file_system_shows_them(
    world: World, aws: Account, network: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("a.txt", "first"), ("deep/b.txt", "second")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    job = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 10, "step_seconds": 1},
        "mounts": {"corpus": "s3://their-data/tokens/v2/", "all": "s3://their-other-data"},
        "init_from": "s3://their-data/llama",
        "rehearsal": {"mounts": {"corpus": str(tmp_path), "all": str(tmp_path)}, "init_from": str(tmp_path / "deep")},
    }  # fmt: skip
    signed_in(monkeypatch, world)
    for _ in range(2):  # `run` after an interruption gives them again
        surroundings.give_mounts(example_spec(target="rehearsal", training=None, data=None, workload=job))
    seen = {
        bucket: {one["Key"]: one["Size"] for one in aws.s3.list_objects_v2(Bucket=bucket)["Contents"]}
        for bucket in ("their-data", "their-other-data")
    }
    assert seen == {
        "their-data": {"llama/b.txt": 6, "tokens/v2/a.txt": 5, "tokens/v2/deep/b.txt": 6},
        "their-other-data": {"a.txt": 5, "deep/b.txt": 6},
    }
    system = pitch_lustre(aws, network)["FileSystemId"]
    until(lambda: aws.fsx.describe_file_systems(FileSystemIds=[system])["FileSystems"][0]["Lifecycle"] == "AVAILABLE")
    aws.fsx.create_data_repository_association(
        FileSystemId=system, FileSystemPath="/mounts/corpus", DataRepositoryPath="s3://their-data/tokens/v2/",
        BatchImportMetaDataOnCreate=True,
    )  # fmt: skip
    shown = world.fsx_root / system / "mounts/corpus"
    until(lambda: (shown / "deep/b.txt").exists())
    assert (shown / "a.txt").read_text() == "first" and (shown / "deep/b.txt").read_text() == "second"


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
    surroundings.give_mounts(spec)
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
    (volume,) = mount_volumes(spec, {}).values()
    document = {"csi": {"volumeAttributes": volume.attributes}, "mountOptions": list(volume.options)}
    shown = Mountpoint(credentials, "c").mount(document, "token", tmp_path / "shown")
    files = {str(path.relative_to(shown)): path.read_text() for path in shown.rglob("*") if path.is_file()}
    assert files == {"a.txt": "a.txt", "deep/b.txt": "deep/b.txt"}
    beside = {**document, "mountOptions": ["prefix secret/"]}
    with pytest.raises(TemporaryError, match="AccessDenied"):
        Mountpoint(credentials, "c").mount(beside, "token", tmp_path / "beside")


def test_a_bucket_that_its_owner_has_not_opened_to_mounts_is_refused_with_what_opens_it(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = signed_in(monkeypatch, world)
    spec = spec_with(folder, shards={"s3": "s3://their-closed/v2", "by": "mountpoint"})
    account.client("s3").create_bucket(Bucket="their-closed")
    with pytest.raises(UserError, match=r"their-closed.*Key=bivouac:mounts"):
        refuse_unmarked(account, spec)
    surroundings.give_mounts(spec_with(folder, shards={"s3": "s3://their-open/v2", "by": "mountpoint"}))
    refuse_unmarked(account, spec_with(folder, shards={"s3": "s3://their-open/v2", "by": "mountpoint"}))
    refuse_unmarked(account, spec_with(folder, linked="s3://their-closed/v2"))


def test_without_the_pods_identity_the_driver_has_no_rights(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="no role"):
        Mountpoint(SimpleNamespace(), "c").mount({"csi": {"volumeAttributes": {}}}, "token", tmp_path)  # type: ignore[arg-type]


FSX = "fs-0123456789abcdef0"


def test_a_file_system_of_somebodys_is_described_and_has_the_files_under_its_path(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with(folder, team={"fsx": FSX, "path": "/sets/one"})
    account = signed_in(monkeypatch, world)
    for _ in range(2):  # `run` after an interruption gives it again
        surroundings.give_mounts(spec)
    (system,) = given_file_systems(account, spec)
    assert (system.id, system.kind, system.lifecycle) == (FSX, "LUSTRE", "AVAILABLE") and system.mount_name
    assert (world.fsx_root / FSX / "sets/one/deep/b.txt").read_text() == "deep/b.txt"
    assert given_file_systems(account, spec_with(folder, team={"fsx": "fs-0000000000000000f"})) == ()


def test_what_its_security_group_lets_in_is_read_as_aws_says_it(
    world: World, aws: Account, network: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "IpRanges": [{"CidrIp": "10.42.0.0/16"}]}
    aws.ec2.authorize_security_group_ingress(GroupId=network.group, IpPermissions=[rule])
    id = pitch_lustre(aws, network)["FileSystemId"]
    (system,) = given_file_systems(signed_in(monkeypatch, world), spec_with(folder, team={"fsx": id}))
    assert system.vpc_id == network.vpc
    assert system.groups == (network.group,)
    assert system.admits == (Admission(first=988, last=988, source="10.42.0.0/16"),)


def test_it_is_neither_found_by_the_certificate_nor_taken_by_a_sweep(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with(folder, team={"fsx": FSX})
    account = signed_in(monkeypatch, world)
    surroundings.give_mounts(spec)
    found = look_through(account, Names(spec), "arn:test", "123456789012", ())
    assert FSX in {item.get("FileSystemId") for item in account.client("fsx").describe_file_systems()["FileSystems"]}
    assert not [one for one in found.found if FSX in one], "somebody's, and stays"
