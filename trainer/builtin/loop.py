"""The training loop: step, agree, evaluate, checkpoint, until the last step or a stop request."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainer.builtin.checkpoint.commit import VOTES, Committer, TrainingProgress
from trainer.builtin.checkpoint.pace import Pace
from trainer.builtin.config import computes_together
from trainer.builtin.data.feed import Fed, Feed
from trainer.builtin.data.ledger import DataLedger, from_limbs, to_limbs
from trainer.builtin.data.reader import Reader
from trainer.builtin.engine import learning_rate
from trainer.builtin.evaluation import evaluation_loss
from trainer.builtin.gang import Gang
from trainer.builtin.heartbeat import Heartbeat, stop_requested
from trainer.builtin.tuning.garbage import collection
from trainer.builtin.watch.detectors import Seen
from trainer.builtin.watch.figures import All, Mine, pack, step_figures, unpack
from trainer.builtin.watch.overseer import Overseer, Ruling
from trainer.builtin.watch.profile import Profiler
from trainer.contract import Layout, Phase, StepFigures, TrainConfig
from trainer.errors import Interrupted, NumericError, TrainerError
from trainer.events import emit

_OWN = 9
"""Numbers that the loop exchanges besides the votes: stop, interval, digest in halves, a held-out loss and whether, a
difference from float32 and whether, and the seconds of the step before."""


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
    every: All
    held_out: float | None = None
    """Held-out loss that was evaluated since the step before."""
    rounding: float | None = None
    """Relative difference of rank 0's loss from what float32 gives, where it was looked for."""
    before_s: float = 0.0
    """Duration of the step before by rank 0's clock, equal on all ranks; 0: it trained nothing."""
    skipped: bool = False
    """Its batches were drawn, and not trained on."""


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
    overseer: Overseer
    profiler: Profiler
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
    last_loss: float = 0.0
    """Of the last step that was trained."""
    _saving_s: float = 0.0
    """Stall of a save since the last step."""
    _last_s: float = 0.0
    """Duration of the last step, if it was trained."""
    _first: bool = True
    """The next step is the first of this attempt."""

    @property
    def layout(self) -> Layout:
        return Layout.of(self.config.parallel, self.gang.world_size)

    def run(self) -> None:
        """Train to the last step. Raises `Interrupted` after a commit when any node got a stop request."""
        self.heartbeat.beat(phase=Phase.TRAINING, step=self.step, tokens=self.tokens)
        self.gang.wait_up_to(timedelta(seconds=self.config.first_step_s))
        with collection() as garbage:
            while self.step < self.config.steps:
                self._advance()
                garbage.collect_after(self.step)
        self.heartbeat.beat(phase=Phase.FINISHING)
        self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _advance(self) -> None:
        step = self._step()
        if self._first:
            self.gang.wait_up_to(timedelta(seconds=self.config.collective_timeout_s))
            self._first = False
        self.committer.make_ready(self.engine)
        self._report(step)
        decision = self._watch(step)
        self._evaluate()
        self._checkpoint(step, decision)
        self._follow(step, decision)

    def _step(self) -> Stepped:
        start_s = time.monotonic()
        wait_before_s = self.feed.wait_seconds
        fed = self.feed.next()
        wait_before_s = self.feed.wait_seconds - wait_before_s
        assert fed.position == self.position
        self.profiler.step_begins(self.step + 1)
        skips_step = self.overseer.skips(self.step + 1)
        if not skips_step:
            replay = self.overseer.replay(self.step + 1, fed)
            if replay.end is not None:
                self._keep_what_is_written()
                self.overseer.leave(replay.end)
        rate = learning_rate(self.step, self.config.steps, self.config.optimizer)
        rate *= self.overseer.watch.rate_factor(self.step)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.step += 1
        self.position += self.config.global_batch
        self.tokens += self.config.tokens_per_step()
        rounding = None if skips_step else self.overseer.rounding(self.step, fed)
        figures = Mine(entropy=fed.entropy) if skips_step else self.overseer.compute(fed)
        figures.rounding = rounding
        figures.parts |= {"data": wait_before_s, "checkpoint": self._saving_s}
        self._saving_s = 0.0
        step = self._agree(figures, start_s, fed.digest, rate)
        if not step.finite:
            step = self._recompute(step, fed, start_s)
        return self._accept(replace(step, skipped=skips_step))

    def _agree(self, figures: Mine, start_s: float, digest: int, rate: float) -> Stepped:
        """Exchange a step's figures, once."""
        engine_norm = self.engine.get_global_grad_norm()
        norm = None if engine_norm is None else float(engine_norm)
        figures.finite = math.isfinite(figures.loss) and (norm is None or math.isfinite(norm))
        held_out = self.evaluations.get(self.step - 1) if self.gang.first else None
        # Only rank 0 sets the interval, the held-out loss and the time: the others add 0 to the sum.
        interval = float(self.pace.every if self.gang.first else 0)
        tail = [float(held_out is not None), held_out or 0.0]
        tail += [float(figures.rounding is not None), figures.rounding or 0.0, self._last_s if self.gang.first else 0.0]
        votes = self.committer.votes()
        assert len(votes) == VOTES
        # Of ranks that read the same sequences, one tells them.
        counted_digest = digest if self.layout.leads(self.gang.rank) else 0
        figures.others = [float(stop_requested(self.run_folder)), interval, *to_limbs(counted_digest), *tail, *votes]
        everyone = self.gang.world_size
        result = unpack(self.gang.sums(pack(figures, self.gang.rank, everyone)), figures, everyone)
        stops, interval, low, high, evaluation_count, held_out, roundings, rounding, before_s = result.others[:_OWN]
        self.every = int(interval)
        return Stepped(
            loss=result.loss,
            finite=result.finite,
            stop=stops > 0,
            seconds=time.monotonic() - start_s,
            samples=from_limbs(low, high),
            data_wait=figures.parts.get("data", 0.0),
            rate=rate,
            norm=norm,
            every=result,
            held_out=held_out if evaluation_count else None,
            rounding=rounding if roundings else None,
            before_s=before_s,
        )

    def _recompute(self, step: Stepped, fed: Fed, start_s: float) -> Stepped:
        """Compute a step once more whose loss or gradient was not finite: DeepSpeed has left the weights as they were.
        Raises `NumericError` when it is not finite again."""
        location = self.overseer.not_finite(self.step, step.every, is_replay=False)
        repeats = not self.engine.was_step_applied()
        if repeats:
            step = self._agree(self.overseer.compute(fed), start_s, fed.digest, step.rate)
        if not step.finite:
            location = self.overseer.not_finite(self.step, step.every, is_replay=True)
            self._keep_what_is_written()
            detail = f"step {self.step}, loss {step.loss}, {location}{', again when computed again' if repeats else ''}"
            raise NumericError("loss or gradient is not finite", detail)
        return step

    def _accept(self, step: Stepped) -> Stepped:
        self.ledger.add(self.step, self.position - self.config.global_batch, step.samples)
        self.committer.settle(list(step.every.others[_OWN:]))
        self._keep_pace(step)
        self._last_s = 0.0 if step.skipped else step.seconds
        if step.skipped:
            return replace(step, loss=self.last_loss)
        self.last_loss = step.loss
        return step

    def _watch(self, step: Stepped) -> Ruling:
        """Judge the step by what all ranks agreed on; the decision is equal on all."""
        if step.skipped or self.step == self.config.steps:
            return Ruling()
        figures, groups = step.every, self.overseer.signals.groups
        signals = Seen(
            step=self.step,
            loss=step.loss,
            rate=step.rate,
            norm=step.norm,
            layers=tuple(zip(groups, figures.layers, strict=False)) if any(figures.layers) else (),
            weights=tuple(zip(groups, figures.weights, strict=False)) if any(figures.weights) else (),
            activation=figures.activation or None,
            entropy=figures.entropy or None,
            held_out=step.held_out,
            rounding=step.rounding,
        )
        return self.overseer.judge(signals, figures, step.before_s)

    def _follow(self, step: Stepped, decision: Ruling) -> None:
        if decision.end is None:
            return
        if decision.commit and self.saved_step != self.step:
            self._commit_now(step)
        else:
            self._keep_what_is_written()
        self.overseer.leave(decision.end)

    def _keep_what_is_written(self) -> None:
        """Commit the checkpoint that is being written: it is of an earlier, finite step. All ranks come here at the
        same step; a failure of it must not hide why the training ends."""
        self.heartbeat.beat(phase=Phase.SAVING)
        with suppress(TrainerError):
            self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _keep_pace(self, step: Stepped) -> None:
        if not self.gang.first:
            return
        writing, measurements = self.committer.writing(), self.committer.measured
        self.pace.add_step(step.seconds, writing)
        if not writing and measurements.write_s is not None:
            self.pace.finish_save(measurements.write_s, measurements.shared_s)

    def _due(self) -> bool:
        """Return whether to save now; a fixed interval goes by the step's number, so that two runs of one spec save at
        equal steps."""
        if self.config.checkpoint.measured:
            return self.step - self.saved_step >= self.every
        return self.step % self.config.checkpoint.every_steps == 0

    def _report(self, step: Stepped) -> None:
        figures = self._figures(step)
        if self.gang.first_on_node:
            emit(
                "skipped_step" if step.skipped else "step",
                step=self.step,
                loss=step.loss,
                tokens=self.tokens,
                seconds=round(step.seconds, 4),
                samples=f"{step.samples:016x}",
                data_wait=round(step.data_wait, 4),
                rate=step.rate,
                norm=step.norm,
                **figures.model_dump(exclude={"rate", "norm"}, exclude_none=True),
            )
        self.heartbeat.beat(
            phase=Phase.TRAINING,
            step=self.step,
            tokens=self.tokens,
            loss=step.loss,
            step_seconds=step.seconds,
            data_wait_seconds=self.feed.wait_seconds,
            committed_step=self.committer.committed_step,
            figures=figures,
            alarms=self.overseer.watch.alarms,
        )

    def _figures(self, step: Stepped) -> StepFigures:
        tokens, groups = self.config.tokens_per_step(), self.overseer.signals.groups
        arguments = (step.every, step.seconds, step.rate, step.norm)
        return step_figures(*arguments, groups, tokens, self.overseer.utilisation)

    def _evaluate(self) -> None:
        if self.step % self.config.evaluate_every and self.step != self.config.steps:
            return
        self.heartbeat.beat(phase=Phase.EVALUATING)
        self.evaluations = {self.step: None}
        all_ranks = computes_together(self.config)
        if not (all_ranks or self.gang.first):
            return
        start_s = time.monotonic()
        model = self.engine if all_ranks else self.engine.module
        loss = evaluation_loss(model, self.reader, self.config, self.engine.device)
        if self.gang.first:
            self.evaluations = {self.step: loss}
            emit("evaluated", step=self.step, loss=loss, seconds=round(time.monotonic() - start_s, 3))

    def _checkpoint(self, step: Stepped, decision: Ruling) -> None:
        is_last = self.step == self.config.steps
        if decision.end is not None:
            return
        if step.stop and not is_last:
            self._commit_now(step)
            raise Interrupted("asked to stop", f"committed step {self.step}")
        if is_last or decision.save or self._due():
            self.heartbeat.beat(phase=Phase.SAVING)
            if is_last:
                self.committer.drain(replicate=False)
            if self.committer.save(self.engine, self._progress(step), self.overseer.watch.state()):
                self.saved_step, self._saving_s = self.step, self.committer.measured.stall_s
                self.pace.begin_save(self.committer.measured.stall_s)

    def _commit_now(self, step: Stepped) -> None:
        """Commit the finished step on both tiers."""
        self.heartbeat.beat(phase=Phase.SAVING)
        self.committer.drain(replicate=False)
        self.committer.save(self.engine, self._progress(step), self.overseer.watch.state())
        self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _progress(self, step: Stepped) -> TrainingProgress:
        held_out = self.evaluations.get(self.step)
        return TrainingProgress(self.step, self.tokens, self.position, step.loss, held_out, self.ledger.rows)
