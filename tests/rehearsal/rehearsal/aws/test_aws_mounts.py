"""The files of a rehearsed job's mounts in the emulated S3, and what the shared file system shows of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.rehearsal.aws.world import World
from infra.rehearsal.site import mounts
from tests.example import example_spec
from tests.rehearsal.aws_account import Account, pitch_lustre, signed_in, until


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
        mounts.give(example_spec(target="rehearsal", training=None, data=None, workload=job))
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
