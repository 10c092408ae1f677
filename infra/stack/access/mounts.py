"""Rights of a job's pods to what they mount from S3 by Mountpoint's driver. No Pulumi here.

The driver takes the pod's own identity (`authenticationSource: pod`), so the add-on has no role, and no other pod can
read a prefix. https://github.com/awslabs/mountpoint-s3-csi-driver/blob/main/docs/CONFIGURATION.md
"""

from __future__ import annotations

from infra.spec.campaign import Spec
from infra.stack.access.policies import Statement, allow, keys_through_s3, place


def reading_mounts(spec: Spec) -> list[Statement]:
    """Allow to list and read the prefixes of the spec, and nothing beside them."""
    prefixes = {} if spec.workload is None else spec.workload.by_mountpoint
    statements, buckets = list[Statement](), set[str]()
    for prefix in sorted(prefixes.values()):
        bucket, _, folder = prefix.removeprefix("s3://").rstrip("/").partition("/")
        root = f"{folder}/" if folder else ""
        by_prefix = {"StringLike": {"s3:prefix": [f"{root}*"]}} if root else None
        statements.append(allow(["s3:ListBucket"], [f"arn:aws:s3:::{bucket}"], by_prefix))
        statements.append(allow(["s3:GetObject"], [f"arn:aws:s3:::{bucket}/{root}*"]))
        buckets.add(bucket)
    return [*statements, *(keys_through_s3(place(spec), sorted(buckets)) if buckets else [])]
