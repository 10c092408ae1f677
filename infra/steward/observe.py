"""What the steward sees: pods, their agents, nodes, money, time. Only looks; never acts."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from lightkube import Client
from lightkube.models.core_v1 import ContainerStateTerminated
from lightkube.resources.core_v1 import Pod

from infra.actions import attempts
from infra.actions.fitness import NodeFacts
from infra.actions.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, COMPLETION_INDEX
from infra.actions.nodes import GpuNodes
from infra.actions.sickbay import Sickbay
from infra.actions.starting import has_started, is_over, why_not
from infra.actions.steward_config import StewardConfig
from infra.steward.decide import NodeView, Observation, PodView
from trainer.contract import AGENT_PORT, Status

_PROBE_TIMEOUT_S = 1.0


class Observer:
    """Remembers what was seen last, so that silence has a length."""

    def __init__(self, config: StewardConfig, client: Client, nodes: GpuNodes, spent_usd: Decimal) -> None:
        self.config, self.client, self.nodes = config, client, nodes
        self.spent_usd = spent_usd
        """Since the campaign's begin, over all stewards."""
        self.statuses: dict[str, Status] = {}
        self.agents: dict[str, str] = {}
        """Pod name -> pod IP, as far as known."""
        self._answered: dict[str, float] = {}
        self._seen: dict[int, PodView] = {}
        self._running_since: dict[str, float] = {}
        self._launched, self._stepped, self._step = time.monotonic(), time.monotonic(), 0
        self._sickbay = Sickbay()
        self._short_since: float | None = None
        self._metered: float | None = None
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="probe")

    def launched(self) -> None:
        """A new attempt begins: its clocks start at zero."""
        self._launched = self._stepped = time.monotonic()
        self._step = 0
        self.statuses.clear()
        self._answered.clear()
        self._running_since.clear()
        self._seen.clear()

    def observe(
        self,
        attempt: int,
        in_flight: bool,
        committed_step: int,
        stop_requested: bool,
        held_since: datetime | None = None,
    ) -> Observation:
        facts = self.nodes.facts()
        self._meter(facts)
        pods = self._pods(attempt) if in_flight else ()
        wanted = self.config.spec.nodes.count
        views = self._node_views(facts)
        self._short(sum(view.fit for view in views) < wanted)
        now = time.monotonic()
        slowest = min((pod.step for pod in pods), default=0)
        if slowest > self._step:
            self._step, self._stepped = slowest, now
        return Observation(
            now=datetime.now(UTC),
            deadline=self.config.deadline,
            spent_usd=self.spent_usd,
            usd_per_hour=self._rate(facts),
            attempt=attempt,
            in_flight=in_flight,
            pods=pods,
            nodes=views,
            nodes_wanted=wanted,
            since_launch=timedelta(seconds=now - self._launched),
            since_step=timedelta(seconds=now - self._stepped),
            since_short=None if self._short_since is None else timedelta(seconds=now - self._short_since),
            committed_step=committed_step,
            stop_requested=stop_requested,
            held_since=held_since,
        )

    def _pods(self, attempt: int) -> tuple[PodView, ...]:
        labels = {CAMPAIGN_LABEL: self.config.spec.campaign, ATTEMPT_LABEL: str(attempt)}
        pods = attempts.pods(self.client, labels)
        running = [pod for pod in pods if _phase(pod) == "Running" and pod.status and pod.status.podIP]
        self.agents = {_name(pod): str(pod.status.podIP) for pod in running if pod.status}
        for pod, status in zip(running, self._pool.map(_probe, running), strict=True):
            self._running_since.setdefault(_name(pod), time.monotonic())
            if status is not None:
                self.statuses[_name(pod)] = status
                self._answered[_name(pod)] = time.monotonic()
        views = {view.index: view for view in map(self._view, pods)}
        for index, view in self._seen.items():
            # A pod that was there and is no more (evicted, deleted) has not ended well.
            views.setdefault(index, view.model_copy(update={"phase": "Missing", "detail": "the pod is gone"}))
        self._seen = views
        return tuple(views[index] for index in sorted(views))

    def _view(self, pod: Pod) -> PodView:
        name, now = _name(pod), time.monotonic()
        status = self.statuses.get(name)
        answered, running = self._answered.get(name), self._running_since.get(name)
        ended = _ended(pod)
        reason, detail = _last_word(ended)
        annotations = (pod.metadata.annotations if pod.metadata else None) or {}
        return PodView(
            index=int(annotations.get(COMPLETION_INDEX, "0")),
            name=name,
            node=pod.spec.nodeName if pod.spec else None,
            phase=_phase(pod),
            exit_code=ended.exitCode if ended else None,
            reason=reason,
            detail=detail,
            ended_at=ended.finishedAt if ended else None,
            silent_for=None if answered is None else timedelta(seconds=now - answered),
            running_for=None if running is None else timedelta(seconds=now - running),
            waits="" if is_over(pod) or has_started(pod) else why_not(pod, ""),
            trainer_phase=status.phase if status else None,
            step=status.step if status else 0,
            committed_step=status.committed_step if status else -1,
        )

    def _node_views(self, facts: tuple[NodeFacts, ...]) -> tuple[NodeView, ...]:
        needed = self.config.accelerators
        sick_for = self._sickbay.look(facts, needed)
        return tuple(
            NodeView(
                name=node.name,
                instance=node.instance,
                ready=node.ready,
                instance_state=node.instance_state,
                quarantined=node.quarantined,
                unfit=node.unfit(needed),
                suspected=node.suspected(needed),
                sick_for=sick_for[node.name],
            )
            for node in facts
        )

    def _short(self, short: bool) -> None:
        if not short:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = time.monotonic()

    def _rate(self, facts: tuple[NodeFacts, ...]) -> Decimal:
        """USD per hour at this moment: every GPU instance that has not gone bills, fit or not."""
        billing = sum(node.instance_state != "gone" for node in facts)
        return self.config.base_usd_per_hour + billing * self.config.node_usd_per_hour

    def _meter(self, facts: tuple[NodeFacts, ...]) -> None:
        now = time.monotonic()
        if self._metered is not None:
            self.spent_usd += self._rate(facts) * Decimal(now - self._metered) / 3600
        self._metered = now


def _probe(pod: Pod) -> Status | None:
    """The agent's status, or None: silence is not death."""
    address = pod.status.podIP if pod.status else None
    try:
        with urllib.request.urlopen(f"http://{address}:{AGENT_PORT}/status", timeout=_PROBE_TIMEOUT_S) as answer:
            return Status.model_validate_json(answer.read())
    except (OSError, ValueError):
        return None


def _ended(pod: Pod) -> ContainerStateTerminated | None:
    for container in (pod.status.containerStatuses if pod.status else None) or ():
        if container.state and container.state.terminated:
            return container.state.terminated
    return None


def _last_word(ended: ContainerStateTerminated | None) -> tuple[str, str]:
    """(reason, detail) of the termination message; the container's own words where there is none."""
    message = (ended.message or ended.reason or "") if ended else ""
    try:
        content: Any = json.loads(message)
    except ValueError:
        return "", message[:300]
    if not isinstance(content, dict):
        return "", message[:300]
    reason = str(content.get("reason", ""))
    return reason, f"{reason}: {content.get('detail', '')}"[:300]


def _phase(pod: Pod) -> Any:
    phase = (pod.status.phase if pod.status else None) or "Pending"
    return phase if phase in ("Pending", "Running", "Succeeded", "Failed") else "Missing"


def _name(pod: Pod) -> str:
    return str(pod.metadata.name if pod.metadata else "")
