"""The commit: ranks write beside the training, and a step is published once all ranks' files are durable.

The loop calls `save` when a step is due, and `settle` after every step with the votes of all ranks. Only `drain`, at
the end, waits for a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from trainer.builtin.checkpoint.deepspeed_engine import HostCopyEngine, Snapshot
from trainer.builtin.checkpoint.fence import check_fence
from trainer.builtin.checkpoint.frozen_weights import READ_BACK_EVERY
from trainer.builtin.checkpoint.neighbour import Neighbours, keep_for
from trainer.builtin.checkpoint.room import state_bytes, with_room
from trainer.builtin.checkpoint.tiers import AnyTiers, KeptLimits, SharedTier
from trainer.builtin.checkpoint.writing import Unchanged, Worker, Writing, merge, random_state_of, rng_state
from trainer.builtin.gang import Gang
from trainer.contract import CheckpointConfig, Consumed, Manifest, ParallelConfig, Shard, attempt_folder
from trainer.errors import Diverged, PeerLost, StorageError, TrainerError, storage_error
from trainer.events import emit

VOTES = 4
_DRAIN_POLL_S = 0.05


@dataclass(frozen=True)
class TrainingProgress:
    """The state of training after a step, for the manifest."""

    step: int
    tokens: int
    position: int
    loss: float
    evaluation_loss: float | None = None
    consumed: tuple[Consumed, ...] = ()


@dataclass(frozen=True)
class ManifestIdentity:
    """The fields that are equal in every manifest of an attempt."""

    campaign: str
    attempt: int
    zero_stage: int
    config_digest: str
    data_digest: str
    code_digest: str
    image_digest: str
    identity: str = ""
    """The campaign's identity beyond its name."""
    parallel: ParallelConfig | None = None
    """None where all ranks compute different data."""
    generation: int = 0


@dataclass(frozen=True)
class Begun:
    """The checkpoint that an attempt begins with; none at the campaign's start."""

    manifest: Manifest | None = None
    on_shared: bool = False
    """The shared tier holds this checkpoint, too."""
    watch: str = ""
    """State of the watch; empty where the checkpoint has none."""

    @property
    def step(self) -> int:
        return self.manifest.step if self.manifest else -1


@dataclass
class Measured:
    """Durations of this rank's last save, in seconds."""

    stall_s: float = 0.0
    copy_s: float = 0.0
    """The copy to the host, a part of the stall."""
    write_s: float | None = None
    """From the end of the stall until the step is committed on this node."""
    shared_s: float = 0.0
    """Copying this rank's shards to the shared tier and reading them back."""


