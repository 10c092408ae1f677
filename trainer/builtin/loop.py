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
from trainer.builtin.tuning.garbage import collected
from trainer.builtin.watch.detectors import Seen
from trainer.builtin.watch.figures import All, Mine, pack, step_figures, unpack
from trainer.builtin.watch.overseer import Decision, Overseer
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
        with collected() as garbage:
            while self.step < self.config.steps:
                self._advance()
                garbage.after(self.step)
        self.heartbeat.beat(phase=Phase.FINISHING)
        self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _advance(self) -> None:
        stepped = self._step()
        if self._first:
            self.gang.wait_up_to(timedelta(seconds=self.config.collective_timeout_s))
            self._first = False
        self.committer.make_ready(self.engine)
        self._report(stepped)
        decision = self._watch(stepped)
        self._evaluate()
        self._checkpoint(stepped, decision)
        self._follow(stepped, decision)

    def _step(self) -> Stepped:
        started = time.monotonic()
        waited = self.feed.wait_seconds
        fed = self.feed.next()
        waited = self.feed.wait_seconds - waited
        assert fed.position == self.position
        self.profiler.step_begins(self.step + 1)
        skipped = self.overseer.skips(self.step + 1)
        if not skipped:
            replayed = self.overseer.replay(self.step + 1, fed)
            if replayed.end is not None:
                self._keep_what_is_written()
                self.overseer.leave(replayed.end)
        rate = learning_rate(self.step, self.config.steps, self.config.optimizer)
        rate *= self.overseer.watch.rate_factor(self.step)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.step += 1
        self.position += self.config.global_batch
        self.tokens += self.config.tokens_per_step()
        rounding = None if skipped else self.overseer.rounding(self.step, fed)
        mine = Mine(entropy=fed.entropy) if skipped else self.overseer.compute(fed)
        mine.rounding = rounding
        mine.parts |= {"data": waited, "checkpoint": self._saving_s}
        self._saving_s = 0.0
        stepped = self._agree(mine, started, fed.digest, rate)
        if not stepped.finite:
            stepped = self._again(stepped, fed, started)
        return self._accept(replace(stepped, skipped=skipped))

    def _agree(self, mine: Mine, started: float, digest: int, rate: float) -> Stepped:
        """Exchange a step's figures, once."""
        known = self.engine.get_global_grad_norm()
        norm = None if known is None else float(known)
        mine.finite = math.isfinite(mine.loss) and (norm is None or math.isfinite(norm))
        held_out = self.evaluations.get(self.step - 1) if self.gang.first else None
        # Only rank 0 sets the interval, the held-out loss and the time: the others add 0 to the sum.
        every = float(self.pace.every if self.gang.first else 0)
        told = [float(held_out is not None), held_out or 0.0]
        told += [float(mine.rounding is not None), mine.rounding or 0.0, self._last_s if self.gang.first else 0.0]
        votes = self.committer.votes()
        assert len(votes) == VOTES
        # Of ranks that read the same sequences, one tells them.
        counted = digest if self.layout.leads(self.gang.rank) else 0
        mine.others = [float(stop_requested(self.run_folder)), every, *to_limbs(counted), *told, *votes]
        everyone = self.gang.world_size
        agreed = unpack(self.gang.sums(pack(mine, self.gang.rank, everyone)), mine, everyone)
        stops, every, low, high, evaluated, held_out, looked, rounding, before_s = agreed.others[:_OWN]
        self.every = int(every)
        return Stepped(
            loss=agreed.loss,
            finite=agreed.finite,
            stop=stops > 0,
            seconds=time.monotonic() - started,
            samples=from_limbs(low, high),
            data_wait=mine.parts.get("data", 0.0),
            rate=rate,
            norm=norm,
            every=agreed,
            held_out=held_out if evaluated else None,
            rounding=rounding if looked else None,
            before_s=before_s,
        )

    def _again(self, stepped: Stepped, fed: Fed, started: float) -> Stepped:
        """Compute a step once more whose loss or gradient was not finite: DeepSpeed has left the weights as they were.
        Raises `NumericError` when it is not finite again."""
        where = self.overseer.not_finite(self.step, stepped.every, replayed=False)
        again = not self.engine.was_step_applied()
        if again:
            stepped = self._agree(self.overseer.compute(fed), started, fed.digest, stepped.rate)
        if not stepped.finite:
            where = self.overseer.not_finite(self.step, stepped.every, replayed=True)
            self._keep_what_is_written()
            seen = f"step {self.step}, loss {stepped.loss}, {where}{', again when computed again' if again else ''}"
            raise NumericError("loss or gradient is not finite", seen)
        return stepped

    def _accept(self, stepped: Stepped) -> Stepped:
        self.ledger.add(self.step, self.position - self.config.global_batch, stepped.samples)
        self.committer.settle(list(stepped.every.others[_OWN:]))
        self._keep_pace(stepped)
        self._last_s = 0.0 if stepped.skipped else stepped.seconds
        if stepped.skipped:
            return replace(stepped, loss=self.last_loss)
        self.last_loss = stepped.loss
        return stepped

    def _watch(self, stepped: Stepped) -> Decision:
        """Judge the step by what all ranks agreed on; the decision is equal on all."""
        if stepped.skipped or self.step == self.config.steps:
            return Decision()
        every, groups = stepped.every, self.overseer.signals.groups
        seen = Seen(
            step=self.step,
            loss=stepped.loss,
            rate=stepped.rate,
            norm=stepped.norm,
            layers=tuple(zip(groups, every.layers, strict=False)) if any(every.layers) else (),
            weights=tuple(zip(groups, every.weights, strict=False)) if any(every.weights) else (),
            activation=every.activation or None,
            entropy=every.entropy or None,
            held_out=stepped.held_out,
            rounding=stepped.rounding,
        )
        return self.overseer.judge(seen, every, stepped.before_s)

    def _follow(self, stepped: Stepped, decision: Decision) -> None:
        if decision.end is None:
            return
        if decision.commit and self.saved_step != self.step:
            self._commit_now(stepped)
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
        figures = self._figures(stepped)
        if self.gang.first_on_node:
            emit(
                "skipped_step" if stepped.skipped else "step",
                step=self.step,
                loss=stepped.loss,
                tokens=self.tokens,
                seconds=round(stepped.seconds, 4),
                samples=f"{stepped.samples:016x}",
                data_wait=round(stepped.data_wait, 4),
                rate=stepped.rate,
                norm=stepped.norm,
                **figures.model_dump(exclude={"rate", "norm"}, exclude_none=True),
            )
        self.heartbeat.beat(
            phase=Phase.TRAINING,
            step=self.step,
            tokens=self.tokens,
            loss=stepped.loss,
            step_seconds=stepped.seconds,
            data_wait_seconds=self.feed.wait_seconds,
            committed_step=self.committer.committed_step,
            figures=figures,
            alarms=self.overseer.watch.alarms,
        )

    def _figures(self, stepped: Stepped) -> StepFigures:
        tokens, groups = self.config.tokens_per_step(), self.overseer.signals.groups
        given = (stepped.every, stepped.seconds, stepped.rate, stepped.norm)
        return step_figures(*given, groups, tokens, self.overseer.utilisation)

    def _evaluate(self) -> None:
        if self.step % self.config.evaluate_every and self.step != self.config.steps:
            return
        self.heartbeat.beat(phase=Phase.EVALUATING)
        self.evaluations = {self.step: None}
        together = computes_together(self.config)
        if not (together or self.gang.first):
            return
        started = time.monotonic()
        model = self.engine if together else self.engine.module
        loss = evaluation_loss(model, self.reader, self.config, self.engine.device)
        if self.gang.first:
            self.evaluations = {self.step: loss}
            emit("evaluated", step=self.step, loss=loss, seconds=round(time.monotonic() - started, 3))

    def _checkpoint(self, stepped: Stepped, decision: Decision) -> None:
        last = self.step == self.config.steps
        if decision.end is not None:
            return
        if stepped.stop and not last:
            self._commit_now(stepped)
            raise Interrupted("asked to stop", f"committed step {self.step}")
        if last or decision.save or self._due():
            self.heartbeat.beat(phase=Phase.SAVING)
            if last:
                self.committer.drain(replicate=False)
            if self.committer.save(self.engine, self._progress(stepped), self.overseer.watch.state()):
                self.saved_step, self._saving_s = self.step, self.committer.measured.stall_s
                self.pace.saved(self.committer.measured.stall_s)

    def _commit_now(self, stepped: Stepped) -> None:
        """Commit the finished step on both tiers."""
        self.heartbeat.beat(phase=Phase.SAVING)
        self.committer.drain(replicate=False)
        self.committer.save(self.engine, self._progress(stepped), self.overseer.watch.state())
        self.committer.drain(replicate=True)
        self.heartbeat.beat(committed_step=self.committer.committed_step)

    def _progress(self, stepped: Stepped) -> TrainingProgress:
        evaluated = self.evaluations.get(self.step)
        return TrainingProgress(self.step, self.tokens, self.position, stepped.loss, evaluated, self.ledger.rows)
