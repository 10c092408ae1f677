"""The parts of a rank, in the order of their creation: gang, fence, data, the checkpoint to go on from, engine,
restored state, committer, loop."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from trainer.buckets.sources import ShardSource, source_of
from trainer.builtin.checkpoint.commit import Committer, ManifestIdentity
from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine
from trainer.builtin.checkpoint.fence import claim, lost_nothing
from trainer.builtin.checkpoint.frozen_weights import frozen_names
from trainer.builtin.checkpoint.neighbour import meet
from trainer.builtin.checkpoint.pace import Pace, job_mtbf_s
from trainer.builtin.checkpoint.restore import choose_start, load_start
from trainer.builtin.checkpoint.tiers import AnyTiers, campaign_tiers, tiers_in_s3
from trainer.builtin.config import config_digest, load_config
from trainer.builtin.data.cache import Cache
from trainer.builtin.data.feed import Feed, Share, placement_for
from trainer.builtin.data.ledger import DataLedger
from trainer.builtin.data.reader import Reader, check_vocabulary, read_manifest, verify_shards
from trainer.builtin.data.staging import Stager
from trainer.builtin.engine import build_engine, import_deepspeed, initialize_distributed
from trainer.builtin.gang import Gang
from trainer.builtin.heartbeat import Heartbeat
from trainer.builtin.loop import Loop
from trainer.builtin.model import parameter_count
from trainer.builtin.model.adapters import import_peft
from trainer.builtin.model.compiled import FOLDER, keep_kernels
from trainer.builtin.model.named import import_transformers
from trainer.builtin.tuning.processors import take_processors
from trainer.builtin.watch.overseer import Overseer, agreed_bans
from trainer.builtin.watch.profile import Profiler
from trainer.client.bivouac_data.reader import folder_opener
from trainer.contract import DATA_MANIFEST_NAME, DataManifest, Env, Layout, Manifest, ModelConfig, Phase, TrainConfig
from trainer.contract.checkpoint import Ban, distrust
from trainer.errors import DataError, Interrupted, StorageError, unread
from trainer.events import emit
from trainer.place import Paths, generation

CACHE_FOLDER = ".data-cache"
"""Folder on the node's disk, beside the campaigns' checkpoints."""


@dataclass(frozen=True)
class Supply:
    """A rank's data: manifest, source or cache of shards, reader, and feed."""

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


def import_ahead(model: ModelConfig) -> None:
    """Import what every rank needs, for ranks that are forked."""
    import_deepspeed()
    # Torch's optimizers import it at their first step (1.5 s).
    import torch._dynamo  # noqa: F401

    if model.name:
        import_transformers()
    if model.lora is not None:
        import_peft()


def train(paths: Paths, heartbeat: Heartbeat) -> None:
    """Run a rank from its start to its end. Raises whatever ends it early."""
    config = load_config(paths.config)
    torch.set_num_threads(take_processors(config.threads))
    initialize_distributed(config)
    gang = Gang.join(*(timedelta(seconds=seconds) for seconds in (config.collective_timeout_s, config.save_timeout_s)))
    tiers = _tiers(config, paths)
    attempt = int(os.environ[Env.ATTEMPT])
    gang.together("claim the campaign", lambda: claim(tiers.shared, attempt, generation()) if gang.first else None)
    session = f"{config.campaign}-{attempt}"
    supply = gang.together("open the data", lambda: Supply.open(config, paths, gang, session))
    heartbeat.beat(phase=Phase.RESTORING)
    neighbours = meet(gang)
    bans = agreed_bans(gang, tiers.shared)
    is_distrusted = partial(_is_distrusted, bans)
    layout = Layout.of(config.parallel, gang.world_size)
    choice = choose_start(gang, tiers, config.zero_stage, attempt, neighbours, is_distrusted, layout)
    keep_kernels(paths.local / FOLDER)
    holds_all = choice is not None and (config.model.lora is None or not choice.reshapes)
    engine = build_engine(config, gang.world_size, restores=holds_all)
    start = load_start(engine, choice)
    manifest = start.manifest
    engine.checkpoint_engine = HostCopyEngine(_refuse, frozen=frozen_names(engine.module))
    if gang.first:
        _emit_start(manifest, engine)
    heartbeat.beat(committed_step=start.step)
    identity = _identity(config, supply.digest)
    committer = Committer(gang, tiers, config.checkpoint, identity, start, neighbours)
    pace = Pace(
        every=config.checkpoint.every_steps,
        steps=config.steps,
        mtbf_s=job_mtbf_s(config, int(os.environ.get(Env.NODE_COUNT, "1")), tiers.shared.marks),
        grace_s=config.grace_s,
        fixed=not config.checkpoint.measured,
    )
    ranges = manifest.consumed if manifest else ()
    ledger = DataLedger(
        attempt, gang.world_size, config.global_batch, config.data.seed, supply.digest, ranges, generation=generation()
    )
    position = manifest.position if manifest else 0
    with supply.feed(position, manifest.step if manifest else 0, engine.device) as feed:
        overseer = Overseer(config, gang, engine, tiers.shared, attempt, bans)
        overseer.watch.restore(start.watch)
        parts = (supply.reader, feed, ledger, committer, heartbeat, paths.run, pace, overseer)
        loop = Loop(config, gang, engine, *parts, Profiler(paths.run, gang.rank))
        if manifest:
            loop.saved_step, loop.last_loss = manifest.step, manifest.loss or 0.0
            loop.evaluations = {manifest.step: manifest.evaluation_loss}
            loop.step, loop.position, loop.tokens = manifest.step, position, manifest.tokens
        # A node with an empty cache waits for its first shards, for longer than the collective of a step may last.
        gang.together("read the first step's data", feed.wait_for_first)
        try:
            loop.run()
        except Interrupted:
            if gang.first and committer.committed_step == loop.step:
                with suppress(OSError):  # without the mark it counts as a failure
                    lost_nothing(tiers.shared.marks, attempt)
            raise
    gang.barrier()


def _tiers(config: TrainConfig, paths: Paths) -> AnyTiers:
    if config.shared_tier:
        return tiers_in_s3(paths.local, config.shared_tier, config.campaign, config.identity)
    return campaign_tiers(paths.local, paths.shared, config.campaign, config.identity)


def _is_distrusted(bans: tuple[Ban, ...], manifest: Manifest) -> bool:
    return bool(distrust(bans, manifest))


def _emit_start(manifest: Any, engine: Any) -> None:
    if manifest:
        emit("restored", step=manifest.step, of_attempt=manifest.attempt, position=manifest.position)
    else:
        emit("started_fresh", step=0, parameters=parameter_count(engine.module))


def _identity(config: TrainConfig, data_digest: str) -> ManifestIdentity:
    return ManifestIdentity(
        campaign=config.campaign,
        attempt=int(os.environ[Env.ATTEMPT]),
        zero_stage=config.zero_stage,
        parallel=config.parallel if Layout.of(config.parallel, 1).splits else None,
        config_digest=config_digest(config),
        data_digest=data_digest,
        code_digest=os.environ.get(Env.CODE_DIGEST, ""),
        image_digest=os.environ.get(Env.IMAGE_DIGEST, ""),
        identity=config.identity,
        generation=generation(),
    )


def _refuse(path: Path, file: BufferedReader) -> None:
    raise StorageError("a checkpoint load outside the restore", path)
