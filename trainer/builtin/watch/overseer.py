"""One rank's side of the watch: it measures a step, judges what all ranks agreed on, and says what follows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from trainer.builtin.checkpoint.fence import check_fence
from trainer.builtin.checkpoint.tiers import SharedTier
from trainer.builtin.config import computes_together
from trainer.builtin.data.feed import Fed
from trainer.builtin.gang import Gang
from trainer.builtin.watch import replay
from trainer.builtin.watch.detectors import Alarm, Seen
from trainer.builtin.watch.figures import All, Mine, Split, Utilisation, memory_gib
from trainer.builtin.watch.precision import rounding
from trainer.builtin.watch.signals import Signals
from trainer.builtin.watch.watch import Finding, Watch
from trainer.contract import Layout, Manifest, TrainConfig
from trainer.contract.checkpoint import BANS, Ban, parse_bans
from trainer.errors import Interrupted, NumericError, Sick, StorageError, TrainerError
from trainer.events import emit

LONGEST = 10
"""Roll-backs of one campaign; after these a person should look."""


@dataclass(frozen=True)
class Ruling:
    """What the alarms of a step ask for."""

    save: bool = False
    """Save a checkpoint of this step."""
    end: TrainerError | None = None
    """Ends the attempt; each rank has its own."""
    commit: bool = False
    """Commit this step before the end: it is sound."""


@dataclass
class Overseer:
    config: TrainConfig
    gang: Gang
    engine: Any
    shared: SharedTier
    attempt: int
    bans: tuple[Ban, ...] = ()
    watch: Watch = field(init=False)
    split: Split = field(init=False)
    signals: Signals = field(init=False)
    utilisation: Utilisation = field(init=False)
    replays: bool = field(default=True, init=False)
    """Whether this attempt's model can be replayed, as far as known."""

    def __post_init__(self) -> None:
        device = self.engine.device
        self.watch, self.split = Watch(self.config.watch), Split(device)
        self.split.time_reduction(self.engine)
        self.signals = Signals(self.engine, self.gang.first)
        self.utilisation = Utilisation.of(self.config, self.gang.world_size, device.type == "cuda")

    # What is measured.

    def compute(self, fed: Fed) -> Mine:
        """Compute one step and return what this rank knows of it; the only wait for the device is at its end."""
        losses: list[Tensor] = []
        weights = self._weights(fed)
        self.signals.step_begins()
        with self._bound_gradient():
            for number, tokens in enumerate(fed.micro_batches, 1):
                batch = torch.from_numpy(tokens).to(self.engine.device, non_blocking=True)
                with self.split.part("forward"):
                    part = self.engine(batch)
                    if weights:
                        part = part * weights[number - 1]
                with self.split.part("backward"):
                    self.engine.backward(part)
                if number == len(fed.micro_batches):
                    self.signals.before_update()
                with self.split.part("optimizer"):
                    self.engine.step()
                losses.append(part.detach())
        read = self.signals.read(losses)
        loss = 0.0
        for micro_loss in read.losses:
            loss += micro_loss / len(read.losses)
        return Mine(
            loss=loss,
            parts=self.split.take_seconds(),
            memory_gib=memory_gib(self.engine.device),
            layers=read.layers,
            weights=read.weights,
            activation=read.activation,
            entropy=fed.entropy,
        )

    def _weights(self, fed: Fed) -> list[float]:
        """Return the factor of each micro batch's mean loss; none where all tokens count.

        DeepSpeed averages over the micro batches of all ranks. With these factors the average is the mean over the
        counted tokens of the whole step, as if one process had computed it.
        """
        if not fed.counted:
            return []
        # Of ranks that read the same sequences, one counts them.
        leads = Layout.of(self.config.parallel, self.gang.world_size).leads(self.gang.rank)
        total = self.gang.sums([float(sum(fed.counted)) if leads else 0.0])[0]
        micro_batches = self.config.global_batch / self.config.micro_batch
        return [count * micro_batches / total for count in fed.counted]

    @contextmanager
    def _bound_gradient(self) -> Iterator[None]:
        """Bound the norm of this step's gradient. DeepSpeed saves its bound, so it is set back."""
        usual = self.config.optimizer.clip
        bound = self.watch.clip(usual)
        if bound == usual or not hasattr(self.engine.optimizer, "clip_grad"):
            yield
            return
        self.engine.optimizer.clip_grad = bound
        try:
            yield
        finally:
            self.engine.optimizer.clip_grad = usual

    # What is decided, on values that are equal on all ranks.

    def skips(self, step: int) -> bool:
        return any(ban.skips(step) for ban in self.bans)

    def judge(self, signals: Seen, figures: All, seconds: float) -> Ruling:
        """Tell the alarms of a finished step, and decide. All ranks call this alike, with equal values. `seconds`: of
        the last step whose time all know, without a save's stall; 0: there is none."""
        clip = self.watch.clip(self.config.optimizer.clip)
        if self.config.watch.clip and signals.norm is not None and clip < min(signals.norm, self.config.optimizer.clip):
            self._tell(
                signals.step, "norm", signals.norm, clip, "clip", f"the gradient was scaled to a norm of {clip:.4g}"
            )
        findings = self.watch.judge(signals)
        # Ranks that compute together wait for each other within the forward pass: the healthy ones would look slow.
        forward_s = () if computes_together(self.config) else figures.forward_s
        findings += self.watch.judge_times(signals.step, seconds, forward_s)
        decisions = [self._follow(signals.step, finding) for finding in findings]
        ends = [decision for decision in decisions if decision.end is not None]
        return ends[0] if ends else Ruling(save=any(decision.save for decision in decisions))

    def _follow(self, step: int, finding: Finding) -> Ruling:
        alarm, action = finding.alarm, finding.action
        decision, note = Ruling(), "logged"
        if action == "checkpoint":
            decision, note = Ruling(save=True), "a checkpoint of this step"
        elif action == "slow":
            end_step = step + self.config.watch.slow_steps
            note = f"the learning rate x {self.config.watch.slow_factor:g} until step {end_step}"
        elif action == "skip":
            decision, note = self._roll_back(step, alarm)
        elif action == "quarantine" and finding.rank is not None:
            decision, note = (
                self._sick({finding.rank: alarm.text}, commit=True),
                f"rank {finding.rank}'s node is named",
            )
        elif action == "stop":
            end = NumericError("the watch stops the training", f"step {step}: {alarm.text}", _CURE)
            decision, note = Ruling(end=end, commit=True), "the training stops"
        self._tell(step, alarm.detector, alarm.value, alarm.threshold, action, alarm.text, note, onset=alarm.onset)
        return decision

    def _tell(
        self, step: int, detector: str, value: float, threshold: float, action: str, text: str, effect: str = "",
        **fields: Any,
    ) -> None:  # fmt: skip
        if self.gang.first:
            emit(
                "watch",
                step=step,
                detector=detector,
                value=_json_number(value),
                threshold=_json_number(threshold),
                action=action,
                text=text,
                did=effect or text,
                **fields,
            )

    def _roll_back(self, step: int, alarm: Alarm) -> tuple[Ruling, str]:
        first_step = min(alarm.onset, step)
        ban = Ban(self.attempt, first_step, first_step + self.config.watch.skip_steps - 1, alarm.text)
        why_not = self._ban(ban)
        if why_not:
            return Ruling(), f"no roll-back: {why_not}"
        detail = f"step {step}: {alarm.text}; batches of steps {ban.first} to {ban.last} are skipped"
        return Ruling(end=RolledBack("the watch goes back to a checkpoint before an alarm", detail)), detail

    def _ban(self, ban: Ban) -> str:
        """Leave a ban for the next attempts. Return why that is not possible; empty when it is done."""

        def leave() -> str:
            if not self.gang.first:
                return ""
            earlier_bans = read_bans(self.shared)
            why_not = possible(ban, earlier_bans, self.shared.committed())
            if not why_not:
                write_ban(self.shared, ban)
            return why_not

        return str(self.gang.gather(self.gang.together("leave what the watch decided", leave))[0])

    def leave(self, error: TrainerError) -> NoReturn:
        """End this rank. The one that is named ends first: the steward must not see only the consequences."""
        if isinstance(error, Interrupted):
            time.sleep(_NAMED_FIRST_S)
        raise error

    def _sick(self, sick_ranks: dict[int, str], commit: bool) -> Ruling:
        own_text = sick_ranks.get(self.gang.rank)
        names = ", ".join(f"rank {rank}" for rank in sorted(sick_ranks))
        if own_text is not None:
            return Ruling(end=Sick("this node is to be replaced", own_text, "the steward replaces it"), commit=commit)
        return Ruling(end=Interrupted("the watch has named another node", names), commit=commit)

    # What is computed again.

    def replay(self, step: int, fed: Fed) -> Ruling:
        """Search for silent data corruption before the 1-based `step`, when it is time to."""
        interval = self.config.watch.replay_every
        if not interval or step % interval or not self.replays:
            return Ruling()
        own_tokens = torch.from_numpy(fed.micro_batches[0])
        tokens = self.gang.of_first(own_tokens).to(self.engine.device)
        all_ranks, kernels = computes_together(self.config), self.config.watch.replay_kernels
        verdict = replay.verdict(self.gang.gather(replay.compute(self.engine, tokens, all_ranks, kernels)))
        self.split.take_seconds()
        if verdict.refusal:
            self.replays = False
            effect = "no replay in this attempt; `watch.replay_kernels: training` does without"
            self._tell(step, "replay", 0.0, 0.0, self.config.watch.replay, verdict.refusal, effect)
        elif not verdict.told:
            self.watch.sound_step = step - 1
        if not verdict.told:
            return Ruling()
        self.watch.alarms += 1
        action, effect, decision = self.config.watch.replay, "logged", Ruling()
        if action == "stop" or (action == "quarantine" and verdict.named):
            # Checkpoints since the last sound replay are not trusted.
            first_step = max(self.watch.sound_step, 0) + 1
            not_banned = self._ban(Ban(self.attempt, first_step, first_step - 1, verdict.told))
            effect = not_banned or f"checkpoints from step {first_step} on are not trusted"
            if action == "stop":
                effect, end = f"training stops; {effect}", NumericError("a replay gave other bits", verdict.told, _CURE)
                decision = Ruling(end=end)
            else:
                effect, decision = f"named to be replaced; {effect}", self._sick(verdict.named, commit=False)
        ranks = sorted(verdict.named)
        self._tell(step, "replay", float(len(ranks)), 0.0, action, verdict.told, effect, ranks=ranks)
        return decision

    def rounding(self, step: int, fed: Fed) -> float | None:
        """Return how far rank 0's loss is from that in float32 before the 1-based `step`, when it is time to look."""
        interval, config = self.config.watch.precision_every, self.config
        if not interval or step % interval or not self.gang.first:
            return None
        if config.precision == "float32" or computes_together(config) or config.watch.precision == "off":
            return None
        return rounding(self.engine.module, torch.from_numpy(fed.micro_batches[0]).to(self.engine.device))

    def not_finite(self, step: int, figures: All, is_replay: bool) -> str:
        """Tell a loss or gradient that is not finite. Return the ranks whose own loss is not, in words."""
        ranks = [rank for rank, loss in enumerate(figures.losses) if not math.isfinite(loss)]
        location = f"first on {', '.join(f'rank {rank}' for rank in ranks[:8])}" if ranks else "in the gradient only"
        effect = "the training ends" if is_replay else "the step is computed again"
        self._tell(step, "nan", figures.loss, math.inf, "replay", f"not finite, {location}", effect, ranks=ranks[:8])
        return location


