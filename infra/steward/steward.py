"""The steward's loop: observe, decide, act, record. `decide` holds all judgement, this module all effects.

When the record, the cluster or AWS refuses a call, the act breaks off as after a kill and starts again from the record.
The clocks go on meanwhile, and the bill stays bounded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime

from lightkube import Client

from infra.aws.account import Account
from infra.checkpoints.place import bucket_place
from infra.clock import Clock
from infra.cluster import attempts
from infra.cluster.nodes import GpuNodes
from infra.cluster.pod_logs import PodLogs
from infra.cluster.steward_config import Relaunch, StewardConfig
from infra.record.events import Kind
from infra.record.lease import Lease
from infra.record.store import CampaignStore
from infra.spec.names import Names
from infra.steward import archiving, gangs, last_resort, resume_state
from infra.steward.blame import causes_first
from infra.steward.copying.copier import Copier
from infra.steward.decide import (
    Action,
    Attempt,
    EndAttempt,
    FailureClass,
    Finish,
    GiveBack,
    Hold,
    Launch,
    Observation,
    Policy,
    Replace,
    Wait,
)
from infra.steward.policy import policy_of
from infra.steward.reconcile import reconcile
from infra.steward.returns import Returns
from infra.steward.seeing.committed import Committed
from infra.steward.seeing.logs import LogShipper
from infra.steward.seeing.lookout import Lookout
from infra.steward.seeing.sources import PASSING
from infra.steward.seeing.tiers import TierWatch
from infra.steward.seeing.trainer_events import TrainerEvents
from trainer.contract import NOTHING_SOUND

_SHIP_REST_S = 15.0
_BROKEN_GANG_GRACE_S = 1
_STOP_MARGIN_S = 15.0


class Steward:
    def __init__(
        self,
        config: StewardConfig,
        account: Account,
        client: Client,
        pod_logs: PodLogs,
        store: CampaignStore,
        lease: Lease,
        rest: Callable[[float], None] = time.sleep,
        clock: Clock | None = None,
    ) -> None:
        """`pod_logs` has connections of its own. `rest` sleeps between two turns; its argument is in seconds."""
        self.config, self.account, self.client, self.store, self.lease = config, account, client, store, lease
        self.clock = clock or Clock()
        self.names, self.kind = Names(config.spec), attempts.kind_of(config.spec)
        self.nodes = GpuNodes(account, client, self.names, lease.check)
        self.returns = Returns(self.nodes.replace)
        self.lookout = Lookout(config, client, self.nodes, store, lease, self.clock)
        self.observer, self.sources = self.lookout.observer, self.lookout.sources
        self.trainer_events = TrainerEvents(store)
        self.logs = LogShipper(pod_logs, store, self.trainer_events.take)
        self.tiers = TierWatch(store, bucket=bucket_place(store.s3, config.shared_tier))
        self.committed = Committed(config.spec.campaign, store.state(), bucket=self.tiers.bucket)
        self.policy = policy_of(config)
        self._archived = False
        self.copier = Copier(self)
        self._take_over()
        self.lookout.take_over(store.state(), self.attempt)
        self._rest = rest

    def run(self) -> None:
        """Run until training is over and archived and the GPU nodes are at zero."""
        while True:
            try:
                return self._campaign()
            except PASSING as error:
                self._ride_through(error)

    def _ride_through(self, error: Exception) -> None:
        """Wait until acts may be tried again. The only act meanwhile is to give the GPU nodes back."""
        self.sources.failed("acts", error)
        try:
            over = self.store.state().outcome is not None
        except PASSING:
            over = False
        # An archive has bounds of its own: `means_patience` is for training.
        policy = self.policy.model_copy(update={"means_patience": self.policy.blind_timeout}) if over else self.policy
        _, action = self._look(policy)
        if isinstance(action, GiveBack):
            self._give_back(action)
        while not self.sources.due("acts"):
            self.pause()

    def _campaign(self) -> None:
        self.lease.check()
        last_resort.sign(self.client, os.uname().nodename)
        state = self.store.state()
        at = (self.kind, self.config.spec.campaign)
        reconcile(self.client, self.store, self.nodes, self.returns, *at, self.committed_step())
        self._take_over()
        if state.outcome is None:
            finish = self._train()
            committed = self.committed.to_record()
            self.store.append(Kind.TRAINING_FINISHED, outcome=finish.outcome, why=finish.why, committed_step=committed)
        self.copier.stop()
        # The archive copies the logs from the bucket.
        self.logs.flush()
        if not self._archived and self.store.state().archive is None and self.committed.may_be_there():
            archiving.record(self)
        self._archived = True  # or its failure is recorded
        self.logs.close()
        self.nodes.set_desired(0)
        if not self.store.state().closed:
            self.store.append(Kind.NODES_AT_ZERO, group=self.names.gpu_group)

    def _take_over(self) -> None:
        """Read history, hold and the attempt in flight from the record."""
        state = self.store.state()
        self.history = resume_state.history(state)
        self.attempt, self.in_flight = resume_state.in_flight(state)
        if self.observer.clocks.attempt not in (0, self.attempt):
            self.observer.launched(self.attempt)
        self.held_since: datetime | None = state.hold["since"] if state.hold is not None else None
        self._running_recorded = any(
            event.kind is Kind.ATTEMPT_RUNNING and event.data["attempt"] == self.attempt
            for event in self.store.events()
        )

    def _resume(self) -> Finish | None:
        """Finish what a predecessor left half done; adopt a newer configuration."""
        if resume_state.done(self.store.state()):
            return Finish(outcome="done", why="every pod of the gang succeeded")
        if self.in_flight and self.attempt not in attempts.jobs(self.client, self.kind, self.config.spec.campaign):
            self._interrupt("its job is gone: a steward that ended was stopping it, or somebody removed it")
        if self.config.relaunch is not None and self.config.version > self.store.state().version:
            self._relaunch(self.config.relaunch)
        return None

    def _relaunch(self, relaunch: Relaunch) -> None:
        """Put the newer configuration into force; earlier failures no longer count."""
        if self.in_flight:
            self._interrupt(f"{relaunch.who} requested a relaunch")
        self.store.append(
            Kind.RELAUNCHED,
            version=self.config.version,
            committed_step=self.committed_step(),
            **relaunch.model_dump(mode="json"),
        )
        self._take_over()

    def _interrupt(self, why: str) -> None:
        seen = self.observer.observe(self.attempt, True, self.committed_step(), False)
        self._act(EndAttempt(failure=FailureClass.INTERRUPTED, why=why), seen)

    def committed_step(self) -> int:
        """Return the newest step known to be committed on the shared tier, -1 when there is none."""
        return self.committed.step()

    def _train(self) -> Finish:
        if (finish := self._resume()) is not None:
            return finish
        while True:
            self.returns.again()
            seen, action = self._look(self.policy)
            action = self.copier.before(action)
            for pod in seen.pods:
                if pod.phase != "Pending":
                    self.logs.follow(pod.name)
            self.tiers.tell(self.observer.agents)
            if not self.sources.away("record"):
                self._note_running(seen)
                self.copier.look(seen.committed_step)
            if isinstance(action, Finish):
                self._finished(action, seen)
                return action
            self._act(action, seen)
            self.sources.answered("acts")
            self.pause()

    def _look(self, policy: Policy) -> tuple[Observation, Action]:
        at, held = (self.attempt, self.in_flight, self.committed_step()), self.held_since
        troubles = (*self.returns.refused(), *self.committed.troubles(), *self.copier.under_way())
        return self.lookout.look(policy, self.history, at, held, troubles, self.trainer_events.loss)

    def _give_back(self, action: GiveBack) -> None:
        grace, at = self.config.grace_seconds, (self.kind, self.config.spec.campaign)
        unguarded = GpuNodes(self.account, self.client, self.names, lambda: None)
        if last_resort.give_back(self.client, unguarded, self.lease, *at, grace, self.pause, action.why):
            self.lookout.given_back = action.why

    def _act(self, action: Action, seen: Observation) -> None:
        if isinstance(action, GiveBack):
            return self._give_back(action)
        if not isinstance(action, Wait):
            self.lease.check()
            self.store.append(Kind.DECISION, action=action.kind, why=action.why)
        match action:
            case Launch():
                self._launch(action)
            case EndAttempt():
                self._end(action, seen)
            case Replace():
                self._replace(action, seen)
            case Hold():
                self._hold(action, seen)

    def _hold(self, action: Hold, seen: Observation) -> None:
        ended = next(a for a in self.store.state().attempts if a["attempt"] == action.attempt)
        event = self.store.append(
            Kind.HELD,
            attempt=action.attempt,
            failure=ended["failure"],
            cause=ended["detail"],
            log=ended.get("log", []),
            until=action.until.isoformat(timespec="seconds"),
            usd_per_hour=float(seen.usd_per_hour),
        )
        self.held_since = event.at

    def _launch(self, action: Launch) -> None:
        for earlier in range(1, action.attempt):
            attempts.remove(self.client, self.kind, gangs.job(self.config, earlier))
        self.logs.forget()
        self.lease.check()
        labels = gangs.labels(self.config, action.attempt)
        config = f"train-a{action.attempt}"
        attempts.create_config(self.client, config, labels, gangs.files(self.config, self.nodes.facts(False)))
        attempts.launch(self.client, gangs.gang(self.config, action.attempt, config))
        self.attempt, self.in_flight, self._running_recorded = action.attempt, True, False
        self.observer.launched(action.attempt)
        self.store.append(
            Kind.ATTEMPT_LAUNCHED,
            attempt=action.attempt,
            jobset=gangs.job(self.config, action.attempt),
            committed_step=self.committed_step(),
        )

    def _end(self, action: EndAttempt, seen: Observation) -> None:
        """Record the end before the job is removed, so that a successor after a kill knows of it."""
        if action.failure is FailureClass.INTERRUPTED:
            self._let_commit()
        self.logs.wait_for([pod.name for pod in seen.pods if pod.phase in ("Failed", "Succeeded")], _SHIP_REST_S)
        # A successor does not follow the pods of an attempt that the record calls ended.
        self.logs.flush()
        launched = next((a for a in self.store.state().attempts if a["attempt"] == self.attempt), {})
        committed = self.committed_step()
        named = {*action.dead_nodes, action.first_failed}
        instances = {node.name: node.instance for node in seen.nodes if node.name in named and node.instance}
        event = self.store.append(
            Kind.ATTEMPT_ENDED,
            attempt=self.attempt,
            failure=action.failure,
            detail=action.why,
            **action.model_dump(mode="json", include={"dead_nodes", "first_failed", "culprit"}),
            instances=instances,
            step=max((pod.step for pod in seen.pods), default=0),
            committed_at_end=committed,
            nothing_sound=any(pod.reason == NOTHING_SOUND for pod in seen.pods),
            log=self._last_words(action, seen),
        )
        ended = Attempt(
            number=self.attempt,
            failure=action.failure,
            ended_at=event.at,
            committed_at_launch=int(launched.get("committed_step", -1)),
            committed_at_end=committed,
            dead_nodes=action.dead_nodes,
            first_failed=action.first_failed,
            instances=instances,
        )
        self.history = self.history.model_copy(update={"attempts": (*self.history.attempts, ended)})
        self.in_flight = False
        attempts.remove(self.client, self.kind, gangs.job(self.config, self.attempt))
        if action.failure is not FailureClass.INTERRUPTED:
            attempts.end_now(self.client, gangs.labels(self.config, self.attempt), _BROKEN_GANG_GRACE_S)

    def _last_words(self, action: EndAttempt, seen: Observation) -> list[str]:
        """Return the log's tail of the pod whose own failure came first: the cause, for a person."""
        failed = causes_first([pod for pod in seen.pods if pod.phase == "Failed"])
        return self.logs.tail(failed[0].name) if failed and action.failure is not FailureClass.INTERRUPTED else []

    def _let_commit(self) -> None:
        """Ask the gang to stop, and wait: it commits a checkpoint before it ends."""
        attempts.remove(self.client, self.kind, gangs.job(self.config, self.attempt))
        until = time.monotonic() + self.config.grace_seconds + _STOP_MARGIN_S
        while attempts.pods(self.client, gangs.labels(self.config, self.attempt)) and time.monotonic() < until:
            self.lease.check()
            self.pause()

    def _replace(self, action: Replace, seen: Observation) -> None:
        instances = {node.name: node.instance for node in seen.nodes}
        for node, reason in zip(action.nodes, action.reasons, strict=True):
            instance = instances.get(node)
            event = self.store.append(Kind.NODE_QUARANTINED, node=node, instance=instance, reason=reason)
            self.history = self.history.model_copy(update={"repairs": (*self.history.repairs, event.at)})
            self.nodes.quarantine(node, "replaced")
            if instance:
                self.returns.give_back(instance)

    def _finished(self, action: Finish, seen: Observation) -> None:
        self.store.append(Kind.DECISION, action=action.kind, why=action.why)
        if action.outcome == "done":
            self.logs.wait_for([pod.name for pod in seen.pods], _SHIP_REST_S)
            self.logs.flush()
            self.store.append(
                Kind.ATTEMPT_ENDED,
                attempt=self.attempt,
                failure=None,
                detail=action.why,
                step=self.config.steps,
                committed_at_end=self.committed_step(),
            )
        self.in_flight = False

    def _note_running(self, seen: Observation) -> None:
        # A short attempt may succeed before every pod has answered a probe.
        ran = seen.pods and all(pod.step > 0 or pod.phase == "Succeeded" for pod in seen.pods)
        if self._running_recorded or not ran:
            return
        self._running_recorded = True
        nodes, node_ranks = [pod.node for pod in seen.pods], [pod.node_rank for pod in seen.pods]
        told = {"step": min(pod.step for pod in seen.pods), "nodes": nodes, "node_ranks": node_ranks}
        self.store.append(Kind.ATTEMPT_RUNNING, attempt=self.attempt, **told)

    def pause(self) -> None:
        self._rest(self.config.poll.total_seconds())
