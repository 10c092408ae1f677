"""Supervise and archive on the driver's side: it only watches, so it may leave; the steward decides and acts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

from lightkube.resources.apps_v1 import Deployment

from infra.archive.archive_job import out_of_cluster
from infra.campaign import report
from infra.campaign.closing import SILENT
from infra.campaign.launch import STEWARD, deploy, recorded_config
from infra.campaign.repairs.lost_storage import StorageWatch
from infra.cluster.kubernetes import OF_WORLD, kubectl
from infra.cluster.steward_config import LEASE_TTL, STEWARD_LEASE
from infra.engine import nodegroups
from infra.errors import PermanentError
from infra.record.events import CampaignState, fold
from infra.record.payloads.attempts import NodesAtZero
from infra.record.payloads.base import data_of
from infra.record.payloads.outputs import ArchiveOutput, SuperviseOutput
from infra.record.payloads.training import ArchiveFailed
from infra.record.store import LIVE, live_figures
from infra.session.context import Context

_LOOK_EVERY_S = 5.0
_SILENT_S = 60.0
"""Kubernetes at first restarts a failed pod within seconds; after longer silence the driver looks itself."""
_MUTE_S = 90.0
"""The steward writes its figures every five seconds at least, except while it lets a gang commit."""


def run(context: Context) -> SuperviseOutput:
    """Watch until training is completed, stopped or held, and print events as they come."""
    return watch_training(context, StewardWatch(context), StorageWatch(context).look)


def watch_training(context: Context, watch: StewardWatch, look_at_storage: Callable[[], str | None]) -> SuperviseOutput:
    """Do `run`'s work with this look at the steward, and one at the shared tier, which returns its problem."""
    printer = _Teller(context)
    with report.rewritten(context):
        for _ in context.turns(_seconds_left(context), 1.0):
            context.progress.step(look_at_storage() or watch.look() or printer.line)
            state = printer.tell()
            if (outcome := state.outcome) is not None:
                return SuperviseOutput(outcome=outcome, attempts=len(state.attempts))
    raise PermanentError(
        "the deadline has passed",
        seen=context.deadline.isoformat(),
        cure=f"`bivouac down {context.spec.campaign}`: training is over, and the rest bills",
    )


def archive(context: Context) -> ArchiveOutput:
    """Wait until the golden checkpoint is verified in the archive and the GPU nodes are at zero."""
    return watch_archive(context, StewardWatch(context))


def watch_archive(context: Context, watch: StewardWatch) -> ArchiveOutput:
    """Do `archive`'s work with this look at the steward."""
    printer = _Teller(context)
    for _ in context.turns(_seconds_left(context)):
        state = printer.tell()
        if state.closed:
            if state.unproven is not None:
                fits = f"; `format: {state.unproven.fits}` would have recognised it" if state.unproven.fits else ""
                context.progress.note(f"{state.unproven.sentence()}{fits}")
            golden = state.archive
            if golden is None:
                return _without_golden(context, state)
            restored_loss, reference = golden.restored_evaluation_loss, golden.reference_evaluation_loss
            loss = f"; evaluation loss {restored_loss} restored, {reference} {golden.proof}"
            loss = "" if restored_loss is None else loss
            if restored_loss is not None and golden.tolerance:
                loss += f" {golden.tolerance:g}"
            if golden.metrics:
                loss = f"; {', '.join(f'{name} {value:g}' for name, value in golden.metrics.items())}, {golden.proof}"
            context.progress.note(f"step {golden.step}: {golden.objects} objects, {golden.bytes} bytes read back{loss}")
            unproven = {} if state.unproven is None else {"unproven": state.unproven.data()}
            return ArchiveOutput.model_validate(golden.data() | unproven)
        # The steward writes no figures while it archives, so only its lease shows that it lives.
        context.progress.step(watch.look(False) or "the golden checkpoint goes to the archive and is read back")
    raise PermanentError(
        "the archive was not verified in time",
        seen=context.deadline.isoformat(),
        cure="see the archive pods' logs; `bivouac run` continues",
    )


def _without_golden(context: Context, state: CampaignState) -> ArchiveOutput:
    """Return what the stage has come to without a golden checkpoint. Raises `PermanentError` while something may be
    lost."""
    if state.copied_as_it_is:
        context.progress.note("no checkpoint is proven: the campaign ends without a golden one")
        return ArchiveOutput.model_validate({"unproven": data_of(state.unproven)})
    payloads = [event.payload for event in context.store.events()]
    if failures := [payload for payload in payloads if isinstance(payload, ArchiveFailed)]:
        raise _failure(context, failures[-1])
    if state.nothing_to_lose:
        context.progress.note("no checkpoint was committed, and the job left nothing: there is nothing to archive")
        return ArchiveOutput(nothing_committed=True)
    newest = f"newest checkpoint: step {state.newest_committed}" if state.newest_committed >= 0 else ""
    left = "nobody could look at what the job left"
    if state.unrecognised is not None and state.unrecognised.files:
        left = state.unrecognised.sentence()
    raise PermanentError(
        "the steward has ended and archived nothing",
        seen=newest or left,
        cure=f"{_retry_ways(context)}; or `bivouac down {context.spec.campaign} --abandon` loses it",
    )


def _failure(context: Context, failure: ArchiveFailed) -> PermanentError:
    """Return the error of a failed archive, which says what is safe."""
    step, name = failure.step, context.spec.campaign
    if step is None:
        message = "nothing is archived; the GPU nodes are at zero, the checkpoint is on the shared tier"
        return PermanentError(message, seen=failure.error, cure=f"mend the cause, then {_retry_ways(context)}")
    part = failure.part or "the job's own evaluation or export"
    message = (
        f"step {step} is in the archive, every byte read back, but {part} has failed; the GPU nodes are at zero, the "
        "checkpoints are on the shared tier too"
    )
    cure = (
        f"see `bivouac logs {name}`; to try again, {_retry_ways(context)}; `bivouac down {name} --abandon` gives up "
        f"only {part}: `bivouac checkpoints restore {name} FOLDER` fetches the checkpoint from the archive"
    )
    return PermanentError(message, seen=failure.error, cure=cure)


