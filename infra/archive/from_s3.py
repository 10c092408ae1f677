"""The archive of a campaign without a shared file system: checkpoints and data come from S3 to the node's disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from infra.archive.bucket import ArchiveBucket, ArchivedObject, Unsound
from infra.archive.settings import ArchiveConfig, Places
from infra.archive.source import Source
from infra.errors import PermanentError
from infra.record.objects import keys_below
from infra.spec.names import copies_prefix
from trainer.contract import (
    COMMITTED_NAME,
    DATA_MANIFEST_NAME,
    TOKENIZER_NAME,
    Manifest,
    parse_manifest,
    step_folder,
    step_of_folder,
)
from trainer.contract.checkpoint import BANS, Ban, distrust

_AT_ONCE = 8


class BucketSource(Source):
    """The shared tier in S3. A step is read from there, digests and all, when it is asked for."""

    def __init__(self, config: ArchiveConfig, s3: Any, root: Path, say: Callable[..., None], url: str = "") -> None:
        """`root`: a folder of the node's disk with the campaign's name, which gets one step at a time. `url`: where the
        steps lie, if not on the configuration's shared tier."""
        super().__init__(root, config.identity, config.committed_step, say)
        self._bucket = bucket_at(s3, url or config.shared_tier, say)

    def steps(self) -> list[int]:
        """Return the steps with a manifest, newest first."""
        bucket = self._bucket
        names = map(PurePosixPath, keys_below(bucket.s3, bucket.bucket, f"{bucket.prefix}/step-"))
        step_set = {step_of_folder(name.parent.name) for name in names if name.name == COMMITTED_NAME}
        return sorted((step for step in step_set if step is not None), reverse=True)

    def candidates(self) -> Iterator[tuple[Path, Manifest]]:
        bans = self.bans()
        for step in self.steps():
            folder = self.root / step_folder(step)
            try:
                manifest = self.brought(step, folder, bans)
            except (Unsound, ValueError) as error:
                self.refuse(folder, str(error))
            else:
                yield folder, manifest
            shutil.rmtree(folder, ignore_errors=True)

    def _notes(self) -> dict[str, bytes]:
        bucket = self._bucket
        names = (key.rpartition("/")[2] for key in keys_below(bucket.s3, bucket.bucket, f"{bucket.prefix}/{BANS}/"))
        notes = {name: self._bucket.get(f"{BANS}/{name}") for name in names if name}  # a folder's marker has none
        return {name: content for name, content in notes.items() if content is not None}

    def brought(self, step: int, folder: Path, bans: tuple[Ban, ...]) -> Manifest:
        """Read a step into a folder. Raises `Unsound` or `ValueError` if any byte of it is not as it was committed, or
        the watch distrusts it."""
        content = self._bucket.get(f"{folder.name}/{COMMITTED_NAME}")
        if content is None:
            raise Unsound("its manifest is gone")
        manifest = parse_manifest(content, step, self.root.name, self.identity)
        if not manifest.shards:
            raise ValueError("it names no shards")
        if reason := distrust(bans, manifest):
            raise ValueError(reason)
        for shard in manifest.shards:
            (folder / shard.file).parent.mkdir(parents=True, exist_ok=True)

        def read(number: int) -> None:
            shard = manifest.shards[number]
            key = f"{self._bucket.prefix}/{folder.name}/{shard.file}"
            item = ArchivedObject(key=key, size_bytes=shard.size_bytes, sha256=shard.sha256)
            self._bucket.read_back(item, folder / shard.file)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(read, range(len(manifest.shards))))
        (folder / COMMITTED_NAME).write_bytes(content)
        self._say("brought", step=step, bytes=sum(shard.size_bytes for shard in manifest.shards))
        return manifest


def places_of(config: ArchiveConfig, s3: Any, work: Path, say: Callable[..., None]) -> Places:
    """Return the places of the archive's inputs: the pod's mounts, or folders of `work`, the data's brought from S3."""
    if not config.shared_tier:
        return Places()
    data = work / "data"
    _bring_held_out(bucket_at(s3, config.data_source, say), data)
    return Places(shared=work / "brought", data=data)


def bucket_at(s3: Any, url: str, say: Callable[..., None]) -> ArchiveBucket:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return ArchiveBucket(s3, bucket, prefix, say)


def _bring_held_out(bucket: ArchiveBucket, data: Path) -> None:
    """Bring what an evaluation needs: manifest, tokenizer and held-out split. Their readers compare the digests."""

    def bring(name: str) -> bytes:
        content = bucket.get(name)
        if content is None:
            raise PermanentError("a file of the data is not in S3", seen=bucket.place_of(name), cure="upload it again")
        (data / name).write_bytes(content)
        return content

    data.mkdir()
    manifest = json.loads(bring(DATA_MANIFEST_NAME))
    bring(TOKENIZER_NAME)
    for shard in manifest["validation"]:
        bring(shard["file"])
        if "index_sha256" in shard:
            bring(str(PurePosixPath(shard["file"]).with_suffix(".idx")))


class AllTiers(Source):
    """The newest sound step of both is the first one. Of the same step, the shared tier's comes first."""

    def __init__(self, shared: Source, copies: BucketSource) -> None:
        super().__init__(shared.root, shared.identity, shared.committed_step, shared._say)
        self.shared, self.copies = shared, copies
        shared.refused = copies.refused = self.refused

    def steps(self) -> list[int]:
        return [*self.shared.steps(), *self.copies.steps()]

    def candidates(self) -> Iterator[tuple[Path, Manifest]]:
        shared = self.shared.candidates()
        row = next(shared, None)
        for step in self.copies.steps():
            while row is not None and row[1].step >= step:
                yield row
                row = next(shared, None)
            # Whoever asks on has refused all that came before.
            folder = self.copies.root / step_folder(step)
            try:
                manifest = self.copies.brought(step, folder, self.shared.bans())
            except (Unsound, ValueError) as error:
                self.refuse(folder, f"its copy in S3: {error}")
            else:
                yield folder, manifest
            shutil.rmtree(folder, ignore_errors=True)
        while row is not None:
            yield row
            row = next(shared, None)


def source_of(config: ArchiveConfig, s3: Any, places: Places, work: Path, say: Callable[..., None]) -> Source:
    """Return all that the archive may choose from. `work`: a folder of the node's disk for what comes from S3."""
    root = places.shared / config.campaign
    if config.shared_tier:
        return BucketSource(config, s3, root, say)
    copies = f"s3://{config.archive_bucket}/{config.bucket_root}{copies_prefix(config.campaign, config.identity)}"
    shared = Source(root, config.identity, config.committed_step, say)
    return AllTiers(shared, BucketSource(config, s3, work / "copies" / config.campaign, say, copies))
