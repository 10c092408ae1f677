"""The emulated AWS in a process of its own, with one bucket that keeps versions: forked ranks need a parent without
threads. Run as a program this is that process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.root import ROOT

BUCKET = "archive"


@contextmanager
def emulated_s3(site: Path) -> Iterator[dict[str, str]]:
    """Yield the environment with which boto3 finds it."""
    command = [sys.executable, "-m", "tests.trainer.emulated_s3", str(site)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            told = process.stdout.readline()
            assert told, "the emulated AWS did not start"
            yield json.loads(told)
        finally:
            process.stdin.close()  # it ends then


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with emulated_s3(tmp_path_factory.mktemp("site")) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials of whoever came first
        yield boto3.client("s3")


def main() -> None:
    from infra.rehearsal.aws.strict.settings import SOFT
    from tests.rehearsal.aws_account import Account, emulated

    with emulated(Path(sys.argv[1]), strictness=SOFT) as world:
        s3 = Account(world, *world.operator_key).s3
        s3.create_bucket(Bucket=BUCKET)
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        key, secret = world.operator_key
        told = {"AWS_ENDPOINT_URL": world.endpoint_url, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        print(json.dumps(told | {"AWS_REGION": world.region, "AWS_DEFAULT_REGION": world.region}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
