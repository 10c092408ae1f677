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
from trainer.contract.bans import BANS, Ban, parse_bans
from trainer.errors import Interrupted, NumericError, Sick, StorageError, TrainerError
from trainer.events import emit

LONGEST = 10
"""Roll-backs of one campaign; after these a person should look."""


@dataclass(frozen=True)
class Decision:
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
        self.split.around(self.engine)
        self.signals = Signals(self.engine, self.gang.first)
        self.utilisation = Utilisation.of(self.config, self.gang.world_size, device.type == "cuda")

    # What is measured.

    def compute(self, fed: Fed) -> Mine:
        """Compute one step and return what this rank knows of it; the only wait for the device is at its end."""
        losses: list[Tensor] = []
        weights = self._weights(fed)
        self.signals.step_begins()
        with self._clipped():
            for number, tokens in enumerate(fed.micro_batches, 1):
                batch = torch.from_numpy(tokens).to(self.engine.device)
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
        for one in read.losses:
            loss += one / len(read.losses)
        return Mine(
            loss=loss,
            parts=self.split.taken(),
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
        whole = self.gang.sums([float(sum(fed.counted)) if leads else 0.0])[0]
        micro_batches = self.config.global_batch / self.config.micro_batch
        return [counted * micro_batches / whole for counted in fed.counted]

    @contextmanager
    def _clipped(self) -> Iterator[None]:
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

    def judge(self, seen: Seen, every: All, seconds: float) -> Decision:
        """Tell the alarms of a finished step, and decide. All ranks call this alike, with equal values. `seconds`: of
        the last step whose time all know, without a save's stall; 0: there is none."""
        clip = self.watch.clip(self.config.optimizer.clip)
        if self.config.watch.clip and seen.norm is not None and clip < min(seen.norm, self.config.optimizer.clip):
            self._tell(seen.step, "norm", seen.norm, clip, "clip", f"the gradient was scaled to a norm of {clip:.4g}")
        found = self.watch.judge(seen)
        # Ranks that compute together wait for each other within the forward pass: the healthy ones would look slow.
        forward_s = () if computes_together(self.config) else every.forward_s
        found += self.watch.judge_times(seen.step, seconds, forward_s)
        decisions = [self._follow(seen.step, finding) for finding in found]
        ends = [one for one in decisions if one.end is not None]
        return ends[0] if ends else Decision(save=any(one.save for one in decisions))

    def _follow(self, step: int, finding: Finding) -> Decision:
        alarm, action = finding.alarm, finding.action
        decision, did = Decision(), "logged"
        if action == "checkpoint":
            decision, did = Decision(save=True), "a checkpoint of this step"
        elif action == "slow":
            until = step + self.config.watch.slow_steps
            did = f"the learning rate x {self.config.watch.slow_factor:g} until step {until}"
        elif action == "skip":
            decision, did = self._roll_back(step, alarm)
        elif action == "quarantine" and finding.rank is not None:
            decision, did = self._sick({finding.rank: alarm.text}, commit=True), f"rank {finding.rank}'s node is named"
        elif action == "stop":
            end = NumericError("the watch stops the training", f"step {step}: {alarm.text}", _CURE)
            decision, did = Decision(end=end, commit=True), "the training stops"
        self._tell(step, alarm.detector, alarm.value, alarm.threshold, action, alarm.text, did, onset=alarm.onset)
        return decision

    def _tell(
        self, step: int, detector: str, value: float, threshold: float, action: str, text: str, did: str = "",
        **more: Any,
    ) -> None:  # fmt: skip
        if self.gang.first:
            emit(
                "watch",
                step=step,
                detector=detector,
                value=_shown(value),
                threshold=_shown(threshold),
                action=action,
                text=text,
                did=did or text,
                **more,
            )

    def _roll_back(self, step: int, alarm: Alarm) -> tuple[Decision, str]:
        first = min(alarm.onset, step)
        ban = Ban(self.attempt, first, first + self.config.watch.skip_steps - 1, alarm.text)
        why_not = self._ban(ban)
        if why_not:
            return Decision(), f"no roll-back: {why_not}"
        seen = f"step {step}: {alarm.text}; batches of steps {ban.first} to {ban.last} are skipped"
        return Decision(end=RolledBack("the watch goes back to a checkpoint before an alarm", seen)), seen

    def _ban(self, ban: Ban) -> str:
        """Leave a ban for the next attempts. Return why that is not possible; empty when it is done."""

        def leave() -> str:
            if not self.gang.first:
                return ""
            known = read_bans(self.shared)
            why_not = possible(ban, known, self.shared.committed())
            if not why_not:
                write_ban(self.shared, ban)
            return why_not

        return str(self.gang.gather(self.gang.together("leave what the watch decided", leave))[0])

    def leave(self, error: TrainerError) -> NoReturn:
        """End this rank. The one that is named ends first: the steward must not see only the consequences."""
        if isinstance(error, Interrupted):
            time.sleep(_NAMED_FIRST_S)
        raise error

    def _sick(self, named: dict[int, str], commit: bool) -> Decision:
        mine = named.get(self.gang.rank)
        told = ", ".join(f"rank {rank}" for rank in sorted(named))
        if mine is not None:
            return Decision(end=Sick("this node is to be replaced", mine, "the steward replaces it"), commit=commit)
        return Decision(end=Interrupted("the watch has named another node", told), commit=commit)

    # What is computed again.

    def replay(self, step: int, fed: Fed) -> Decision:
        """Search for silent data corruption before the 1-based `step`, when it is time to."""
        every = self.config.watch.replay_every
        if not every or step % every or not self.replays:
            return Decision()
        mine = torch.from_numpy(fed.micro_batches[0])
        tokens = self.gang.of_first(mine).to(self.engine.device)
        together, kernels = computes_together(self.config), self.config.watch.replay_kernels
        found = replay.verdict(self.gang.gather(replay.compute(self.engine, tokens, together, kernels)))
        self.split.taken()
        if found.refusal:
            self.replays = False
            did = "no replay in this attempt; `watch.replay_kernels: training` does without"
            self._tell(step, "replay", 0.0, 0.0, self.config.watch.replay, found.refusal, did)
        elif not found.told:
            self.watch.sound_step = step - 1
        if not found.told:
            return Decision()
        self.watch.alarms += 1
        action, did, decision = self.config.watch.replay, "logged", Decision()
        if action == "stop" or (action == "quarantine" and found.named):
            # Checkpoints since the last sound replay are not trusted.
            first = max(self.watch.sound_step, 0) + 1
            not_banned = self._ban(Ban(self.attempt, first, first - 1, found.told))
            did = not_banned or f"checkpoints from step {first} on are not trusted"
            if action == "stop":
                did, end = f"training stops; {did}", NumericError("a replay gave other bits", found.told, _CURE)
                decision = Decision(end=end)
            else:
                did, decision = f"named to be replaced; {did}", self._sick(found.named, commit=False)
        ranks = sorted(found.named)
        self._tell(step, "replay", float(len(ranks)), 0.0, action, found.told, did, ranks=ranks)
        return decision

    def rounding(self, step: int, fed: Fed) -> float | None:
        """Return how far rank 0's loss is from that in float32 before the 1-based `step`, when it is time to look."""
        every, config = self.config.watch.precision_every, self.config
        if not every or step % every or not self.gang.first:
            return None
        if config.precision == "float32" or computes_together(config) or config.watch.precision == "off":
            return None
        return rounding(self.engine.module, torch.from_numpy(fed.micro_batches[0]).to(self.engine.device))

    def not_finite(self, step: int, every: All, replayed: bool) -> str:
        """Tell a loss or gradient that is not finite. Return the ranks whose own loss is not, in words."""
        ranks = [rank for rank, loss in enumerate(every.losses) if not math.isfinite(loss)]
        where = f"first on {', '.join(f'rank {rank}' for rank in ranks[:8])}" if ranks else "in the gradient only"
        did = "the training ends" if replayed else "the step is computed again"
        self._tell(step, "nan", every.loss, math.inf, "replay", f"not finite, {where}", did, ranks=ranks[:8])
        return where


_NAMED_FIRST_S = 5.0
_CURE = "look at the figures of the steps before, mend the cause, then `bivouac relaunch`"


def _shown(value: float) -> float | str:
    """JSON has no number for what is not finite."""
    return value if math.isfinite(value) else repr(value)


def agreed_bans(gang: Gang, shared: SharedTier) -> tuple[Ban, ...]:
    """Return rank 0's view of the bans, on every rank."""
    found: Sequence[Ban] = gang.gather(
        gang.together("read what the watch has left", lambda: read_bans(shared) if gang.first else ())
    )[0]
    return tuple(found)


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


def possible(ban: Ban, known: Sequence[Ban], committed: Sequence[Manifest]) -> str:
    """Return why a roll-back is not possible; empty when it is."""
    if len(known) >= LONGEST:
        return f"{len(known)} roll-backs already"
    trusted = [one for one in committed if not any(each.refuses(one) for each in (*known, ban))]
    if not trusted:
        return "no checkpoint before it lies on the shared tier"
    return ""
