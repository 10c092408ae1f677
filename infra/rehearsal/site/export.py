"""Export a campaign's archive as files, inside a site: `python -m infra.rehearsal.site.export BUCKET CAMPAIGN OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

import boto3
from botocore.exceptions import ClientError


def main(bucket: str, campaign: str, folder: Path) -> int:
    s3, prefix, count = boto3.client("s3"), f"campaigns/{campaign}/", 0
    try:
        pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix))
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchBucket":
            raise
        pages = []
    for page in pages:
        for item in page.get("Contents", ()):
            path = folder / "archive" / item["Key"].removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, item["Key"], str(path))
            count += 1
    print(f"{count} archived objects exported to {folder / 'archive'}" if count else "nothing was archived")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
