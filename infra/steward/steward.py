"""The steward's loop: observe, decide, act, record. `decide` holds all judgement; this module and `attempt` act.

When the record, the cluster or AWS refuses a call, the act breaks off as after a kill and starts again from the record.
The clocks go on meanwhile, and the bill stays bounded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError
from lightkube import Client

from infra.aws.account import Account, explained
from infra.checkpoints.place import bucket_place
from infra.clock import Clock
from infra.cluster import attempts
from infra.cluster.pod_logs import PodLogs
from infra.cluster.standing.borrowed import nodes_of
from infra.cluster.steward_config import Relaunch, StewardConfig
from infra.record.lease import Lease
from infra.record.payloads.attempts import NodeQuarantined, NodeRebooted, NodesAtZero, NodesCounted
from infra.record.payloads.stages import Decision, DecisionWithheld
from infra.record.payloads.training import Relaunched, TrainingFinished
from infra.record.store import CampaignStore
from infra.spec.names import Names
from infra.spec.waits import BOOT
from infra.steward import archiving, last_resort, resume_state
from infra.steward.attempt import NewestAttempt
from infra.steward.copying.copier import Copier
from infra.steward.decide import (
    Action,
    EndAttempt,
    FailureClass,
    Finish,
    GiveBack,
    Hold,
    Launch,
    Observation,
    Policy,
    Reboot,
    Replace,
    Wait,
)
from infra.steward.foresight import memory
from infra.steward.monitoring.exporter import Exporter
from infra.steward.monitoring.figures import further_figures, step_seconds
from infra.steward.monitoring.file_system import FileSystemFigures
from infra.steward.monitoring.series import SeriesKeeper
from infra.steward.policy import policy_of
from infra.steward.reconcile import reconcile
from infra.steward.returns import Returns
from infra.steward.seeing.committed import Committed
from infra.steward.seeing.logs import LogShipper
from infra.steward.seeing.lookout import Lookout
from infra.steward.seeing.sources import PASSING
from infra.steward.seeing.tiers import TierWatch
from infra.steward.seeing.trainer_events import TrainerEvents
from infra.steward.silence import SilenceSchedules
from trainer.contract import Unrecognised

_MOST_TRIES = 5
"""To switch off the notice of a silent steward, at the end."""


class Steward:
    def __init__(
        self,
        config: StewardConfig,
        account: Account,
        client: Client,
        pod_logs: PodLogs,
        store: CampaignStore,
        lease: Lease,
        sleep_for: Callable[[float], None] = time.sleep,
        clock: Clock | None = None,
    ) -> None:
        """`pod_logs` has connections of its own. `sleep_for` sleeps between two turns; its argument is in seconds."""
        self.config, self.account, self.client, self.store, self.lease = config, account, client, store, lease
        self.clock = clock or Clock()
        self.names = Names(config.spec)
        self.nodes = nodes_of(config.spec, account, client, self.names, lease.check)
        self.returns = Returns(self.nodes.replace)
        self.silence = SilenceSchedules(account, self.names, lease, self.clock, exist=config.spec.cluster is None)
        self.lookout = Lookout(config, client, self.nodes, store, lease, self.clock)
        self.observer, self.sources = self.lookout.observer, self.lookout.sources
        self.trainer_events = TrainerEvents(store)
        self.logs = LogShipper(pod_logs, store, self.trainer_events.take, has_marks=config.spec.runtime.has_marks)
        self.tiers = TierWatch(store, bucket=bucket_place(store.s3, config.shared_tier))
        self.committed = Committed(config.spec.campaign, store.state(), bucket=self.tiers.bucket)
        self.policy = policy_of(config)
        self.exporter = Exporter(config.spec.campaign, self.clock, self.policy.hang_timeout)
        self.file_system = FileSystemFigures(account, lease.check, store.state, self.clock)
        self.series = SeriesKeeper(store, lease.check, self.clock)
        self._archived = False
        self.copier = Copier(self)
        self.attempt = NewestAttempt(self)
        self.lookout.take_over(store.state(), self.attempt.number)
        self._rest = sleep_for

    def run(self) -> None:
        """Run until training is over and archived and the GPU nodes are at zero."""
        while True:
            try:
                return self._campaign()
            except PASSING as error:
                self._ride_through(error)

    def _ride_through(self, error: Exception) -> None:
        """Wait until acts may be tried again. The only act meanwhile is to give the GPU nodes back."""
        self.sources.note_failure("acts", error)
        try:
            is_over = self.store.state().outcome is not None
        except PASSING:
            is_over = False
        # An archive has bounds of its own: `means_patience` is for training.
        policy = (
            self.policy.model_copy(update={"means_patience": self.policy.blind_timeout}) if is_over else self.policy
        )
        _, action = self._look(policy)
        if isinstance(action, GiveBack):
            self._give_back(action)
        while not self.sources.due("acts"):
            self.pause()

    def _campaign(self) -> None:
        self.lease.check()
        last_resort.sign(self.client, os.uname().nodename, self.config.spec.campaign)
        self._postpone_silence()  # before the first look counts the nodes
        state = self.store.state()
        kind, campaign = self.attempt.kind, self.config.spec.campaign
        reconcile(self.client, self.store, self.nodes, self.returns, kind, campaign, self.committed_step())
        self.attempt.take_over()
        if state.outcome is None:
            finish = self._train()
            facts = {"outcome": finish.outcome, "why": finish.why, "committed_step": self.committed.to_record()}
            self.store.append(TrainingFinished(**facts, unrecognised=self._left_behind()))
        self.exporter.rest()
        self.copier.stop()
        # The archive copies logs and series from the bucket.
        self.logs.flush()
        if not self._archived:
            self.series.flush()
        if not self._archived and self._may_archive():
            archiving.record(self)
        self._archived = True  # or its failure is recorded
        self.logs.close()
        self.nodes.set_desired(0)
        if not self.store.state().closed:
            self.store.append(NodesAtZero(group=self.names.gpu_group))
        for _ in range(_MOST_TRIES):
            if self.silence.switch_off():
                break
            self._rest(self.config.poll.total_seconds())

    def _postpone_silence(self) -> None:
        """Postpone AWS's end of the GPU nodes; record when it has come under a silent predecessor, if it has."""
        self.silence.postpone()
        if (moment := self.silence.fired_at) is None:
            return
        with suppress(*PASSING):  # asked again at the next look
            if self.store.state().gpu_nodes_up and self.nodes.desired() == 0:
                self.store.append(NodesAtZero(group=self.names.gpu_group, since=moment))
            self.silence.fired_at = None

    def _left_behind(self) -> dict[str, Any] | None:
        """Return what the job left that no format recognises; None if nobody could look. The built-in trainer's
        checkpoints are committed, or none."""
        if self.config.spec.runtime.is_built_in:
            return None if self.committed.to_record() is None else Unrecognised(files=0, bytes=0).model_dump()
        attempt_numbers = [record.number for record in self.store.state().attempts if record.began]
        local = self.config.spec.runtime.on_disks
        left = self.committed.left_behind(max(attempt_numbers, default=0), local)
        has_files = any(status.unrecognised and status.unrecognised.files for status in self.observer.statuses.values())
        return None if local and has_files and left is not None and not left.get("files") else left

    def _may_archive(self) -> bool:
        """Return whether there may be something to archive, or to copy as it is, that is not yet."""
        state = self.store.state()
        safe = state.archive is not None or state.copied_as_it_is
        return not safe and (self.committed.may_be_there() or not state.left_nothing)

    def _resume(self) -> Finish | None:
        """Finish what a predecessor left half done; adopt a newer configuration."""
        if (reason := resume_state.success_of(self.store.state())) is not None:
            return Finish(outcome="done", why=reason)
        attempt = self.attempt
        kind, campaign = attempt.kind, self.config.spec.campaign
        if attempt.in_flight and attempt.number not in attempts.jobs(self.client, kind, campaign):
            reason, size = resume_state.growth_under_way(self.store.events())
            lost_reason = "its job is gone: a steward that ended was stopping it, or somebody removed it"
            self._interrupt(reason or lost_reason, size)
        if self.config.relaunch is not None and self.config.version > self.store.state().version:
            self._relaunch(self.config.relaunch)
        return None

    def _relaunch(self, relaunch: Relaunch) -> None:
        """Put the newer configuration into force; earlier failures no longer count."""
        if self.attempt.in_flight:
            self._interrupt(f"{relaunch.who} requested a relaunch")
        self.store.append(
            Relaunched(
                version=self.config.version,
                committed_step=self.committed_step(),
                **relaunch.model_dump(mode="json"),
            )
        )
        self.attempt.take_over()

    def _interrupt(self, reason: str, grows_to: int = 0) -> None:
        view = self.observer.observe(self.attempt.number, True, self.committed_step(), False)
        self._act(EndAttempt(failure=FailureClass.INTERRUPTED, why=reason, grows_to=grows_to), view)

    def committed_step(self) -> int:
        """Return the newest step known to be committed on the shared tier, -1 when there is none."""
        return self.committed.step()

    def _train(self) -> Finish:
        if (finish := self._resume()) is not None:
            return finish
        while True:
            self.returns.retry()
            view, action = self._look(self.policy)
            action = self.copier.check_launch(action)
            for pod in view.pods:
                if pod.phase != "Pending":
                    self.logs.follow(pod.name)
            self.tiers.tell(self.observer.agents)
            if not self.sources.away("record"):
                self.attempt.note_running(view)
                self._note_nodes()
                self.lookout.announcements.note(view)
                self._note_withheld(view)
                self.copier.look(view.committed_step)
            if isinstance(action, Finish):
                self.attempt.finish(action, view)
                return action
            self._act(action, view)
            self.sources.note_answer("acts")
            self.pause()

    def _note_nodes(self) -> None:
        """Record how many GPU nodes bill whenever that changes: the meter counts by the record alone."""
        billing = self.observer.nodes_billing
        if billing != self.observer.nodes_counted:
            self.store.append(NodesCounted(nodes=billing, of=self.config.spec.nodes.count))
            self.observer.nodes_counted = billing

    def _note_withheld(self, view: Observation) -> None:
        """Record once what `recovery.act: log` keeps from being done."""
        action = self.lookout.withheld
        if action is None:
            return
        fields: dict[str, Any] = {}
        if isinstance(action, EndAttempt):
            fields = {"failure": action.failure.value, "nodes": action.dead_nodes}
        elif isinstance(action, Replace | Reboot):
            fields = {"nodes": action.nodes}
        payload = DecisionWithheld(attempt=view.attempt, action=action.kind, why=action.why, **fields)
        keys = {"attempt", "action", "failure", "nodes"}
        past = [event.payload for event in self.store.events() if isinstance(event.payload, DecisionWithheld)]
        if not any(old.model_dump(include=keys) == payload.model_dump(include=keys) for old in past):
            self.store.append(payload)

    def _look(self, policy: Policy) -> tuple[Observation, Action]:
        attempt = self.attempt
        state, hold_start = (attempt.number, attempt.in_flight, self.committed_step()), attempt.held_since
        acts = (*self.returns.refusals(), *self.silence.troubles())
        troubles = (*acts, *self.committed.troubles(), *self.copier.under_way())
        start = self.clock.monotonic()
        loss = self.trainer_events.loss
        view, action = self.lookout.look(
            policy, attempt.history, state, hold_start, troubles, loss, gang_nodes=attempt.nodes
        )
        look_s = self.clock.monotonic() - start
        self._postpone_silence()
        shared_every = self.config.train.checkpoint.shared_every if self.config.train else 1
        interval = (self.lookout.interval_and_archive - self.config.archive) * shared_every
        written, room = self.store.events_written, self.file_system.facts()
        figures = further_figures(self.config, view, attempt.history, self.lookout, self.lease, written, room)
        step_s = step_seconds(self.observer.statuses.values())
        self.exporter.note(view, float(self.policy.budget_usd), attempt.number, look_s, interval, figures, step_s)
        return view, action

    def _give_back(self, action: GiveBack) -> None:
        kind, campaign, grace = self.attempt.kind, self.config.spec.campaign, self.config.grace_seconds
        nodes = nodes_of(self.config.spec, self.account, self.client, self.names, lambda: None)
        if last_resort.give_back(self.client, nodes, self.lease, kind, campaign, grace, self.pause, action.why):
            self.lookout.given_back = action.why

    def _act(self, action: Action, view: Observation) -> None:
        if isinstance(action, GiveBack):
            return self._give_back(action)
        if not isinstance(action, Wait):
            self.lease.check()
            growth = {"grows_to": action.grows_to} if isinstance(action, EndAttempt) and action.grows_to else {}
            self.store.append(Decision(action=action.kind, why=action.why, **growth))
        match action:
            case Launch():
                self.attempt.launch(action)
            case EndAttempt():
                self.attempt.end(action, view)
            case Replace():
                self._replace(action, view)
            case Reboot():
                self._reboot(action, view)
            case Hold():
                self.attempt.hold(action, view)

    def _reboot(self, action: Reboot, view: Observation) -> None:
        """Reboot nodes, and wait for them as long as an instance boots; one that EC2 refuses is replaced next."""
        instances = {node.name: str(node.instance) for node in view.nodes}
        for node, reason in zip(action.nodes, action.reasons, strict=True):
            boot_end, refusal = self.clock.now() + timedelta(seconds=BOOT.seconds), ""
            try:
                self.nodes.reboot(instances[node])
            except ClientError as error:
                boot_end, refusal = self.clock.now(), str(explained(error).seen)
            self.store.append(
                NodeRebooted(node=node, instance=instances[node], reason=reason, until=boot_end, refusal=refusal)
            )
        self.attempt.take_over()

    def _replace(self, action: Replace, view: Observation) -> None:
        views = {node.name: node for node in view.nodes}
        for node, reason in zip(action.nodes, action.reasons, strict=True):
            instance = views[node].instance if node in views else None
            peers = action.nodes[1:]
            place: dict[str, Any] = {"others": peers} if peers and node == action.nodes[0] else {}
            if node in peers:
                place = {"first_node": action.nodes[0]}
            dead = self.attempt.died(node, view)
            event = self.store.append(NodeQuarantined(node=node, instance=instance, reason=reason, died=dead, **place))
            self.attempt.note_repair(event.at)
            if node in views:
                memory.note_node(self, views[node], reason, event.at)
            self.nodes.quarantine(node, "replaced", event.at if dead else None)
            if instance:
                self.returns.give_back(instance)

    def pause(self) -> None:
        self.exporter.live_on()
        self.silence.postpone()  # also in a wait without looks, as for the archive
        self._rest(self.config.poll.total_seconds())
