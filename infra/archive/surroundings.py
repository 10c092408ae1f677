"""What the archive has beside the checkpoint: held-out data for evaluations anywhere, and the campaign's record."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath

from infra.archive.bucket import ArchiveBucket, Content
from infra.archive.manifest import RECORD
from infra.errors import PermanentError
from infra.record import pod_logs
from infra.record.store import CampaignStore
from trainer.contract import DATA_MANIFEST_NAME, TOKENIZER_NAME


def held_out(data: Path) -> dict[str, Content]:
    """Return file name -> content of the prepared data at `data`, without its training tokens."""
    manifest = (data / DATA_MANIFEST_NAME).read_bytes()
    contents = {
        DATA_MANIFEST_NAME: Content.of(manifest),
        TOKENIZER_NAME: Content.of((data / TOKENIZER_NAME).read_bytes()),
    }
    for shard in json.loads(manifest)["validation"]:
        digests = {shard["file"]: shard["sha256"]}
        if "index_sha256" in shard:
            digests[str(PurePosixPath(shard["file"]).with_suffix(".idx"))] = shard["index_sha256"]
        for name, sha256 in digests.items():
            try:
                contents[name] = Content(data / name, (data / name).stat().st_size, sha256)
            except OSError as error:
                raise PermanentError("a held-out shard is missing", seen=f"{name}: {error.strerror}") from error
    return contents


_AT_ONCE = 8
_LEFT_OUT = ("/leases/", "/bake/", "/requests/", "/carried/")


def records_of(bucket: ArchiveBucket, state: CampaignStore, image_manifest: str, work: Path) -> dict[str, Content]:
    """Return name below the archive -> content of the present record. `image_manifest`: its key in the state bucket.

    Logs are joined in files in `work`, since those of months exceed a node's memory. Raises `PermanentError`.
    """
    keys = bucket.patiently(lambda: state.keys(""))
    pods = pod_logs.by_pod(keys)
    (work / pod_logs.FOLDER).mkdir(exist_ok=True)

    def join_log(pod: str) -> tuple[str, Content]:
        path = work / pod_logs.FOLDER / f"{pod}.log"
        with path.open("wb") as file:
            for key in pods[pod]:
                file.write(bucket.patiently(partial(state.get, key)) or b"")
        return f"{RECORD}/{pod_logs.FOLDER}{path.name}", Content.of_file(path)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        contents = dict(pool.map(join_log, pods))
    pieces = {key for keys_of_pod in pods.values() for key in keys_of_pod}
    for key in [*(key for key in keys if key not in pieces), image_manifest]:
        if any(folder in key for folder in _LEFT_OUT):
            continue
        body = bucket.patiently(partial(state.get, key))
        if body is not None:
            contents[f"{RECORD}/{key.removeprefix(f'{state.prefix}/')}"] = Content.of(body)
    if f"{RECORD}/spec.json" not in contents:
        summary = f"{len(contents)} objects, no spec.json, in {state.bucket}"
        raise PermanentError("the campaign's record cannot be found", seen=summary, cure="check the state bucket")
    return contents
