"""The attempt that trains, or the last one that did: its launch, its end, and what the record says of it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from http import HTTPStatus

from infra.cluster import attempts
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched, AttemptRunning, GangResized
from infra.record.payloads.checkpoints import TrainingStartedOver
from infra.record.payloads.stages import Decision
from infra.record.payloads.training import Held
from infra.record.store import STACKS, CampaignStore
from infra.steward import gangs, resume_state
from infra.steward.blame import causes_first, closing_words
from infra.steward.decide import EndAttempt, FailureClass, Finish, Hold, Launch, Observation
from infra.steward.parts import Parts
from infra.steward.seeing import agents
from infra.steward.seeing.sources import PASSING
from trainer.contract import NOTHING_SOUND

_SHIP_REST_S = 15.0
_BROKEN_GANG_GRACE_S = 1
_STOP_MARGIN_S = 15.0
_HANGS = (FailureClass.HANG, FailureClass.STARTUP)
_COMMITS = (FailureClass.INTERRUPTED, FailureClass.QUEUE)
"""Ends of a sound gang: its pods have their grace."""


log = logging.getLogger("steward")
_PATH = "/stacks"
"""Of an agent: `trainer.supervisor.stacks`."""
_WITHIN_S = 25.0
"""An agent takes 20 s at most. The gang hangs for minutes already, and waits no longer than that for its end."""
_MOST_PODS = 64
"""All of them are asked at once, so that those that do not answer are waited for once."""
Get = Callable[[str, str, float], agents.HttpAnswer]


def keep_stacks(
    store: CampaignStore, attempt: int, addresses: Mapping[str, str], suspect: str | None = None, get: Get = agents.get
) -> tuple[str, ...]:
    """Store the stacks of each pod that answers, and return the names of the objects below the record. `addresses`: pod
    -> its agent's. `suspect`: a pod that is asked though there are more than are kept. No trouble of it delays the end
    of a gang that hangs."""
    pods = sorted(addresses, key=lambda pod: (pod != suspect, pod))[:_MOST_PODS]
    with ThreadPoolExecutor(_MOST_PODS, thread_name_prefix="stacks") as pool:
        texts = dict(zip(pods, pool.map(lambda pod: _ask(addresses[pod], get), pods), strict=True))
    names = list[str]()
    for pod, text in texts.items():
        name = f"{STACKS}attempt-{attempt}/{pod}.txt"
        if text is None:
            continue
        try:
            store.put(f"{store.prefix}/{name}", text.encode(errors="replace"))
        except PASSING as error:
            log.warning("the stacks of %s are not kept: %s", pod, error)
        else:
            names.append(name)
    return tuple(sorted(names))


def _ask(address: str, get: Get) -> str | None:
    """Return an agent's stacks; None if it does not answer, or knows no such question."""
    try:
        answer = get(address, _PATH, _WITHIN_S)
        text = json.loads(answer.body)["stacks"] if answer.code == HTTPStatus.OK else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.info("no stacks from %s: %s", address, error)
        return None
    return text if isinstance(text, str) else None


