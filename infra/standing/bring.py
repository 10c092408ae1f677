"""Bring a job's data from S3 to the shared claim of an existing cluster, in a pod: `python -m infra.standing.bring`.

Where a campaign makes its file system, that one imports the data from S3 by itself.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.archive.archive import FAILURES, last_word, say
from infra.aws.account import Account
from infra.errors import PermanentError
from trainer.contract import DATA_MOUNT, ExitCode
from trainer.contract.frozen import Frozen

NAME = "data"
"""Of the Job and of its config map."""
CONFIG = "bring.json"
LISTING = "data-files.json"
"""Object of the record with the files' names and digests."""
COMMAND = ("python", "-m", "infra.standing.bring")
_AT_ONCE = 4
_PARTIAL = ".part"


class DataFile(Frozen):
    name: str
    """Path below the data's folder."""
    size_bytes: int
    sha256: str


class BringConfig(Frozen):
    region: str
    bucket: str
    prefix: str
    """Folder of the files in the bucket, with a slash."""
    listing: str
    """Key of their `Listing`."""


class Listing(Frozen):
    files: tuple[DataFile, ...]


def bring(config: BringConfig, s3: Any, folder: Path) -> dict[str, Any]:
    """Bring each file that is not there yet, whole, and return a summary. Raises `PermanentError` for one that S3 has
    otherwise than it was sent."""
    start = time.monotonic()
    listing = s3.get_object(Bucket=config.bucket, Key=config.listing)["Body"].read()

    def one_file(file: DataFile) -> int:
        path = folder / file.name
        if path.is_file() and path.stat().st_size == file.size_bytes and _sha256(path) == file.sha256:
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + _PARTIAL)
        s3.download_file(config.bucket, f"{config.prefix}{file.name}", str(partial))
        if (digest := _sha256(partial)) != file.sha256:
            partial.unlink()
            raise PermanentError(
                "a file of the data is not what was sent",
                seen=f"s3://{config.bucket}/{config.prefix}{file.name}: SHA-256 {digest}, wanted {file.sha256}",
                cure="delete that folder of the bucket and run the same command again: it sends the data anew",
            )
        partial.replace(path)
        say("brought", file=file.name, bytes=file.size_bytes)
        return file.size_bytes

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sizes = list(pool.map(one_file, Listing.model_validate_json(listing).files))
    return {"files": len(sizes), "bytes": sum(sizes), "seconds": round(time.monotonic() - start, 1)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    config = BringConfig.model_validate_json((Path("/config") / CONFIG).read_text())
    try:
        summary = bring(config, Account(config.region).client("s3"), Path(DATA_MOUNT))
    except FAILURES as error:
        last_word(f"{error}"[:4000])
        say("failed", error=str(error))
        return int(ExitCode.STORAGE)
    last_word(json.dumps(summary))
    say("data", **summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
