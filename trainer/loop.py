"""The training loop: step, agree, evaluate, checkpoint, until the last step or a stop request."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.commit import VOTES, Committer, TrainingProgress
from trainer.checkpoint.pace import Pace
from trainer.contract import Phase, TrainConfig
from trainer.data.feed import Feed
from trainer.data.ledger import DataLedger, from_limbs, to_limbs
from trainer.data.reader import Reader
from trainer.errors import Interrupted, NumericError, TrainerError
from trainer.evaluation import evaluation_loss
from trainer.events import emit
from trainer.gang import Gang
from trainer.heartbeat import Heartbeat, stop_requested
from trainer.schedule import learning_rate


@dataclass(frozen=True)
class Stepped:
    """Results of a step, known to all ranks but for `data_wait`."""

    loss: float
    """Mean over all ranks."""
    finite: bool
    stop: bool
    seconds: float
    samples: int
    """Digest of the sequences that all ranks consumed."""
    data_wait: float
    """Seconds that this rank waited for data."""
    rate: float
    """Learning rate."""
    norm: float | None
    """Norm of all gradients before clipping; None where DeepSpeed knows none."""


@dataclass
class Loop:
    config: TrainConfig
    gang: Gang
    engine: Any
    reader: Reader
    feed: Feed
    ledger: DataLedger
    committer: Committer
    heartbeat: Heartbeat
    run_folder: Path
    pace: Pace
    step: int = 0
    """Optimizer steps finished."""
    position: int = 0
    """Sequences consumed by all ranks."""
    tokens: int = 0
    saved_step: int = 0
    every: int = 1
    """Steps between saves, as last exchanged. Rank 0's pace may have a newer number; if rank 0 used it before the next
    exchange, it would save at another step than the others."""
    evaluations: dict[int, float | None] = field(default_factory=dict)

    def run(self) -> None:
        """Train to the last step. Raises `Interrupted` after a commit when any node got a stop request."""
        self.heartbeat.beat(phase=Phase.TRAINING, step=self.step, tokens=self.tokens)
        while self.step < self.config.steps:
            stepped = self._step()
            self.committer.make_ready(self.engine)
            self._report(stepped)
            self._evaluate()
            self._checkpoint(stepped)
        self.heartbeat.beat(phase=Phase.FINISHING)
        self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _step(self) -> Stepped:
        started = time.monotonic()
        rate = learning_rate(self.step, self.config.steps, self.config.optimizer)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        loss, waited = 0.0, self.feed.wait_seconds
        fed = self.feed.next()
        waited = self.feed.wait_seconds - waited
        assert fed.position == self.position
        for tokens in fed.micro_batches:
            part = self.engine(torch.from_numpy(tokens).to(self.engine.device))
            self.engine.backward(part)
            self.engine.step()
            loss += float(part.detach()) / len(fed.micro_batches)
        self.step += 1
        self.position += self.config.global_batch
        self.tokens += self.config.tokens_per_step()
        return self._agree(loss, started, fed.digest, waited, rate)

    def _agree(self, loss: float, started: float, digest: int, waited: float, rate: float) -> Stepped:
        known = self.engine.get_global_grad_norm()
        norm = None if known is None else float(known)
        finite = math.isfinite(loss) and (norm is None or math.isfinite(norm))
        # Only rank 0 sets the interval: the others add 0 to the sum.
        every = float(self.pace.every if self.gang.first else 0)
        mine = [loss, float(finite), float(stop_requested(self.run_folder)), every, *to_limbs(digest)]
        mine += self.committer.votes()
        total, finites, stops, every, low, high, *votes = self.gang.sums(mine)
        self.every = int(every)
        assert len(votes) == VOTES
        everyone = self.gang.world_size
        seconds, samples = time.monotonic() - started, from_limbs(low, high)
        stepped = Stepped(total / everyone, finites == everyone, stops > 0, seconds, samples, waited, rate, norm)
        if not stepped.finite:
            emit("not_finite", step=self.step, loss=repr(stepped.loss), norm=repr(norm))
            self._keep_what_is_written()
            raise NumericError("loss or gradient is not finite", f"step {self.step}, loss {stepped.loss}")
        self.ledger.add(self.step, self.position - self.config.global_batch, samples)
        self.committer.settle(votes)
        self._keep_pace(stepped)
        return stepped

    def _keep_what_is_written(self) -> None:
        """Commit the checkpoint that is being written: it is of an earlier, finite step. All ranks come here at the
        same step; a failure of it must not hide why the training ends."""
        self.heartbeat.beat(phase=Phase.SAVING)
        with suppress(TrainerError):
            self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _keep_pace(self, stepped: Stepped) -> None:
        if not self.gang.first:
            return
        writing, measured = self.committer.writing(), self.committer.measured
        self.pace.stepped(stepped.seconds, writing)
        if not writing and measured.write_s is not None:
            self.pace.committed(measured.write_s, measured.shared_s)

    def _due(self) -> bool:
        """Return whether to save now; a fixed interval goes by the step's number, so that two runs of one spec save at
        equal steps."""
        if self.config.checkpoint.measured:
            return self.step - self.saved_step >= self.every
        return self.step % self.config.checkpoint.every_steps == 0

    def _report(self, stepped: Stepped) -> None:
        if self.gang.first_on_node:
            emit(
                "step",
                step=self.step,
                loss=stepped.loss,
                tokens=self.tokens,
                seconds=round(stepped.seconds, 4),
                samples=f"{stepped.samples:016x}",
                data_wait=round(stepped.data_wait, 4),
                rate=stepped.rate,
                norm=stepped.norm,
            )
        self.heartbeat.beat(
            phase=Phase.TRAINING,
            step=self.step,
            tokens=self.tokens,
            loss=stepped.loss,
            step_seconds=stepped.seconds,
            data_wait_seconds=self.feed.wait_seconds,
            committed_step=self.committer.committed_step,
        )

    def _evaluate(self) -> None:
        if self.step % self.config.evaluate_every and self.step != self.config.steps:
            return
        self.heartbeat.beat(phase=Phase.EVALUATING)
        self.evaluations = {self.step: None}
        # With ZeRO stage 3 no rank holds whole weights: all compute, on the same batches.
        together = self.config.zero_stage == 3
        if not (together or self.gang.first):
            return
        started = time.monotonic()
        model = self.engine if together else self.engine.module
        loss = evaluation_loss(model, self.reader, self.config, self.engine.device)
        if self.gang.first:
            self.evaluations = {self.step: loss}
            emit("evaluated", step=self.step, loss=loss, seconds=round(time.monotonic() - started, 3))

    def _checkpoint(self, stepped: Stepped) -> None:
        last = self.step == self.config.steps
        if stepped.stop and not last:
            self._stop(stepped)
        if last or self._due():
            self.heartbeat.beat(phase=Phase.SAVING)
            if last:
                self.committer.drain(replicate=False)
            if self.committer.save(self.engine, self._progress(stepped)):
                self.saved_step = self.step
                self.pace.saved(self.committer.measured.stall_s)

    def _stop(self, stepped: Stepped) -> None:
        """Commit the finished step on both tiers and raise `Interrupted`."""
        self.heartbeat.beat(phase=Phase.SAVING)
        self.committer.drain(replicate=False)
        self.committer.save(self.engine, self._progress(stepped))
        self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)
        raise Interrupted("asked to stop", f"committed step {self.step}")

    def _progress(self, stepped: Stepped) -> TrainingProgress:
        evaluated = self.evaluations.get(self.step)
        return TrainingProgress(self.step, self.tokens, self.position, stepped.loss, evaluated, self.ledger.rows)