def _retry_ways(context: Context) -> str:
    """Return the ways to archive a checkpoint that is on the shared tier only."""
    return (
        f"{kubectl(context.spec, 'rollout restart deployment/steward')}: it asks for one GPU "
        "node and tries again, and once `bivouac status` says so `bivouac run` goes on; or "
        f"{out_of_cluster(context.spec)}"
    )


def _seconds_left(context: Context) -> float:
    return max(60.0, (context.deadline - datetime.now(UTC)).total_seconds())


class StewardWatch:
    """Watches the steward. Reports a silent one; makes a lost Deployment again; after `SILENT` gives the nodes back."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lease = context.store.lease(STEWARD_LEASE, LEASE_TTL)
        self._said: str | None = None
        self._next = 0.0
        self._since = self._lived = time.monotonic()
        self._word, self._heard = "", time.monotonic()
        # The steward writes nothing while it lets a gang commit, which is bounded.
        self._mute_s = _MUTE_S + context.spec.job.grace_s

    def look(self, decides: bool = True) -> str | None:
        """Return the problem for the progress line; None while the steward renews its lease and `decides`. Raises
        `PermanentError` after `SILENT`, when the GPU nodes are given back."""
        now = time.monotonic()
        if now < self._next:
            return self._said
        self._next = now + _LOOK_EVERY_S
        lease = self._lease.current()
        if lease is not None and lease.age_s <= lease.record.ttl_s and not lease.record.released:
            self._said, self._since, self._lived = self._deaf(now) if decides else None, now, now
            return self._said
        # A driver that slept has not seen how long the steward lived meanwhile: its lease tells.
        if min(now - self._lived, math.inf if lease is None else lease.age_s) > SILENT.total_seconds():
            self.give_up()
        silent = now - self._since
        self._said = f"the steward has been silent for {silent:.0f} s; Kubernetes starts it again"
        if silent > _SILENT_S:
            self._since = now
            self._said = self._repair()
        return self._said

    def _deaf(self, now: float) -> str | None:
        """Return a message if the figures do not change: another thread renews the lease, so only figures prove
        decisions. Measures with our clock, since the steward's may differ."""
        word = str(self.context.store.get(f"{self.context.store.prefix}/{LIVE}"))
        if word != self._word:
            self._word, self._heard = word, now
        silent = now - self._heard
        if silent <= self._mute_s:
            return None
        return (
            f"the steward lives but has decided nothing for {silent:.0f} s, so it ends nothing that bills: "
            f"{kubectl(self.context.spec, 'rollout restart deployment/steward')}"
        )

    def give_up(self) -> None:
        """Give the GPU nodes back, by EKS's API, and raise `PermanentError`: nobody watches what runs on them."""
        context, name = self.context, self.context.spec.campaign
        nodegroups.give_back(context.account, context.names, context.guard, context.progress.step)
        context.store.append(NodesAtZero(group=context.names.gpu_group))
        raise PermanentError(
            f"the steward has been silent for {SILENT.total_seconds() / 60:.0f} minutes: the GPU nodes are given back",
            seen="its pod does not run, or cannot reach the record in S3",
            cure=f"`bivouac shell {name} -- kubectl describe pods` shows why; mend it, then `bivouac run` goes on; or "
            f"{out_of_cluster(context.spec)}, and `bivouac down {name} --abandon`",
        )

    def _repair(self) -> str:
        if not self.context.enters_cluster:
            return "the steward is silent, and the closer does not enter the cluster"
        config = recorded_config(self.context.store, self.context.state().version)
        try:
            client = self.context.cluster_client()
            deployment = next(iter(client.list(Deployment, labels={"app": STEWARD})), None)
            if deployment is None and config is not None:
                self.context.guard()
                deploy(client, self.context.store, config)
                self.context.progress.note("the steward's deployment was gone: made again")
                return "the steward starts again"
        except (*OF_WORLD, OSError) as error:
            return f"the steward is silent, and the cluster does not answer: {error}"[:200]
        return "the steward is silent though its deployment is there: see `kubectl describe deployment/steward`"


class _Teller:
    """Prints new events as lines that stay, and the live figures as the progress line."""

    def __init__(self, context: Context) -> None:
        self.context, self.line = context, "the steward is looking"
        self._known = {(e.writer, e.sequence) for e in context.store.events()}

    def tell(self) -> CampaignState:
        """Print what is new; return the state. One look for all of a turn: each lists the record in S3."""
        events = self.context.store.events()
        state = fold(events)
        for event in events:
            if (event.writer, event.sequence) not in self._known:
                self._known.add((event.writer, event.sequence))
                if event.payload.watched:
                    self.context.progress.note(event.sentence())
        live = live_figures(self.context.store)
        if live is not None:
            loss = f", loss {live['loss']:.3f}" if live["loss"] is not None else ""
            pause = state.hold
            if pause is not None:
                self.line = (
                    f"held until {pause.until}, bills {live['usd_per_hour']:.2f} USD/h, {live['spent_usd']:.2f} USD "
                    f"so far; Ctrl-C, then `bivouac relaunch {self.context.spec.campaign} --spec FILE`"
                )
                return state
            self.line = (
                f"attempt {live['attempt']}: step {live['step']} of {live['steps']}{loss}, committed "
                f"{live['committed_step']}, {live['spent_usd']:.2f} USD ({live['why']})"
            )
        return state