class NewestAttempt:
    def __init__(self, steward: Parts) -> None:
        self._steward, self._config, self._client = steward, steward.config, steward.client
        self._store, self._logs, self._observer = steward.store, steward.logs, steward.observer
        self.kind = attempts.kind_of(steward.config.spec)
        """Of its job: JobSet or MPIJob."""
        self.take_over()

    @property
    def labels(self) -> dict[str, str]:
        return gangs.labels(self._config, self.number)

    @property
    def job(self) -> str:
        return gangs.job(self._config, self.number)

    def take_over(self) -> None:
        """Read history, hold and the attempt in flight from the record."""
        state = self._store.state()
        self.history = resume_state.history(state)
        self.number, self.in_flight = resume_state.in_flight(state)
        self.nodes = state.attempts[-1].launched.nodes if state.attempts else 0
        """Of its gang; 0: all of the spec's."""
        if self._observer.clocks.attempt not in (0, self.number):
            self._observer.begin_attempt(self.number)
        self.held_since: datetime | None = state.held_since
        self._running_recorded = any(
            isinstance(event.payload, AttemptRunning) and event.payload.attempt == self.number
            for event in self._store.events()
        )

    def launch(self, action: Launch) -> None:
        for old_number in range(1, action.attempt):
            attempts.remove(self._client, self.kind, gangs.job(self._config, old_number))
        self._logs.forget()
        self._steward.lease.check()
        config, files = f"train-a{action.attempt}", gangs.files(self._config, self._steward.nodes.facts(False))
        attempts.create_config(self._client, config, gangs.labels(self._config, action.attempt), files)
        gang = gangs.gang(self._config, action.attempt, config, action.nodes)
        self._note_size(action)
        attempts.launch(self._client, gang, self._config.spec.cluster, self._steward.nodes.left_out)
        self.number, self.in_flight, self._running_recorded = action.attempt, True, False
        self.nodes = action.nodes
        self._observer.begin_attempt(self.number)
        newest_step = self._steward.committed_step()
        size = {"nodes": action.nodes} if action.nodes else {}
        self._store.append(AttemptLaunched(attempt=self.number, jobset=self.job, committed_step=newest_step, **size))
        self._note_start_over(newest_step)

    def _note_size(self, action: Launch) -> None:
        """Record once that the attempt trains on another number of nodes than the one before."""
        node_count = self._config.spec.nodes.count
        sizes = [event.payload.nodes for event in self._store.events() if isinstance(event.payload, GangResized)]
        nodes, previous_nodes = action.nodes or node_count, sizes[-1] if sizes else node_count
        if nodes != previous_nodes:
            change = {"nodes": nodes, "previous_nodes": previous_nodes, "of": node_count}
            self._store.append(GangResized(attempt=action.attempt, why=action.why, **change))

    def _note_start_over(self, newest_step: int) -> None:
        """Record that the attempt begins at step 0 although an earlier one has trained."""
        trained_steps = [record.ended.step or 0 for record in self._store.state().attempts if record.ended is not None]
        if newest_step < 0 and max(trained_steps, default=0) > 0:
            reason = "no checkpoint of it was committed; if it wrote one, no format recognised it"
            self._store.append(TrainingStartedOver(attempt=self.number, before=max(trained_steps), why=reason))

    def note_running(self, view: Observation) -> None:
        # A short attempt may succeed before every pod has answered a probe.
        is_running = view.pods and all(pod.step > 0 or pod.phase == "Succeeded" for pod in view.pods)
        if self._running_recorded or not is_running:
            return
        self._running_recorded = True
        nodes, node_ranks = [pod.node for pod in view.pods], [pod.node_rank for pod in view.pods]
        fields = {"step": min(pod.step for pod in view.pods), "nodes": nodes, "node_ranks": node_ranks}
        self._store.append(AttemptRunning(attempt=self.number, **fields))

    def hold(self, action: Hold, view: Observation) -> None:
        end_record = next(record.ended for record in self._store.state().attempts if record.number == action.attempt)
        assert end_record is not None, "an attempt that failed has ended"
        event = self._store.append(
            Held(
                attempt=action.attempt,
                failure=end_record.failure,
                cause=end_record.detail,
                log=end_record.log,
                until=action.until.isoformat(timespec="seconds"),
                usd_per_hour=float(view.usd_per_hour),
            )
        )
        self.held_since = event.at

    def note_repair(self, repair_at: datetime) -> None:
        self.history = self.history.model_copy(update={"repairs": (*self.history.repairs, repair_at)})

    def died(self, node: str, view: Observation) -> bool:
        """Return whether a node that is given up was dead, and never computed wrongly."""
        attempts_so_far = self.history.attempts
        was_sick = any(node in attempt.sick_nodes for attempt in attempts_so_far)
        was_dead = bool(attempts_so_far) and node in attempts_so_far[-1].dead_nodes
        is_ready = any(row.name == node and row.ready is True for row in view.nodes)
        return not was_sick and (was_dead or not is_ready)

    def end(self, action: EndAttempt, view: Observation) -> None:
        """Record the end before the job is removed, so that a successor after a kill knows of it."""
        stacks: tuple[str, ...] = ()
        if action.failure in _COMMITS:
            self._let_commit()
        elif action.failure in _HANGS:  # before the ranks are gone
            suspect = next((pod.name for pod in view.pods if pod.node == action.first_failed), None)
            stacks = keep_stacks(self._store, self.number, self._observer.agents, suspect)
            self._steward.lease.check()
        self._logs.wait_for([pod.name for pod in view.pods if pod.phase in ("Failed", "Succeeded")], _SHIP_REST_S)
        # A successor does not follow the pods of an attempt that the record calls ended.
        self._logs.flush()
        blamed_nodes = {*action.dead_nodes, action.first_failed}
        instances = {node.name: node.instance for node in view.nodes if node.name in blamed_nodes and node.instance}
        self._store.append(
            AttemptEnded(
                attempt=self.number,
                failure=action.failure,
                detail=action.why,
                **action.model_dump(mode="json", include={"dead_nodes", "sick_nodes", "first_failed", "culprit"}),
                instances=instances,
                step=max((pod.step for pod in view.pods), default=0),
                committed_at_end=self._steward.committed_step(),
                began=not view.pods or any(pod.phase != "Pending" for pod in view.pods),
                nothing_sound=any(pod.reason == NOTHING_SOUND for pod in view.pods),
                **({"grows_to": action.grows_to} if action.grows_to else {}),
                log=self._last_words(action, view),
                stacks=stacks,
            )
        )
        record = next(record for record in self._store.state().attempts if record.number == self.number)
        failed_attempt = resume_state.to_attempt(record)
        self.history = self.history.model_copy(update={"attempts": (*self.history.attempts, failed_attempt)})
        self.in_flight = False
        attempts.remove(self._client, self.kind, self.job)
        if action.failure not in _COMMITS:
            attempts.end_now(self._client, self.labels, _BROKEN_GANG_GRACE_S)

    def _last_words(self, action: EndAttempt, view: Observation) -> list[str]:
        """Return the log's tail of the pod whose own failure came first: the cause, for a person."""
        pods = causes_first([pod for pod in view.pods if pod.phase == "Failed"])
        return self._logs.tail(pods[0].name) if pods and action.failure is not FailureClass.INTERRUPTED else []

    def _let_commit(self) -> None:
        """Ask the gang to stop, and wait: it commits a checkpoint before it ends."""
        attempts.remove(self._client, self.kind, self.job)
        deadline = time.monotonic() + self._config.grace_seconds + _STOP_MARGIN_S
        while attempts.pods(self._client, self.labels) and time.monotonic() < deadline:
            self._steward.lease.check()
            self._steward.pause()

    def finish(self, action: Finish, view: Observation) -> None:
        self._store.append(Decision(action=action.kind, why=action.why))
        if action.outcome == "done":
            self._logs.wait_for([pod.name for pod in view.pods], _SHIP_REST_S)
            self._logs.flush()
            self._store.append(
                AttemptEnded(
                    attempt=self.number,
                    failure=None,
                    detail=action.why,
                    words=closing_words(view.pods),
                    # A job of anybody may end before or after its estimate.
                    step=max((pod.step for pod in view.pods), default=0) or self._config.steps,
                    committed_at_end=self._steward.committed_step(),
                )
            )
        self.in_flight = False
