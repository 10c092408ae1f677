"""The steward's loop: observe, decide, act, record. All judgement is in `decide`; all effects are here."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from lightkube import Client

from infra.account import Account
from infra.actions import archive_job, attempts
from infra.actions.archive import ArchiveConfig
from infra.actions.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, Gang
from infra.actions.nodes import GpuNodes
from infra.actions.steward_config import Relaunch, StewardConfig
from infra.errors import PermanentError
from infra.events import Kind
from infra.lease import Lease
from infra.names import Names
from infra.steward import past
from infra.steward.decide import (
    Action,
    Attempt,
    EndAttempt,
    Failure,
    Finish,
    Hold,
    Launch,
    Observation,
    Replace,
    Wait,
    decide,
)
from infra.steward.hearing import Hearing
from infra.steward.live import Live
from infra.steward.logs import LogShipper
from infra.steward.observe import Observer
from infra.steward.policy import policy_of
from infra.steward.reconcile import reconcile
from infra.steward.tiers import TierWatch
from infra.store import STOP, CampaignStore
from trainer.contract import COMMITTED_NAME, SHARED_CHECKPOINTS, step_of_folder

_SHIP_REST_S = 3.0
_BROKEN_GANG_GRACE_S = 1
_STOP_MARGIN_S = 15.0


class Steward:
    def __init__(
        self, config: StewardConfig, account: Account, client: Client, store: CampaignStore, lease: Lease
    ) -> None:
        self.config, self.account, self.client, self.store, self.lease = config, account, client, store, lease
        self.names = Names(config.spec)
        self.nodes = GpuNodes(account, client, self.names, lease.check)
        self.observer = Observer(config, client, self.nodes, past.spent(store, config))
        self.hearing = Hearing(store)
        self.logs = LogShipper(client, store, self.hearing.take)
        self.tiers, self.live = TierWatch(store), Live(store, config.train.steps)
        self._take_over()
        self._ending = threading.Event()

    def run(self) -> None:
        """Until training is over, archived, and the GPU nodes are at zero."""
        state = self.store.state()
        reconcile(self.client, self.store, self.nodes, self.config.spec.campaign, self.committed_step())
        self._take_over()
        if state.outcome is None:
            finish = self._train()
            self.store.append(
                Kind.TRAINING_FINISHED, outcome=finish.outcome, why=finish.why, committed_step=self.committed_step()
            )
        # The archive carries the logs as they lie in the bucket.
        self.logs.flush()
        if self.store.state().archive is None and self.committed_step() >= 0:
            self._record_archive()
        self.logs.close()
        self.nodes.set_desired(0)
        if not self.store.state().closed:
            self.store.append(Kind.NODES_AT_ZERO, group=self.names.gpu_group)

    def _take_over(self) -> None:
        """History, hold and the attempt in flight, as the record has them."""
        state = self.store.state()
        self.history = past.history(state)
        self.attempt, self.in_flight = past.in_flight(state)
        self.held_since: datetime | None = state.hold["since"] if state.hold is not None else None
        self._running_recorded = any(
            event.kind is Kind.ATTEMPT_RUNNING and event.data["attempt"] == self.attempt
            for event in self.store.events()
        )

    def _resume(self) -> Finish | None:
        """Finish what a predecessor left half done; take up a newer configuration."""
        if past.done(self.store.state()):
            return Finish(outcome="done", why="every pod of the gang succeeded")
        if self.in_flight and self.attempt not in attempts.jobsets(self.client, self.config.spec.campaign):
            self._interrupt("its job is gone: it was being stopped when the steward ended, or was removed by hand")
        if self.config.relaunch is not None and self.config.version > self.store.state().version:
            self._relaunch(self.config.relaunch)
        return None

    def _relaunch(self, relaunch: Relaunch) -> None:
        """The newer configuration is in force from here; failures so far count no more."""
        if self.in_flight:
            self._interrupt(f"a relaunch was asked for by {relaunch.who}")
        self.store.append(
            Kind.RELAUNCHED,
            version=self.config.version,
            committed_step=self.committed_step(),
            **relaunch.model_dump(mode="json"),
        )
        self._take_over()

    def _interrupt(self, why: str) -> None:
        seen = self.observer.observe(self.attempt, True, self.committed_step(), False)
        self._act(EndAttempt(failure=Failure.INTERRUPTED, why=why), seen)

    def committed_step(self) -> int:
        """Step of the newest checkpoint committed on the shared tier, -1 when there is none."""
        folder = Path(SHARED_CHECKPOINTS) / self.config.spec.campaign
        found = [path.parent.name for path in folder.glob(f"step-*/{COMMITTED_NAME}")]
        return max((step for name in found if (step := step_of_folder(name)) is not None), default=-1)

    def _train(self) -> Finish:
        policy = policy_of(self.config)
        if (finish := self._resume()) is not None:
            return finish
        while True:
            self.lease.check()
            stop = self.store.get_json(STOP) is not None
            seen = self.observer.observe(self.attempt, self.in_flight, self.committed_step(), stop, self.held_since)
            for pod in seen.pods:
                if pod.phase != "Pending":
                    self.logs.follow(pod.name)
            self._note_running(seen)
            action = decide(seen, policy, self.history)
            self.tiers.tell(self.observer.agents)
            self.live.tell(seen, action, self.hearing.loss)
            if isinstance(action, Finish):
                self._finished(action, seen)
                return action
            self._act(action, seen)
            self._pause()

    def _act(self, action: Action, seen: Observation) -> None:
        if not isinstance(action, Wait):
            self.store.append(Kind.DECISION, action=action.kind, why=action.why)
        match action:
            case Launch():
                self._launch(action)
            case EndAttempt():
                self._end(action, seen)
            case Replace():
                self._replace(action.nodes, action.why, seen)
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
            attempts.remove(self.client, self._job(earlier))
        self.lease.check()
        labels = self._labels(action.attempt)
        config = f"train-a{action.attempt}"
        attempts.create_config(self.client, config, labels, {"train.json": self.config.train.model_dump_json(indent=1)})
        attempts.launch(self.client, self._gang(action.attempt, config))
        self.attempt, self.in_flight, self._running_recorded = action.attempt, True, False
        self.observer.launched()
        self.store.append(
            Kind.ATTEMPT_LAUNCHED,
            attempt=action.attempt,
            jobset=self._job(action.attempt),
            committed_step=self.committed_step(),
        )

    def _end(self, action: EndAttempt, seen: Observation) -> None:
        """Record the end first: whoever takes over after a kill right here knows that it has ended."""
        if action.failure is Failure.INTERRUPTED:
            self._let_commit()
        self.logs.wait_for([pod.name for pod in seen.pods if pod.phase in ("Failed", "Succeeded")], _SHIP_REST_S)
        launched = next((a for a in self.store.state().attempts if a["attempt"] == self.attempt), {})
        committed = self.committed_step()
        ended = Attempt(
            number=self.attempt,
            failure=action.failure,
            committed_at_launch=int(launched.get("committed_step", -1)),
            committed_at_end=committed,
            dead_nodes=action.dead_nodes,
        )
        self.store.append(
            Kind.ATTEMPT_ENDED,
            attempt=self.attempt,
            failure=action.failure,
            detail=action.why,
            dead_nodes=list(action.dead_nodes),
            step=max((pod.step for pod in seen.pods), default=0),
            committed_at_end=committed,
            log=self._last_words(action, seen),
        )
        self.history = self.history.model_copy(update={"attempts": (*self.history.attempts, ended)})
        self.in_flight = False
        attempts.remove(self.client, self._job(self.attempt))
        if action.failure is not Failure.INTERRUPTED:
            attempts.end_now(self.client, self._labels(self.attempt), _BROKEN_GANG_GRACE_S)

    def _last_words(self, action: EndAttempt, seen: Observation) -> list[str]:
        """Of the pod that failed first with this very error: the cause, as the person who mends it reads it."""
        failed = [pod.name for pod in seen.pods if pod.phase == "Failed"]
        return self.logs.tail(failed[0]) if failed and action.failure is not Failure.INTERRUPTED else []

    def _let_commit(self) -> None:
        """Ask the gang to stop and wait until it has: what it commits now is what the stop is for."""
        attempts.remove(self.client, self._job(self.attempt))
        until = time.monotonic() + self.config.grace_seconds + _STOP_MARGIN_S
        while attempts.pods(self.client, self._labels(self.attempt)) and time.monotonic() < until:
            self.lease.check()
            self._pause()

    def _replace(self, nodes: tuple[str, ...], why: str, seen: Observation) -> None:
        instances = {node.name: node.instance for node in seen.nodes}
        for node in nodes:
            instance = instances.get(node)
            event = self.store.append(Kind.NODE_QUARANTINED, node=node, instance=instance, reason=why)
            self.history = self.history.model_copy(update={"repairs": (*self.history.repairs, event.at)})
            self.nodes.quarantine(node, "dead")
            if instance:
                self.nodes.replace(instance)

    def _finished(self, action: Finish, seen: Observation) -> None:
        self.store.append(Kind.DECISION, action=action.kind, why=action.why)
        if action.outcome == "done":
            self.logs.wait_for([pod.name for pod in seen.pods], _SHIP_REST_S)
            self.store.append(
                Kind.ATTEMPT_ENDED,
                attempt=self.attempt,
                failure=None,
                detail=action.why,
                step=self.config.train.steps,
                committed_at_end=self.committed_step(),
            )
        self.in_flight = False

    def _note_running(self, seen: Observation) -> None:
        if self._running_recorded or not seen.pods or any(pod.step == 0 for pod in seen.pods):
            return
        self._running_recorded = True
        self.store.append(
            Kind.ATTEMPT_RUNNING,
            attempt=self.attempt,
            step=min(pod.step for pod in seen.pods),
            nodes=[pod.node for pod in seen.pods],
        )

    def _record_archive(self) -> None:
        """A failed archive is said, and costs no more GPU time: what is on the shared tier stays there."""
        try:
            self.store.append(Kind.ARCHIVE_VERIFIED, **self._archive())
        except PermanentError as error:
            self.store.append(Kind.ARCHIVE_FAILED, error=str(error))

    def _archive(self) -> dict[str, Any]:
        config = ArchiveConfig(
            campaign=self.config.spec.campaign,
            region=self.config.spec.region,
            state_bucket=self.config.state_bucket,
            archive_bucket=self.config.archive_bucket,
            image_manifest=self.config.image_manifest,
        )
        job = archive_job.manifest(config, self.config.image, self.config.accelerators)
        train = self.config.train.model_dump_json(indent=1)
        return archive_job.run(self.client, config, job, train, self.lease.check, self._pause, self.logs.follow)

    def _labels(self, attempt: int) -> dict[str, str]:
        return {CAMPAIGN_LABEL: self.config.spec.campaign, ATTEMPT_LABEL: str(attempt)}

    def _job(self, attempt: int) -> str:
        return f"{self.config.spec.campaign}-a{attempt}"

    def _gang(self, attempt: int, config: str) -> Gang:
        return Gang(
            name=self._job(attempt),
            campaign=self.config.spec.campaign,
            attempt=attempt,
            image=self.config.image,
            code_digest=self.config.code_digest,
            nodes=self.config.spec.nodes.count,
            ranks_per_node=self.config.ranks_per_node,
            accelerators=self.config.accelerators,
            efa_interfaces=self.config.efa_interfaces,
            efa_by_claim=self.config.spec.addons.efa == "dra",
            command=("python", "-m", "trainer.agent"),
            config_map=config,
            grace_seconds=self.config.grace_seconds,
        )

    def _pause(self) -> None:
        self._ending.wait(self.config.poll.total_seconds())
