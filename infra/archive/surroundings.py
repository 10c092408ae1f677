"""What the archive has beside the checkpoint, or instead of one: held-out data for evaluations anywhere, the campaign's
record, and a job's unrecognised content."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive.bucket import ArchiveBucket, Content
from infra.archive.judged import Unproven
from infra.archive.manifest import RECORD
from infra.archive.settings import ArchiveConfig, Places
from infra.archive.source import Source
from infra.archive.unproven import Left, UnprovenCopier, left_of
from infra.errors import BivouacError, PermanentError
from infra.record import pod_logs, series
from infra.record.store import CampaignStore
from trainer.contract import DATA_MANIFEST_NAME, TOKENIZER_NAME
from trainer.contract.workload import WORKLOAD_CONFIG, WorkloadConfig


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

    Logs and series are joined in files in `work`, since logs of months exceed a node's memory. Raises
    `PermanentError`.
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
    if series_keys := series.in_order(keys):
        path = work / series.JOINED
        with path.open("wb") as joined_file, ThreadPoolExecutor(_AT_ONCE) as pool:
            for start in range(0, len(series_keys), _AT_ONCE):  # all at once would be in memory
                gets = [partial(state.get, key) for key in series_keys[start : start + _AT_ONCE]]
                joined_file.writelines(body or b"" for body in pool.map(bucket.patiently, gets))
        contents[f"{RECORD}/{series.JOINED}"] = Content.of_file(path)
        pieces |= set(series_keys)
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


class OnlyCopied(Exception):
    """No checkpoint was ever committed; what the job left is copied as it is."""

    def __init__(self, copy: dict[str, Any]) -> None:
        super().__init__(copy["why"])
        self.summary = {"copied": copy}


class Leftovers:
    def __init__(self, config: ArchiveConfig, bucket: ArchiveBucket, places: Places, source: Source) -> None:
        self.config, self.bucket, self.places, self.source = config, bucket, places, source
        self.copy = UnprovenCopier(bucket, config.campaign, config.identity, config.attempt)

    def manifest_key(self) -> str:
        """Return the key of the manifest of what will be copied beside the golden checkpoint; empty only if it is known
        that there is nothing."""
        try:
            return self.copy.manifest_key if self._left() else ""
        except (PermanentError, OSError):
            return self.copy.manifest_key  # the copy itself will say why

    def copy_beside(self, step: int) -> dict[str, Any]:
        """Copy what is not of step `step`, which is in the archive. Return the data of `archive.unproven`, empty if
        there was nothing. Raises `Unproven` if the copy fails."""
        try:
            left = self._left()
            return self.copy.send(left) if left else {}
        except (BivouacError, OSError, ClientError, BotoCoreError) as error:
            raise Unproven(f"{error}"[:2000], step, [], "the copy of what else the job left") from error

    def end(self) -> NoReturn:
        """Copy all of the job's folder, since no checkpoint is sound.

        Raises `OnlyCopied` if none was ever committed, else `PermanentError`: damaged ones are for a person.
        """
        left = self._left(entire=True)
        copy_summary = self.copy.send(left) if left else {}
        if copy_summary and not self.source.refused and self.config.committed_step < 0:
            raise OnlyCopied(copy_summary)
        copy_note = f"; all that the job left is at {copy_summary['prefix']} as it is" if copy_summary else ""
        raise PermanentError(
            "no sound checkpoint is on the shared tier",
            seen=("; ".join(self.source.refused) or "none at all") + copy_note,
            cure="nothing can be archived; see the trainer's logs",
        )

    def _left(self, entire: bool = False) -> Left:
        """Return what is to be copied as it is. A job whose newest steps were refused may still have them itself, and
        nodes with disks of their own bring only what is unrecognised: then it is all of the folder."""
        job = self.places.config.with_name(WORKLOAD_CONFIG)
        local = (
            self.config.workload and WorkloadConfig.model_validate_json(job.read_bytes()).checkpoints.tier == "local"
        )
        return left_of(self.source.root, entire or local or bool(self.source.refused))
