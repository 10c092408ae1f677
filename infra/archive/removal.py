"""The removal of interval copies from the archive bucket, which keeps versions: those would bill on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.record.objects import delete_objects, keys_below
from trainer.contract import COMMITTED_NAME, step_folder, step_of_folder


def forget_copies(s3: Any, bucket: str, prefix: str, say: Callable[..., None], archived: int) -> int:
    """Remove the copies in a campaign's folder for which its golden checkpoint now stands: those of steps up to
    `archived`. A newer one stays: it was refused, and may be all that is left of its step. Each manifest goes first, so
    that no half removed copy is taken for a whole one. Return how many objects stay, -1 after an error."""
    try:
        there = keys_below(s3, bucket, f"{prefix}/")
        steps = {step for key in there if (step := _step_of(key, prefix)) is not None and step > archived}
        newer = tuple(f"{prefix}/{step_folder(step)}/" for step in steps)
        keys = [key for key in there if not key.startswith(newer)]
        for manifest in (key for key in keys if key.endswith(f"/{COMMITTED_NAME}")):
            s3.delete_object(Bucket=bucket, Key=manifest)
        locked = forget_versions(s3, bucket, f"{prefix}/", newer)
    except (ClientError, BotoCoreError) as error:
        say("copies not removed", why=str(error)[:300])
        return -1
    if keys:
        say("copies removed", objects=len(keys), locked=locked)
    return locked + len(there) - len(keys)


def _step_of(key: str, prefix: str) -> int | None:
    return step_of_folder(key.removeprefix(f"{prefix}/").partition("/")[0])


def forget_versions(s3: Any, bucket: str, prefix: str, spared: tuple[str, ...] = ()) -> int:
    """Delete every version and delete marker below a prefix, but for keys that begin as one `spared`; return how many a
    lock keeps. A locked version gets a marker, and the bucket's lifecycle removes it when its lock is over."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    versions, markers, current = list[dict[str, str]](), list[dict[str, str]](), set[str]()
    for page in pages:
        for one in (one for one in page.get("Versions", ()) if not one["Key"].startswith(spared)):
            versions.append({"Key": one["Key"], "VersionId": one["VersionId"]})
            current |= {one["Key"]} if one.get("IsLatest") else set()
        markers += [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in page.get("DeleteMarkers", ())]
    markers = [one for one in markers if not one["Key"].startswith(spared)]
    refused = delete_objects(s3, bucket, versions)
    kept = {one["Key"] for one in refused}
    delete_objects(s3, bucket, [{"Key": key} for key in sorted(kept & current)])
    # The marker of a version that stays hides it.
    delete_objects(s3, bucket, [one for one in markers if one["Key"] not in kept])
    return len(refused)
