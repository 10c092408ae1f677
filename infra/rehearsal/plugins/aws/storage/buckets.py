"""The S3 bucket without its settings, which are separate resources."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Input, Naming
from infra.rehearsal.plugins.aws.tags import tag_list, tag_map
from infra.rehearsal.plugins.wire import Props


def create_bucket(call: Call) -> str:
    name = call.new["bucket"]
    request: dict[str, Any] = {"Bucket": name}
    if call.region != "us-east-1":
        request["CreateBucketConfiguration"] = {"LocationConstraint": call.region}
    if call.new.get("objectLockEnabled"):
        request["ObjectLockEnabledForBucket"] = True
    client = call.client()
    call.retry(lambda: client.create_bucket(**request), "OperationAborted")
    call.id = name
    call.wait(lambda: call.or_none(lambda: client.head_bucket(Bucket=name)), f"bucket {name} to exist")
    if call.tags:
        client.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tag_list(call.tags)})
    return str(name)


def read_bucket(call: Call) -> Props | None:
    client, name = call.client(), call.id
    if not call.or_none(lambda: client.head_bucket(Bucket=name)):
        return None
    tags = call.or_none(lambda: client.get_bucket_tagging(Bucket=name)) or {"TagSet": []}
    region = call.region
    return {
        "bucket": name,
        "arn": f"arn:aws:s3:::{name}",
        "bucketDomainName": f"{name}.s3.amazonaws.com",
        "bucketRegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
        "bucketRegion": region,
        "tags": tag_map(tags["TagSet"]),
    }


def update_bucket(call: Call) -> None:
    """Do nothing: `forceDestroy` exists only in the state, which a destroy needs updated beforehand."""


def delete_bucket(call: Call) -> None:
    if call.state.get("forceDestroy"):
        call.or_none(lambda: _empty(call))
    client = call.client()
    call.destroy(lambda: client.delete_bucket(Bucket=call.id))


def _empty(call: Call) -> None:
    client = call.client()
    for page in client.get_paginator("list_object_versions").paginate(Bucket=call.id):
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        keys = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in found]
        if keys:
            client.delete_objects(Bucket=call.id, Delete={"Objects": keys, "Quiet": True})
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=call.id):
        for upload in page.get("Uploads", []):
            client.abort_multipart_upload(Bucket=call.id, Key=upload["Key"], UploadId=upload["UploadId"])


def retag_bucket(call: Call, fresh: dict[str, str], stale: list[str]) -> None:
    client = call.client()
    if call.tags:
        client.put_bucket_tagging(Bucket=call.id, Tagging={"TagSet": tag_list(call.tags)})
    else:
        client.delete_bucket_tagging(Bucket=call.id)


RESOURCES = (
    Resource(
        token="aws:s3/bucket:Bucket",
        service="s3",
        inputs={
            "forceDestroy": Input(api=LOCAL, default=False),
            "objectLockEnabled": Input(api=LOCAL, replaces=True),
        },
        outputs=dict.fromkeys(("arn", "bucketDomainName", "bucketRegionalDomainName", "bucketRegion"), LOCAL),
        naming=Naming("bucket", longest=63, prefix_property="bucketPrefix"),
        identity=("bucket",),
        create=create_bucket,
        read=read_bucket,
        update=update_bucket,
        delete=delete_bucket,
        tagger=retag_bucket,
    ),
)
