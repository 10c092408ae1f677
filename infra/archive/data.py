"""The archived part of the data: tokenizer, manifest and held-out split, for evaluations anywhere."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from infra.archive.bucket import Content
from infra.errors import PermanentError
from trainer.contract import DATA_MANIFEST_NAME, TOKENIZER_NAME


def held_out(data: Path) -> dict[str, Content]:
    """Return file name -> content of the prepared data at `data`, without its training tokens."""
    manifest = (data / DATA_MANIFEST_NAME).read_bytes()
    found = {DATA_MANIFEST_NAME: Content.of(manifest), TOKENIZER_NAME: Content.of((data / TOKENIZER_NAME).read_bytes())}
    for shard in json.loads(manifest)["validation"]:
        digests = {shard["file"]: shard["sha256"]}
        if "index_sha256" in shard:
            digests[str(PurePosixPath(shard["file"]).with_suffix(".idx"))] = shard["index_sha256"]
        for name, sha256 in digests.items():
            try:
                found[name] = Content(data / name, (data / name).stat().st_size, sha256)
            except OSError as error:
                raise PermanentError("a held-out shard is missing", seen=f"{name}: {error.strerror}") from error
    return found
