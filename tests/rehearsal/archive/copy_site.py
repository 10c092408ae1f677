"""A tier with committed steps, and the bucket of its interval copies."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.config import Config

from infra.archive.bucket import ArchiveBucket
from infra.aws.transfer import MIB, Transfer
from infra.checkpoints.copies import Copies, CopiesConfig
from infra.rehearsal.aws.world import World
from tests.manifests import manifest_of, seal, shard_at
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import attempt_folder, step_folder

CAMPAIGN, IDENTITY, PART = "tiny", "20261101T000000Z-0a1b2c3d", 5 * MIB
PREFIX = f"copies/{CAMPAIGN}/{IDENTITY}"
LARGE = bytes(range(256)) * (PART // 256) + b"one part more"


@pytest.fixture
def site(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> SimpleNamespace:
    session = boto3.Session(*world.operator_key, region_name=world.region)
    s3 = session.client("s3", endpoint_url=world.endpoint_url, config=Config(signature_version="s3v4"))
    name = f"copies-{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket="a_lock" in request.node.name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return SimpleNamespace(s3=s3, name=name, root=tmp_path / "shared")


def copies(site: SimpleNamespace, above: int = -1) -> Copies:
    config = CopiesConfig(
        campaign=CAMPAIGN, identity=IDENTITY, region="us-east-1", archive_bucket=site.name, above=above
    )
    transfer = Transfer(site.s3, site.name, PART, 4)
    pause = timedelta(milliseconds=1)
    bucket = ArchiveBucket(site.s3, site.name, PREFIX, lambda event, **_: None, 2, pause, transfer)
    return Copies(config, bucket, site.root)


def commit(site: SimpleNamespace, step: int, attempt: int = 1, body: bytes = b"small", large: bytes = LARGE) -> Path:
    folder = site.root / CAMPAIGN / step_folder(step)
    for name, content in (("large.pt", large), ("small.pt", body + b"%d" % step)):
        path = folder / attempt_folder(attempt) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shards = tuple(shard_at(folder / attempt_folder(attempt) / name) for name in ("large.pt", "small.pt"))
    seal(folder, manifest_of(step, shards, campaign=CAMPAIGN, identity=IDENTITY, attempt=attempt))
    return folder


def keys(site: SimpleNamespace) -> list[str]:
    found = site.s3.list_objects_v2(Bucket=site.name).get("Contents", ())
    return [item["Key"].removeprefix(f"{PREFIX}/") for item in found]


def spoil(site: SimpleNamespace, step: int, name: str = "small.pt", attempt: int = 1) -> None:
    key = f"{PREFIX}/{step_folder(step)}/{attempt_folder(attempt)}/{name}"
    body = site.s3.get_object(Bucket=site.name, Key=key)["Body"].read()
    site.s3.put_object(Bucket=site.name, Key=key, Body=b"?" + body[1:])


def on_tier(site: SimpleNamespace) -> dict[int, dict[str, bytes]]:
    root = site.root / CAMPAIGN
    committed = Tier("shared", root, IDENTITY).committed()
    return {
        one.step: {
            str(path.relative_to(root / step_folder(one.step))): path.read_bytes()
            for path in (root / step_folder(one.step)).rglob("*")
            if path.is_file()
        }
        for one in committed
    }
