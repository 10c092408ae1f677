"""The commit of one rank, step by step: its background work runs, and the other ranks speak, when a test says so.

Tiers, shards and manifests are real files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.builtin.checkpoint.saved_steps import TinyEngine, Told
from trainer.builtin.checkpoint import commit
from trainer.builtin.checkpoint.commit import Begun, Committer, ManifestIdentity, TrainingProgress
from trainer.builtin.checkpoint.fence import raise_fence
from trainer.builtin.checkpoint.neighbour import Neighbours
from trainer.builtin.checkpoint.tiers import Tier, Tiers, campaign_tiers
from trainer.contract import CheckpointConfig


class Later:
    """A worker that works when it is told to."""

    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None
        self.jobs: list[Callable[[], None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def busy(self) -> bool:
        return bool(self.jobs)

    def work(self) -> None:
        while self.jobs:
            try:
                if self.error is None:
                    self.jobs[0]()
            except BaseException as error:
                self.error = error
            del self.jobs[0]


@dataclass
class Rank:
    committer: Any
    tiers: Tiers
    engine: TinyEngine
    gang: Told
    events: list[dict[str, Any]]

    def save(self, step: int, **told: Any) -> bool:
        self.engine.step = step
        return bool(self.committer.save(self.engine, TrainingProgress(step, step * 10, step * 2, 1.5, **told)))

    def work(self) -> None:
        for worker in (self.committer._local, self.committer._shared, self.committer._keeper):
            worker.work()

    def settle(self) -> bool:
        return bool(self.committer.settle(self.gang.sums(self.committer.votes())))

    def commit(self, *steps: int) -> None:
        """Save and bring all of it as far as it goes."""
        for step in steps:
            assert self.save(step)
            for _ in range(3):
                self.work()
                self.settle()
            self.work()
            assert self.committer._failure() is None

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    @property
    def error(self) -> BaseException | None:
        found: BaseException | None = self.committer._failure()
        return found


MakeRank = Callable[..., Rank]


def ranks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    """Return what makes ranks of one campaign; their commits run in a world without power loss."""
    monkeypatch.setattr(commit, "Worker", Later)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power loss here, and a busy disk takes its time
    monkeypatch.setattr(commit, "time", SimpleNamespace(sleep=lambda seconds: None, monotonic=commit.time.monotonic))
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(commit, "emit", lambda event, **fields: events.append({"event": event, **fields}))

    def make(
        rank: int = 0,
        local_rank: int = 0,
        ranks: int = 1,
        begun: Begun = Begun(),  # noqa: B008
        attempt: int = 1,
        neighbours: Neighbours | None = None,
        **config: Any,
    ) -> Rank:
        tiers = campaign_tiers(tmp_path / "local", tmp_path / "shared", "tiny")
        gang = Told.of(rank, local_rank, ranks, others={})
        raise_fence(tiers.shared.root, attempt)
        settings = CheckpointConfig(**{"every_steps": 10, "keep_local": 2, "keep_shared": 2, **config})
        identity = ManifestIdentity("tiny", attempt, 1, "of the config", "of the data", "of the code", "of the image")
        committer = Committer(gang, tiers, settings, identity, begun, neighbours)
        return Rank(committer, tiers, TinyEngine(gang), gang, events)

    return make


def steps(tier: Tier) -> list[int]:
    return [manifest.step for manifest in tier.committed()]
