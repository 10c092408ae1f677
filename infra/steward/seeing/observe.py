"""The steward's observation of pods, their agents, nodes, money and time. It changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Any, NamedTuple

from lightkube import Client
from lightkube.models.core_v1 import ContainerStateTerminated
from lightkube.resources.core_v1 import Pod
from pydantic import TypeAdapter, ValidationError

from infra.clock import Clock
from infra.cluster import attempts
from infra.cluster.fitness import ConditionHistory, NodeFacts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, index_of
from infra.cluster.pod_start import has_started, is_over, states, why_not
from infra.cluster.standing.borrowed import GangNodes
from infra.cluster.standing.queueing import QueuePlace
from infra.cluster.steward_config import StewardConfig
from infra.record.meter import Reading
from infra.steward import gangs
from infra.steward.clocks import Clocks
from infra.steward.decide import NodeView, Observation, PodView
from infra.steward.seeing import agents
from infra.steward.seeing.node_looks import NodeLooks
from infra.steward.seeing.sources import Away, Sources
from trainer.contract import AGENT_PORT, Status
from trainer.contract.culprit import RankSeen

_PROBE_TIMEOUT_S = 1.0
_READ_METER_S = 60.0
_PROBES_AT_ONCE = 128
"""So a look at 512 pods of which each takes its whole time lasts 4 s. Threads are started when they are needed."""
_NO_QUEUE = QueuePlace(state="admitted")
_RANKS = TypeAdapter(tuple[RankSeen, ...])


class Observer:
    """Remembers the last answers, to measure silences and to fill in for a source that does not answer."""

    def __init__(
        self,
        config: StewardConfig,
        client: Client,
        nodes: GangNodes,
        read_meter: Callable[[], Reading],
        clock: Clock,
        sources: Sources,
    ) -> None:
        self.config, self.client, self.nodes, self.clock, self.sources = config, client, nodes, clock, sources
        self._read_meter, reading = read_meter, read_meter()
        self.spent_usd, self._prepaid = reading.spent_usd, reading.prepaid
        self.nodes_counted = round(reading.gpu_share * config.spec.nodes.count)
        """GPU nodes that bill according to the record."""
        self.nodes_billing = self.nodes_counted
        """GPU nodes that bill, as they were seen last."""
        self.statuses: dict[str, Status] = {}
        self.agents: dict[str, str] = {}
        """Pod name -> pod IP, for running pods."""
        self.clocks = Clocks.begin(0, clock.monotonic())
        self._began = clock.monotonic()
        self._settled = True
        """Every running pod has answered since the clocks were taken over, or had time to."""
        self._heard: dict[str, float] = {}
        self._running_since: dict[str, float] = {}
        self._seen: dict[int, PodView] = {}
        self._failed_at: float | None = None
        self._pods_known: list[Pod] = []
        self._queue_seen = (0, _NO_QUEUE)
        """Attempt, and its place in the queue as last heard."""
        self._stopped_at: float | None = None
        self._first: dict[str, str] = {}
        """Pod -> its identity, which another pod of its name does not have."""
        self._node_looks = NodeLooks(nodes, sources, clock.monotonic)
        self._conditions = ConditionHistory(clock.monotonic)
        self._metered = self._read = clock.monotonic()
        self._pool = ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="probe")

    def begin_attempt(self, attempt: int) -> None:
        """Start the clocks of a new attempt and forget the last one's pods."""
        self.clocks = Clocks.begin(attempt, self.clock.monotonic(), self.clocks)
        self._settled = True
        self.statuses.clear()
        self._heard.clear()
        self._running_since.clear()
        self._seen.clear()
        self._failed_at = None
        self._first.clear()
        self._pods_known = []

    def go_on_from(self, clocks: Clocks) -> None:
        """Continue a predecessor's clocks. The gang may have stepped since they were stored."""
        self.clocks, self._settled, self._began = clocks, False, self.clock.monotonic()
        self._conditions.first = dict(clocks.sick)

    def observe(
        self,
        attempt: int,
        in_flight: bool,
        committed_step: int,
        stop_requested: bool,
        held_since: datetime | None = None,
        gang_nodes: int = 0,
    ) -> Observation:
        """Return what is seen now. `gang_nodes`: of the attempt in flight; 0: all of the spec's."""
        facts = self._node_looks.look(bool(self.clocks.quiet))
        pods = self._pods(attempt) if in_flight else ()
        # After the pods: the queue suspends a gang before it ends its pods, so none of them is missed as a failure.
        place = self._queue_place(attempt) if in_flight else _NO_QUEUE
        is_vanished, is_stopped = place.state == "vanished", place.state == "stopped"
        self._stopped_at = (self._stopped_at or self.clock.monotonic()) if is_stopped else None
        node_count = self.config.spec.nodes.count
        rate = self._rate(facts, gang_nodes or node_count, is_queued=place.waits)
        self._meter(rate)
        if place.waits:
            self.begin_attempt(attempt)
            self.agents, pods = {}, ()
        views = self._node_views(facts or ())
        now = self.clock.monotonic()
        if facts is not None and not self.sources.away("cluster"):
            self.clocks.lacks(sum(view.fit for view in views) < (gang_nodes or node_count), now)
        self.clocks.note_restart(max((status.generation for status in self.statuses.values()), default=0), now)
        if not any(map(self._may_answer, pods)):  # it may be the slowest
            self.clocks.note_step(min(filter(None, map(self._step, pods)), default=0), now)
        short, failure_time = self.clocks.short, self._first_failure(pods, now)
        return Observation(
            now=self.clock.now(),
            deadline=self.config.nodes_until,
            spent_usd=self.spent_usd,
            usd_per_hour=rate,
            attempt=attempt,
            in_flight=in_flight,
            pods=pods,
            nodes=views,
            nodes_wanted=node_count,
            gang_nodes=gang_nodes,
            since_launch=self._lasts(self.clocks.launched, now, pods),
            since_step=self._lasts(self.clocks.stepped, now, pods),
            step=self.clocks.step,
            since_failed=None if failure_time is None else timedelta(seconds=now - failure_time),
            since_short=None if short is None else timedelta(seconds=now - short),
            committed_step=committed_step,
            queued="" if is_vanished else place.words,
            stopped_for=None if self._stopped_at is None else timedelta(seconds=now - self._stopped_at),
            vanished=place.words if is_vanished else "",
            stop_requested=stop_requested,
            held_since=held_since,
            unseen=self.sources.unseen(),
        )

    def _first_failure(self, pods: tuple[PodView, ...], now: float) -> float | None:
        if not any(pod.phase in ("Failed", "Missing") for pod in pods):
            self._failed_at = None
        elif self._failed_at is None:
            self._failed_at = now
        return self._failed_at

    def _step(self, pod: PodView) -> int:
        """Return a pod's step of the newest generation; 0 for one that knows none, or still tells of an earlier one. In
        some jobs only one node prints, and an older supervisor's other nodes may not hear of it."""
        status = self.statuses.get(pod.name)
        return pod.step if status is None or status.generation == self.clocks.generation else 0

    def _may_answer(self, pod: PodView) -> bool:
        """Return whether a pod has not answered yet, and has not had the time to."""
        running_time = pod.running_for or timedelta()
        is_unheard = pod.phase == "Running" and pod.name not in self._heard
        return is_unheard and running_time <= self.config.spec.recovery.heartbeat_timeout

    def _lasts(self, mark: float, now: float, pods: tuple[PodView, ...]) -> timedelta:
        """Return the time since `mark`, or since a takeover until the pods have answered: they may have stepped."""
        listen_s = now - self._began
        all_answered = pods and all(pod.name in self._heard for pod in pods if pod.phase == "Running")
        if all_answered or timedelta(seconds=listen_s) > self.config.spec.recovery.heartbeat_timeout:
            self._settled = True
        return timedelta(seconds=now - mark if self._settled else min(listen_s, now - mark))

    def _pods(self, attempt: int) -> tuple[PodView, ...]:
        labels = {CAMPAIGN_LABEL: self.config.spec.campaign, ATTEMPT_LABEL: str(attempt)}
        with suppress(Away):  # the agents answer without the API server
            self._pods_known = self.sources.ask("cluster", lambda: attempts.pods(self.client, labels))
        # The MPI operator makes a lost pod again. The gang that it belonged to does not live on by that.
        pods = [pod for pod in self._pods_known if self._first.setdefault(_name(pod), _uid(pod)) == _uid(pod)]
        running = [pod for pod in pods if _phase(pod) == "Running" and pod.status and pod.status.podIP]
        self.agents = {_name(pod): str(pod.status.podIP) for pod in running if pod.status}
        quiet = dict[str, float]()
        for pod, status in zip(running, self._pool.map(_probe, running), strict=True):
            name, now = _name(pod), self.clock.monotonic()
            self._running_since.setdefault(name, self.clocks.quiet.get(name, now))
            if status is not None:
                self.statuses[name] = status
                self._heard[name] = now
            else:
                last_answer = self._heard.get(name, self._running_since[name])
                quiet[name] = self.clocks.quiet.get(name, last_answer)
        self.clocks.quiet = quiet
        views = {view.index: view for view in map(self._view, pods)}
        for index, view in self._seen.items():
            # A pod that disappears (evicted, deleted) has failed.
            views.setdefault(index, view.model_copy(update={"phase": "Missing", "detail": "the pod is gone"}))
        self._seen = views
        return tuple(views[index] for index in sorted(views))

    def _queue_place(self, attempt: int) -> QueuePlace:
        """Return where the gang stands in its queue, as last heard of this attempt while it does not answer. A source
        of its own: what cannot be asked of the queue alone cuts off no stop, budget or deadline."""
        spec = self.config.spec
        if spec.cluster is None or spec.cluster.queue is None:
            return _NO_QUEUE
        kind, name, space = attempts.kind_of(spec), gangs.job(self.config, attempt), spec.cluster.namespace
        with suppress(Away):
            place = self.sources.ask("queue", lambda: attempts.ask_queue(self.client, kind, name, space))
            self._queue_seen = (attempt, place)
        number, place = self._queue_seen
        return place if number == attempt else _NO_QUEUE

    def _view(self, pod: Pod) -> PodView:
        name, now = _name(pod), self.clock.monotonic()
        status = self.statuses.get(name)
        last_answer, running = self._heard.get(name), self._running_since.get(name)
        termination = next((state.terminated for state in states(pod) if state.terminated is not None), None)
        last_word = _last_word(termination)
        return PodView(
            index=index_of(pod),
            name=name,
            node=pod.spec.nodeName if pod.spec else None,
            phase=_phase(pod),
            exit_code=termination.exitCode if termination else None,
            reason=last_word.reason,
            detail=last_word.detail,
            words=last_word.words,
            failed_rank=last_word.failed_rank,
            ended_at=termination.finishedAt if termination else None,
            silent_for=None if last_answer is None else timedelta(seconds=now - last_answer),
            running_for=None if running is None else timedelta(seconds=now - running),
            waits="" if is_over(pod) or has_started(pod) else why_not(pod, ""),
            node_rank=status.ranks[0].rank // self.config.ranks_per_node if status and status.ranks else None,
            trainer_phase=status.phase if status else None,
            step=max(last_word.step, status.step if status else 0),
            committed_step=status.committed_step if status else -1,
            ranks=last_word.ranks or (status.rank_views() if status and termination is None else ()),
            unrecognised=status.unrecognised if status else None,
        )

    def _node_views(self, facts: tuple[NodeFacts, ...]) -> tuple[NodeView, ...]:
        wanted_accelerators = self.config.accelerators
        sick_for = self._conditions.look(facts, wanted_accelerators, self.clock.now())
        self.clocks.sick = dict(self._conditions.first)
        return tuple(
            NodeView(
                name=node.name,
                instance=node.instance,
                ready=node.ready,
                instance_state=node.instance_state,
                quarantined=node.quarantined,
                unfit=node.unfit(wanted_accelerators),
                suspected=node.only_suspect(wanted_accelerators),
                sick_for=sick_for[node.name],
                cloud_notice=node.cloud_notice,
                reboot_cures=node.reboot_cures,
            )
            for node in facts
        )

    def _rate(self, facts: tuple[NodeFacts, ...] | None, gang_nodes: int, is_queued: bool) -> Decimal:
        """Return USD per hour now: every GPU instance that is not gone bills, fit or not; all of them if unknown. A
        gang that waits in a queue holds no node, and one on borrowed nodes as many as it has pods."""
        billing = self.config.spec.nodes.count
        if is_queued:
            billing = self.nodes_billing = 0
        elif facts is not None:
            billing = sum(node.instance_state != "gone" for node in facts)
            if self.config.spec.borrows_nodes:  # spare nodes are others' until a pod is on them
                billing = min(billing, gang_nodes)
            self.nodes_billing = billing
        return self.config.base_usd_per_hour + (0 if self._prepaid else billing) * self.config.node_usd_per_hour

    def _meter(self, rate: Decimal) -> None:
        """Read the record's meter once a minute, and reckon with the present rate in between."""
        now = self.clock.monotonic()
        self.spent_usd += rate * Decimal(now - self._metered) / 3600
        self._metered = now
        if now - self._read >= _READ_METER_S:
            with suppress(Away):
                reading = self.sources.ask("record", self._read_meter)
                self.spent_usd, self._prepaid, self._read = reading.spent_usd, reading.prepaid, now


