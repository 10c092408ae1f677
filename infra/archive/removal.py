"""The removal of interval copies from the archive bucket, which keeps versions: those would bill on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.record.objects import delete_objects, keys_below
from trainer.contract import COMMITTED_NAME, step_folder, step_of_folder


def forget_copies(s3: Any, bucket: str, prefix: str, say: Callable[..., None], archived_step: int) -> int:
    """Remove the copies in a campaign's folder for which its golden checkpoint now stands: those of steps up to
    `archived_step`. A newer one stays: it was refused, and may be all that is left of its step. Each manifest goes
    first, so that no half removed copy is taken for a whole one. Return how many objects stay, -1 after an error."""
    try:
        keys_now = keys_below(s3, bucket, f"{prefix}/")
        steps = {step for key in keys_now if (step := _step_of(key, prefix)) is not None and step > archived_step}
        newer = tuple(f"{prefix}/{step_folder(step)}/" for step in steps)
        keys = [key for key in keys_now if not key.startswith(newer)]
        for manifest in (key for key in keys if key.endswith(f"/{COMMITTED_NAME}")):
            s3.delete_object(Bucket=bucket, Key=manifest)
        locks = forget_versions(s3, bucket, f"{prefix}/", newer)
    except (ClientError, BotoCoreError) as error:
        say("copies not removed", why=str(error)[:300])
        return -1
    if keys:
        say("copies removed", objects=len(keys), locked=locks)
    return locks + len(keys_now) - len(keys)


def _step_of(key: str, prefix: str) -> int | None:
    return step_of_folder(key.removeprefix(f"{prefix}/").partition("/")[0])


def forget_versions(s3: Any, bucket: str, prefix: str, exempt: tuple[str, ...] = ()) -> int:
    """Delete every version and delete marker below a prefix, but for keys that begin with one of `exempt`; return how
    many a lock keeps. A locked version gets a marker, and the bucket's lifecycle removes it when its lock is over."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    versions, markers, current = list[dict[str, str]](), list[dict[str, str]](), set[str]()
    for page in pages:
        for version in (version for version in page.get("Versions", ()) if not version["Key"].startswith(exempt)):
            versions.append({"Key": version["Key"], "VersionId": version["VersionId"]})
            current |= {version["Key"]} if version.get("IsLatest") else set()
        markers += [
            {"Key": version["Key"], "VersionId": version["VersionId"]} for version in page.get("DeleteMarkers", ())
        ]
    markers = [version for version in markers if not version["Key"].startswith(exempt)]
    refusals = delete_objects(s3, bucket, versions)
    locked_keys = {version["Key"] for version in refusals}
    delete_objects(s3, bucket, [{"Key": key} for key in sorted(locked_keys & current)])
    # The marker of a version that stays hides it.
    delete_objects(s3, bucket, [version for version in markers if version["Key"] not in locked_keys])
    return len(refusals)