_NAMED_FIRST_S = 5.0
_CURE = "look at the figures of the steps before, mend the cause, then `bivouac relaunch`"


def _json_number(value: float) -> float | str:
    """JSON has no number for what is not finite."""
    return value if math.isfinite(value) else repr(value)


def agreed_bans(gang: Gang, shared: SharedTier) -> tuple[Ban, ...]:
    """Return rank 0's view of the bans, on every rank."""
    bans: Sequence[Ban] = gang.gather(
        gang.together("read what the watch has left", lambda: read_bans(shared) if gang.first else ())
    )[0]
    return tuple(bans)


class RolledBack(TrainerError):
    """The attempt ends so that the next one starts from a checkpoint before the trouble."""

    reason = "rolled-back"


def read_bans(shared: SharedTier) -> tuple[Ban, ...]:
    """Return the bans of a campaign, oldest first. Raises `StorageError` for one that cannot be read."""
    try:
        return parse_bans(shared.notes())
    except ValueError as error:
        cure = "remove it to do without"
        raise StorageError("what the watch has left cannot be read", f"{shared}/{BANS}/{error}", cure) from error


def write_ban(shared: SharedTier, ban: Ban) -> None:
    check_fence(shared.marks, ban.attempt)
    shared.leave(f"ban-{ban.attempt:04d}-{ban.first:08d}.json", json.dumps(asdict(ban)).encode())


def possible(ban: Ban, bans: Sequence[Ban], checkpoints: Sequence[Manifest]) -> str:
    """Return why a roll-back is not possible; empty when it is."""
    if len(bans) >= LONGEST:
        return f"{len(bans)} roll-backs already"
    sound = [manifest for manifest in checkpoints if not any(old.refuses(manifest) for old in (*bans, ban))]
    if not sound:
        return "no checkpoint before it lies on the shared tier"
    return ""