def _probe(pod: Pod) -> Status | None:
    """Return the agent's status, or None when it does not answer."""
    address = str(pod.status.podIP) if pod.status else ""
    try:
        answer = agents.get(address, "/status", _PROBE_TIMEOUT_S, port=AGENT_PORT)
        return Status.model_validate_json(answer.body) if answer.code == HTTPStatus.OK else None
    except (OSError, ValueError):
        return None


class _LastWord(NamedTuple):
    """What a container said at its end."""

    reason: str = ""
    detail: str = ""
    ranks: tuple[RankSeen, ...] = ()
    words: str = ""
    failed_rank: int | None = None
    step: int = 0


def _last_word(termination: ContainerStateTerminated | None) -> _LastWord:
    """Return what the termination message tells, or the container's reason as detail when there is none."""
    message = (termination.message or termination.reason or "") if termination else ""
    try:
        content: Any = json.loads(message)
    except (ValueError, RecursionError):
        return _LastWord(detail=message[:300])
    if not isinstance(content, dict):
        return _LastWord(detail=message[:300])
    reason, words = str(content.get("reason", "")), str(content.get("detail", ""))
    rank, step = (value if isinstance(value, int) else None for value in (content.get("rank"), content.get("step")))
    return _LastWord(reason, f"{reason}: {words}"[:300], _ranks(content.get("ranks", ())), words[:300], rank, step or 0)


def _ranks(rank_list: Any) -> tuple[RankSeen, ...]:
    """Return a node's words about its ranks; none where they are of another version, since the end itself counts."""
    try:
        return _RANKS.validate_python(rank_list)
    except ValidationError:
        return ()


def _phase(pod: Pod) -> Any:
    phase = (pod.status.phase if pod.status else None) or "Pending"
    return phase if phase in ("Pending", "Running", "Succeeded", "Failed") else "Missing"


def _name(pod: Pod) -> str:
    return str(pod.metadata.name if pod.metadata else "")


def _uid(pod: Pod) -> str:
    return str(pod.metadata.uid if pod.metadata else "")
