"""`python -m trainer.builtin.data.share`: one pod's share of a preparation in the cluster.

The pod of index 0 also hands the data set over. It prints progress as JSON lines; its termination message is the
result, or the error.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from trainer.builtin.data.prepare.failures import preparation_error
from trainer.builtin.data.prepare.parts import Parts
from trainer.builtin.data.prepare.prepare import list_files, plan_digest, prepare
from trainer.builtin.data.prepare.sharing import Sharing
from trainer.builtin.data.prepare.workers import Teller
from trainer.contract import (
    DATA_MANIFEST_NAME,
    DATA_SUMMARY_NAME,
    TOKENIZER_NAME,
    DataManifest,
    ExitCode,
)
from trainer.contract.exits import write_termination
from trainer.contract.preparing import INDEX_VARIABLE, SCRATCH, SHARE_FILE, Prepared, Preparing
from trainer.errors import DataError, TrainerError
from trainer.events import emit

_ROOM = 3500
"""Bytes of a termination message that Kubernetes surely keeps."""


def main() -> int:
    try:
        work = Preparing.model_validate_json(Path(SHARE_FILE).read_bytes())
        digest = share(work, int(os.environ[INDEX_VARIABLE]), Path(SCRATCH), _s3())
    except (TrainerError, OSError, MemoryError) as error:
        cure, memory_cure = "the same command continues on another node", "write a larger data.prepare.instance_type"
        refusal = preparation_error(error, Path(SCRATCH), "the pod's disk cannot be used", cure, memory_cure)
        print(refusal, file=sys.stderr, flush=True)
        write_termination(str(refusal)[:_ROOM])
        return int(refusal.exit_code)
    write_termination(json.dumps({"digest": digest}))
    return int(ExitCode.DONE)


def share(work: Preparing, index: int, scratch: Path, s3: Any, cores: int | None = None) -> str:
    """Do the work of one worker; return the digest of the data set. Raises `TrainerError`.

    The worker of index 0 copies the data set to `datasets/<digest>/`, the manifest last, and then writes the result.
    """
    store, recipe = Parts(s3, work.bucket, work.parts), work.recipe
    scratch.mkdir(parents=True, exist_ok=True)
    if recipe.tokenizer is not None:
        tokenizer_path = scratch / TOKENIZER_NAME
        store.fetch([tokenizer_path])
        recipe = recipe.model_copy(update={"tokenizer": tokenizer_path})
    files, target = list_files(recipe), scratch / "out"
    if (plan := plan_digest(recipe, files)) != work.plan:
        raise DataError(
            "these are not the files that the driver has listed",
            f"plan {plan}, wanted {work.plan}",
            "stop whatever writes to the sources; where nothing does, the image has another version of tokenizers than "
            "the driver: bake again",
        )
    teller = Teller()
    with Sharing(cores, teller, store, index, work.workers) as workers:
        teller.more = lambda: vars(workers.tally)
        manifest = prepare(recipe, files, target, workers)
    content = (target / DATA_MANIFEST_NAME).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if index == 0:
        small_files = {name: (target / name).read_bytes() for name in (TOKENIZER_NAME, DATA_SUMMARY_NAME)}
        store.publish(f"{work.datasets}{digest}/", digests_of(manifest), {**small_files, DATA_MANIFEST_NAME: content})
        store.put(work.result, Prepared(digest=digest).model_dump_json().encode())
    emit("prepared", manifest_sha256=digest, tokens=manifest.train_tokens, unigram_loss=manifest.unigram_loss)
    return digest


def digests_of(manifest: DataManifest) -> dict[str, str]:
    """Return the name of each of a data set's large files, and its SHA-256."""
    digests = dict[str, str]()
    for shard in (*manifest.train, *manifest.validation):
        digests |= {shard.file: shard.sha256, shard.index: shard.index_sha256}
    return digests


def _s3() -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3", config=Config(retries={"mode": "standard", "total_max_attempts": 8}, max_pool_connections=32)
    )


if __name__ == "__main__":
    sys.exit(main())
