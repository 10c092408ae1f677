"""The commit: ranks write beside the training, and a step is published only when all of them are durable.

The loop calls `save` when a step is due and `settle` at every step boundary with what all ranks voted. Nothing here
waits for a disk except `drain`, at the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import torch

from trainer.checkpoint.deepspeed_engine import HostCopyEngine, Snapshot
from trainer.checkpoint.fence import check_fence
from trainer.checkpoint.files import copy_durably, durable
from trainer.checkpoint.tiers import Tiers, attempt_folder
from trainer.checkpoint.worker import Worker
from trainer.contract import CheckpointConfig, Manifest, Shard
from trainer.errors import Diverged, PeerLost, StorageError, TrainerError
from trainer.events import emit
from trainer.gang import Gang

VOTES = 4
_DRAIN_POLL_S = 0.05


@dataclass(frozen=True)
class Progress:
    """Where training stands after a step; what a manifest says besides its shards."""

    step: int
    tokens: int
    position: int
    loss: float
    evaluation_loss: float | None = None


@dataclass(frozen=True)
class Identity:
    """What is the same in every manifest of an attempt."""

    campaign: str
    attempt: int
    zero_stage: int
    config_digest: str
    data_digest: str
    code_digest: str
    image_digest: str


class Committer:
    """Saves, commits, replicates and retains checkpoints of one rank."""

    def __init__(self, gang: Gang, tiers: Tiers, config: CheckpointConfig, identity: Identity, proven: int) -> None:
        self._gang, self._tiers, self._config, self._identity = gang, tiers, config, identity
        self._local, self._shared = Worker("checkpoint-local"), Worker("checkpoint-shared")
        self._pending: Progress | None = None
        self._written: tuple[Shard, ...] | None = None
        self._replicating: Manifest | None = None
        self._copied = False
        self._newest: Manifest | None = None
        self._proven = proven
        self.committed_step = proven
        """Newest step published on this node; -1 before the first."""

    def save(self, engine: Any, progress: Progress) -> bool:
        """Begin a checkpoint: blocks for the copy to the host only. False when the previous one is still on its way."""
        if self._pending is not None:
            self._report("save_skipped", step=progress.step, why=f"step {self._pending.step} is still being written")
            return False
        started = time.monotonic()
        folder = attempt_folder(self._identity.attempt)
        step_root = self._tiers.local.folder(progress.step)
        engine.save_checkpoint(str(step_root), tag=folder, save_latest=False)
        checkpoint_engine: HostCopyEngine = engine.checkpoint_engine
        state = Snapshot(step_root / folder / f"rng_rank_{self._gang.rank:05d}.pt", rng_state())
        snapshots = [*checkpoint_engine.take(), state]
        self._pending, self._written = progress, None
        self._local.submit(lambda: self._write(step_root, snapshots))
        self._report("saving", step=progress.step, stall_seconds=round(time.monotonic() - started, 4))
        return True

    def votes(self) -> list[float]:
        """This rank's part of the next exchange; `VOTES` numbers that are summed over all ranks."""
        idle = self._pending is None and self._replicating is None
        return [
            float(self._pending is not None and self._written is not None),
            float(self._replicating is not None and self._copied),
            float(idle and not self._local.busy() and not self._shared.busy()),
            float(self._failure() is not None),
        ]

    def settle(self, tally: list[float]) -> bool:
        """Act on the summed votes, the same on every rank; True when nothing is on its way anywhere.

        Raises this rank's own error of the background work, `PeerLost` for another's, and `Diverged`.
        """
        written, copied, idle, failed = tally
        if failed:
            raise self._failure() or PeerLost("another rank could not write its checkpoint", f"{int(failed)} ranks")
        everyone = self._gang.world_size
        if copied == everyone:
            self._finish_replication()
        if written == everyone:
            self._commit()
        return idle == everyone

    def drain(self, replicate: bool) -> None:
        """Wait until all background work has ended, with `replicate` also that of the newest commit to `shared`."""
        while True:
            idle = self.settle(self._gang.sums(self.votes()))
            newest = self._newest if replicate and not self._replicating and not self._pending else None
            if newest is not None and newest.step > self._proven:
                self._replicate(newest)
            elif idle:
                return
            time.sleep(_DRAIN_POLL_S)

    def _write(self, step_root: Path, snapshots: list[Snapshot]) -> None:
        shards = []
        for snapshot in snapshots:
            with durable(snapshot.path) as file:
                torch.save(snapshot.state, cast(IO[bytes], file))
            name = snapshot.path.relative_to(step_root).as_posix()
            shards.append(Shard(file=name, size_bytes=file.size_bytes, sha256=file.sha256(), rank=self._gang.rank))
        self._written = tuple(shards)

    def _commit(self) -> None:
        progress, mine = self._pending, self._written
        assert progress is not None and mine is not None
        evaluations, shards = zip(*self._gang.gather((progress.evaluation_loss, mine)), strict=True)
        manifest = self._manifest(replace(progress, evaluation_loss=evaluations[0]), _merge(shards))
        self._pending, self._newest = None, manifest
        if self._gang.first_on_node:
            self._local.submit(lambda: self._publish_local(manifest))
        due = (progress.step // self._config.every_steps) % self._config.shared_every == 0
        if due and self._replicating is None:
            self._replicate(manifest)

    def _publish_local(self, manifest: Manifest) -> None:
        check_fence(self._tiers.shared.root, self._identity.attempt)
        self._tiers.local.publish(manifest)
        self.committed_step = manifest.step
        emit("committed", step=manifest.step, tier="local", shards=len(manifest.shards))
        self._tiers.local.drop_other_attempts(manifest)
        replicating = self._replicating
        protected = {self._proven, *([replicating.step] if replicating else [])}
        self._tiers.local.retain(self._config.keep_local, manifest.step, protected)

    def _replicate(self, manifest: Manifest) -> None:
        self._replicating, self._copied = manifest, False
        self._shared.submit(lambda: self._copy(manifest))

    def _copy(self, manifest: Manifest) -> None:
        check_fence(self._tiers.shared.root, self._identity.attempt)
        source, target = (tier.folder(manifest.step) for tier in self._tiers)
        for shard in manifest.shards:
            if shard.rank == self._gang.rank:
                copy_durably(source / shard.file, target / shard.file, _accept(shard))
        self._copied = True

    def _finish_replication(self) -> None:
        manifest = self._replicating
        assert manifest is not None
        self._replicating, self._proven = None, manifest.step
        if self._gang.first:
            self._shared.submit(lambda: self._publish_shared(manifest))

    def _publish_shared(self, manifest: Manifest) -> None:
        check_fence(self._tiers.shared.root, self._identity.attempt)
        self._tiers.shared.publish(manifest)
        emit("committed", step=manifest.step, tier="shared", shards=len(manifest.shards))
        self._tiers.shared.drop_other_attempts(manifest)
        self._tiers.shared.retain(self._config.keep_shared, manifest.step, {manifest.step})

    def _manifest(self, progress: Progress, shards: tuple[Shard, ...]) -> Manifest:
        return Manifest(**vars(self._identity), **vars(progress), world_size=self._gang.world_size, shards=shards)

    def _failure(self) -> TrainerError | None:
        error = self._local.error or self._shared.error
        if error is None or isinstance(error, TrainerError):
            return error
        return StorageError("a checkpoint could not be written", repr(error), "mend or enlarge the tier's storage")

    def _report(self, event: str, **fields: object) -> None:
        if self._gang.first:
            emit(event, **fields)


def rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _merge(by_rank: tuple[tuple[Shard, ...], ...]) -> tuple[Shard, ...]:
    """Every file once: a file that several nodes wrote (the model states) must have come out the same everywhere."""
    merged: dict[str, Shard] = {}
    for shard in (shard for shards in by_rank for shard in shards):
        known = merged.setdefault(shard.file, shard)
        if known.sha256 != shard.sha256:
            raise Diverged(
                "ranks that must hold equal state wrote different bytes",
                f"{shard.file}: rank {known.rank} {known.sha256[:12]}, rank {shard.rank} {shard.sha256[:12]}",
                "suspect the hardware of one of them; restart from the last committed checkpoint",
            )
    return tuple(merged.values())


def _accept(shard: Shard) -> Any:
    def accept(seen: str) -> None:
        if seen != shard.sha256:
            raise StorageError("a shard changed on the local tier", f"{shard.file}: {seen}, wanted {shard.sha256}")

    return accept
