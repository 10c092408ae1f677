"""Lost file systems: interval copies go to the emulated S3, both tiers go, and the ranks go on from what comes back."""

from __future__ import annotations

import os
import random
import shutil
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from infra.archive.bucket import ArchiveBucket
from infra.aws.transfer import Transfer
from infra.checkpoints.copies import Copies, CopiesConfig
from infra.spec.names import copies_prefix
from tests.drills.parts.storage_aws import account
from tests.drills.parts.storage_gang import CAMPAIGN, Camp
from trainer.contract import step_folder

HARM = ("nothing", "a byte", "an object", "the manifest", "an upload cut short")
"""Done to the newest copy."""


def lose(camp: Camp, folder: Path, number: int, chance: random.Random) -> tuple[int, str]:
    """Copy the shared tier's steps one after the other, harm the newest copy, lose every tier, and bring back what is
    sound. Return the step from which the ranks must go on, and what was done."""
    s3, bucket = account().client("s3"), f"lost-{number}"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    tier = camp.tiers(0).shared
    steps = sorted(tier.steps())
    for step in steps:
        part = folder / f"until-{step}"
        for known in (one for one in steps if one <= step):
            shutil.copytree(tier.folder(known), part / CAMPAIGN / step_folder(known))
        _apart(lambda copies: copies.send(), bucket, part, folder / "send.log", above=step - 1)
    harm = chance.choice(HARM)
    _harm(s3, bucket, steps[-1], harm, chance)
    for name in ("shared", *(f"local-{rank // camp.ranks_per_node}" for rank in range(camp.ranks))):
        shutil.rmtree(camp.root / name, ignore_errors=True)
    (camp.root / "shared").mkdir()
    _apart(lambda copies: copies.fetch(), bucket, camp.root / "shared", folder / "fetch.log")
    return steps[-1 if harm == "nothing" else -2], harm


def _harm(s3: Any, bucket: str, step: int, harm: str, chance: random.Random) -> None:
    prefix = f"{copies_prefix(CAMPAIGN)}/{step_folder(step)}/"
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]]
    manifest = f"{prefix}manifest.json"
    key = manifest if harm == "the manifest" else chance.choice(sorted({*keys} - {manifest}))
    if harm in ("a byte", "the manifest"):
        body = bytearray(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        s3.put_object(Bucket=bucket, Key=key, Body=bytes(body))
    elif harm == "an object":
        s3.delete_object(Bucket=bucket, Key=key)
    elif harm == "an upload cut short":
        s3.delete_object(Bucket=bucket, Key=manifest)


def _apart(act: Callable[[Copies], object], bucket: str, shared: Path, log: Path, above: int = -1) -> None:
    """Act in a child process: the drill's own stays free of threads, since it forks."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
            s3 = account().client("s3")
            config = CopiesConfig(campaign=CAMPAIGN, region="us-east-1", archive_bucket=bucket, above=above)
            pause = timedelta(milliseconds=1)
            archive_bucket = ArchiveBucket(
                s3, bucket, copies_prefix(CAMPAIGN), lambda event, **_: None, 3, pause, Transfer(s3, bucket)
            )
            act(Copies(config, archive_bucket, shared))
            code = 0
        except BaseException:
            os.write(1, traceback.format_exc().encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise AssertionError(log.read_text()[-1500:])