class Committer:
    """Saves, commits, replicates and retains checkpoints of one rank."""

    def __init__(
        self,
        gang: Gang,
        tiers: AnyTiers,
        config: CheckpointConfig,
        identity: ManifestIdentity,
        start: Begun,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._gang, self._tiers, self._config, self._identity = gang, tiers, config, identity
        self._local, self._shared = Worker("checkpoint-local"), Worker("checkpoint-shared")
        self._keeper, self._neighbours = Worker("checkpoint-neighbour"), neighbours
        self._pending: TrainingProgress | None = None
        self._manifested: Manifest | None = None
        self._replicating: Manifest | None = None
        self._copied = False
        self._unchanged, self._on_shared = Unchanged(), start.manifest if start.on_shared else None
        if start.manifest is not None and self._has_written(start.manifest):
            self._unchanged.adopt(start.manifest, tiers.local.folder(start.step))
        self._newest, self._began = start.manifest, start.step
        self._saves, self._ready, self._skipped_for = 0, False, -1
        self.measured = Measured()
        self._proven = start.step
        self._shared_step = start.step if start.on_shared else -1
        self.committed_step = start.step
        """Newest step published on this node; -1 before the first."""
        if start.manifest is not None and not start.on_shared:
            # Only the nodes hold it. If it is the last step, no later save would bring it to the shared tier.
            self._replicate(start.manifest)

    def _has_written(self, manifest: Manifest) -> bool:
        """Return whether ranks of this layout wrote a step: another one's parts of frozen weights are others."""
        return (manifest.world_size, manifest.parallel) == (self._gang.world_size, self._identity.parallel)

    def make_ready(self, engine: Any) -> None:
        """Allocate host buffers beside the training, once, after a step: some optimizers have no state before it."""
        if not self._ready:
            self._ready = True
            self._local.submit(engine.checkpoint_engine.foresee(engine))

    def save(self, engine: Any, progress: TrainingProgress, watch: str = "") -> bool:
        """Begin a checkpoint; block only for the copy to the host. Return False while the last one is being written.

        `watch`: state that lies beside this rank's random state."""
        if self._pending is not None:
            if self._skipped_for != self._pending.step:
                self._skipped_for = self._pending.step
                self._report("save_skipped", step=progress.step, why=f"step {self._skipped_for} is still being written")
            return False
        start_s = time.monotonic()
        folder = attempt_folder(self._identity.attempt)
        step_root = self._tiers.local.folder(progress.step)
        copying: HostCopyEngine = engine.checkpoint_engine
        state = Snapshot(step_root / folder / random_state_of(self._gang.rank), rng_state(watch))
        snapshots = [*copying.collect(engine, step_root, folder), state]
        self._pending, self._manifested = progress, None
        self._local.submit(lambda: self._write(progress, snapshots, copying))
        self.measured.stall_s, self.measured.copy_s = time.monotonic() - start_s, copying.copy_s
        stall_s, copy_s = (round(seconds, 4) for seconds in (self.measured.stall_s, copying.copy_s))
        self._report("saving", step=progress.step, stall_seconds=stall_s, copy_seconds=copy_s)
        return True

    def writing(self) -> bool:
        """Return whether a checkpoint is being written or replicated, or between the two."""
        on_its_way = self._pending is not None or self._replicating is not None
        return on_its_way or any(worker.busy() for worker in (self._local, self._shared, self._keeper))

    def votes(self) -> list[float]:
        """Return this rank's part of the next exchange: `VOTES` numbers that are summed over all ranks."""
        idle = self._pending is None and self._replicating is None
        return [
            float(self._pending is not None and self._manifested is not None),
            float(self._replicating is not None and self._copied),
            float(idle and not self.writing()),
            float(self._failure() is not None),
        ]

    def settle(self, tally: list[float]) -> bool:
        """Act on the summed votes, which are equal on every rank. Return whether all ranks are idle.

        Raises this rank's error of the background work, `PeerLost` for another rank's, and `Diverged`.
        """
        written_count, copied_count, idle, failures = tally
        if failures:
            raise self._failure() or PeerLost("another rank could not write its checkpoint", f"{int(failures)} ranks")
        everyone = self._gang.world_size
        if copied_count == everyone:
            self._finish_replication()
        if written_count == everyone:
            self._commit()
        return idle == everyone

    def drain(self, replicate: bool) -> None:
        """Wait for all background work; with `replicate` also for the newest commit's copy on the shared tier."""
        while True:
            idle = self.settle(self._gang.sums(self.votes()))
            newest = self._newest if replicate and not self._replicating and not self._pending else None
            if newest is not None and newest.step > self._shared_step:
                self._replicate(newest)
            elif idle:
                return
            time.sleep(_DRAIN_POLL_S)

    def _write(self, progress: TrainingProgress, snapshots: list[Snapshot], copying: HostCopyEngine) -> None:
        """Write this rank's files, wait for the other ranks', and commit the step on this node."""
        start_s = time.monotonic()
        copying.copies.wait()
        local, step = self._tiers.local, progress.step
        shards = []
        for snapshot in snapshots:
            name = snapshot.path.relative_to(local.folder(step)).as_posix()
            shard = self._unchanged.link(snapshot, name, self._gang.rank)
            if shard is None:
                writing = Writing(snapshot, name, self._gang.rank)
                self._make_room_for(local, state_bytes(snapshot.state), writing.write)
                shard = writing.shard()
            self._unchanged.remember(snapshot, shard)
            shards.append(shard)
        local.settle(step)
        everyone = self._gang.gather_beside((step, progress.evaluation_loss, tuple(shards)))
        steps, evaluations, shards_by_rank = zip(*everyone, strict=True)
        if len(set(steps)) > 1:
            raise Diverged("ranks were about to commit different steps as one", f"steps {steps}")
        manifest = self._manifest(replace(progress, evaluation_loss=evaluations[0]), merge(shards_by_rank))
        if self._gang.first_on_node:
            self._publish_local(manifest)
        self.measured.write_s = time.monotonic() - start_s
        self._manifested = manifest

    def _make_room_for(self, tier: SharedTier, needed_bytes: int, write: Callable[[], None]) -> None:
        with_room(tier, needed_bytes, lambda: self._reclaim(tier), write)

    def _reclaim(self, tier: SharedTier) -> list[int]:
        """Drop everything from a full tier but the newest committed checkpoint and those in progress."""
        check_fence(self._tiers.shared.marks, self._identity.attempt)
        under_way = (self._pending, self._replicating, self._newest)
        keep = {self._proven, *(item.step for item in under_way if item is not None)}
        return tier.reclaim(keep, self._identity.attempt, self._began)

    def _commit(self) -> None:
        """Allow the next save and replicate this one: every node has published the step."""
        progress, manifest = self._pending, self._manifested
        assert progress is not None and manifest is not None
        self._pending, self._newest = None, manifest
        self._saves += 1
        if self._gang.first_on_node:
            reads_back = self._saves % READ_BACK_EVERY == 0
            self._keeper.submit(lambda: self._keep_predecessor(manifest, reads_back))
        count = self._saves if self._config.measured else progress.step // self._config.every_steps
        if count % self._config.shared_every == 0:
            self._replicate_or_say(manifest)

    def _keep_predecessor(self, manifest: Manifest, reads_back: bool) -> None:
        """Copy the neighbour's shards, without making room for them. An error here ends nothing."""
        server = self._neighbours.predecessor if self._neighbours else None
        if server is None or not self._config.neighbour:
            return
        start_s = time.monotonic()
        try:
            fetched_bytes = keep_for(server, manifest, self._tiers.local, reads_back)
            seconds = round(time.monotonic() - start_s, 3)
            emit("kept_neighbour", step=manifest.step, of_node=server.node, bytes=fetched_bytes, seconds=seconds)
        except (OSError, StorageError) as error:
            emit("neighbour_not_kept", step=manifest.step, of_node=server.node, why=str(error)[:300])

    def _publish_local(self, manifest: Manifest) -> None:
        self._publish(self._tiers.local, manifest)
        self.committed_step = manifest.step
        replicating = self._replicating
        pins = {self._proven, *([replicating.step] if replicating else [])}
        self._retain(self._tiers.local, self._config.keep_local, manifest, pins)

    def _publish(self, tier: SharedTier, manifest: Manifest) -> None:
        attempt = self._identity.attempt
        check_fence(self._tiers.shared.marks, attempt)
        size = len(manifest.serialize())
        self._make_room_for(tier, size, lambda: tier.publish(manifest, attempt))
        emit("committed", step=manifest.step, tier=tier.name, shards=len(manifest.shards))

    def _retain(self, tier: SharedTier, keep: int, manifest: Manifest, pins: set[int]) -> None:
        # Check again: a rank that slept since its commit must not remove a newer attempt's files.
        check_fence(self._tiers.shared.marks, self._identity.attempt)
        if manifest.attempt == self._identity.attempt:
            tier.drop_other_attempts(manifest)
        limits = KeptLimits(self._config.keep_hours, int(self._config.keep_free_gib * 2**30))
        tier.retain(keep, manifest.step, pins, self._identity.attempt, self._began, limits)

    def _replicate_or_say(self, manifest: Manifest) -> None:
        if self._replicating is None:
            return self._replicate(manifest)
        reason = f"step {self._replicating.step} is still being copied to the shared tier"
        self._report("replication_skipped", step=manifest.step, why=reason)

    def _replicate(self, manifest: Manifest) -> None:
        self._replicating, self._copied = manifest, False
        self._shared.submit(lambda: self._copy(manifest))

    def _copy(self, manifest: Manifest) -> None:
        """Copy this rank's shards to the shared tier and read them back."""
        start_s = time.monotonic()
        check_fence(self._tiers.shared.marks, self._identity.attempt)
        source, shared = self._tiers.local.folder(manifest.step), self._tiers.shared
        for shard in manifest.shards:
            if shard.rank == self._gang.rank:
                take = partial(shared.take, manifest.step, shard, source / shard.file, self._on_shared)
                self._make_room_for(shared, shard.size_bytes, take)
        shared.settle(manifest.step)
        self.measured.shared_s = time.monotonic() - start_s
        self._copied = True

    def _finish_replication(self) -> None:
        manifest = self._replicating
        assert manifest is not None
        self._replicating, self._proven, self._shared_step = None, manifest.step, manifest.step
        self._on_shared = manifest
        if self._gang.first:
            self._shared.submit(lambda: self._publish_shared(manifest))

    def _publish_shared(self, manifest: Manifest) -> None:
        self._publish(self._tiers.shared, manifest)
        self._retain(self._tiers.shared, self._config.keep_shared, manifest, {manifest.step})

    def _manifest(self, progress: TrainingProgress, shards: tuple[Shard, ...]) -> Manifest:
        form: Literal[4, 5] = 5 if self._identity.parallel else 4
        facts = {**vars(self._identity), **vars(progress), "world_size": self._gang.world_size}
        return Manifest(format=form, **facts, shards=shards)

    def _failure(self) -> TrainerError | None:
        error = self._local.error or self._shared.error or self._keeper.error
        if error is None or isinstance(error, TrainerError):
            return error
        cure = "repair or enlarge the tier's storage"
        return storage_error(error, "a checkpoint could not be written", repr(error), cure)

    def _report(self, event: str, **fields: object) -> None:
        if self._gang.first:
            emit(event, **fields)
