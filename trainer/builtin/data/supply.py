"""A rank's supply of data: manifest, source or cache of shards, reader, and feed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from trainer.buckets.sources import ShardSource, source_of
from trainer.builtin.data.cache import Cache
from trainer.builtin.data.feed import Feed, Share
from trainer.builtin.data.page_locked import placement_for
from trainer.builtin.data.reader import Reader, check_vocabulary, read_manifest, verify_shards
from trainer.builtin.data.staging import Stager
from trainer.builtin.gang import Gang
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, Layout, TrainConfig
from trainer.errors import DataError, unread
from trainer.place import Paths

CACHE_FOLDER = ".data-cache"
"""Folder on the node's disk, beside the campaigns' checkpoints."""


@dataclass(frozen=True)
class Supply:
    config: TrainConfig
    gang: Gang
    digest: str
    """Digest of the manifest."""
    reader: Reader
    cache: Cache | None

    @classmethod
    def open(cls, config: TrainConfig, paths: Paths, gang: Gang, session: str) -> Supply:
        """Open the data. Raises `DataError` when it is damaged or not the configuration's."""
        data, source = config.data, source_of(config.data.stream_from, paths.data)
        content = _manifest_bytes(source)
        manifest = read_manifest(content, data.manifest_digest)
        _check_fit(config, manifest)
        cache = None
        if data.cache_gib or data.stream_from:
            limit = int(data.cache_gib * 2**30)
            cache = Cache(paths.local / CACHE_FOLDER, limit, source, manifest.token_bytes, session)
        elif gang.first_on_node:
            verify_shards(paths.data, manifest)

        opener = cache.open if cache else folder_opener(paths.data)
        reader = Reader(manifest, opener, config.model.context, data.seed, data.weights, data.shuffle_blocks)
        return cls(config, gang, hashlib.sha256(content).hexdigest(), reader, cache)

    def feed(self, position: int, step: int, device: torch.device) -> Feed:
        """Return the feed of this rank's steps from `step`, whose data begins at `position`, to the last. `device`: the
        one that will read the batches."""
        config = self.config
        layout = Layout.of(config.parallel, self.gang.world_size)
        share = Share(config.global_batch, config.micro_batch, layout.data, layout.data_rank(self.gang.rank))
        end = position + (config.steps - step) * config.global_batch
        lead = (config.data.steps_ahead + 2) * config.global_batch
        stager = Stager(self.cache, self.reader, position, lead) if self.cache and self.gang.first_on_node else None
        place = placement_for(device)
        return Feed(self.reader, share, position, end, config.data.steps_ahead, stager, place)


def _manifest_bytes(source: ShardSource) -> bytes:
    try:
        return b"".join(source.read(DATA_MANIFEST_NAME))
    except OSError as error:
        detail = f"{DATA_MANIFEST_NAME} in {source}: {error.strerror or error}"
        raise unread(error, DataError("there is no prepared data", detail, "stage the prepared data")) from error


def _check_fit(config: TrainConfig, manifest: DataManifest) -> None:
    check_vocabulary(manifest, config.model.vocabulary, or_fewer=bool(config.model.name))
    splits_documents = config.model.document_attention or config.model.reset_positions
    if splits_documents and config.model.end_of_document != manifest.end_of_document:
        raise DataError(
            "model and data end documents with different tokens",
            f"model.end_of_document {config.model.end_of_document}, data {manifest.end_of_document}",
            f"set model.end_of_document to {manifest.end_of_document}",
        )
