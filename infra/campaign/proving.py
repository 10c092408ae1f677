"""One health check of the gang: starts its pods, waits for them, and reads their reports or why they did not start."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from infra.campaign.verdicts import ANSWER, REPORT, START
from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob
from infra.cluster.kubernetes import JobSet, may_pass
from infra.cluster.pod_start import (
    cure_of,
    ending,
    has_started,
    is_over,
    last_words,
    name_of,
    node_of,
    warnings,
    why_not,
)
from infra.cluster.standing.queueing import QueuePlace
from infra.plan import catalogue
from infra.plan.layout import layout
from infra.plan.survey import environment
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from trainer.contract import DCGM_LONGEST_S, HealthReport, Probe

CONFIG = "preflight"
EXPECTATION = "expectation.json"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_RUN_S = 600.0
"""Time for joining and measuring once all containers run, with a margin."""
_LOOK_S = 0.3
_NO_QUEUE = QueuePlace(state="admitted")
_WARNINGS_EVERY = 10
"""Looks at the pods between two looks at the warnings, which are many in a large gang."""
LONGEST_NAME = 45
"""Longest JobSet name: the pods' names add 18 characters and must be valid host names."""


@dataclass(frozen=True)
class PreflightProof:
    reports: dict[str, HealthReport]
    """By node."""
    unplaced: tuple[Probe, ...]
    """One for each pod that no node took."""


@dataclass
class _Watch:
    """The pods of one gang as last seen, including those that are gone."""

    gang: str
    wanted: int
    pods: dict[str, Pod] = field(default_factory=dict)
    ended: list[Pod] = field(default_factory=list)
    running: list[Pod] = field(default_factory=list)
    waiting: list[Pod] = field(default_factory=list)
    vanished: set[str] = field(default_factory=set)
    """Names of pods that went before they ended: their nodes went with them."""
    warnings: Mapping[str, str] = field(default_factory=dict)
    queue: QueuePlace = _NO_QUEUE
    """The gang's place in its queue; without one its pods may start."""
    evicted: set[str] = field(default_factory=set)
    """Names of pods that the queue has ended; the gang that starts again has others."""

    def see(self, pods: list[Pod], queue: QueuePlace = _NO_QUEUE) -> None:
        """Note these pods, and what the queue said after they were listed."""
        self.queue = queue
        if queue.waits:
            self.pods, self.evicted = {}, self.evicted | {name_of(pod) for pod in pods}
        pods = [pod for pod in pods if name_of(pod) not in self.evicted]
        self.pods |= {name_of(pod): pod for pod in pods}
        missing = self.pods.keys() - {name_of(pod) for pod in pods}
        self.vanished = {name for name in missing if not is_over(self.pods[name])}
        left = [pod for name, pod in self.pods.items() if name not in self.vanished]
        self.ended = [pod for pod in left if is_over(pod)]
        self.running = [pod for pod in left if not is_over(pod) and has_started(pod)]
        self.waiting = [pod for pod in left if not is_over(pod) and not has_started(pod)]

    @property
    def unmade(self) -> int:
        return max(0, self.wanted - len(self.pods))

    @property
    def all_started(self) -> bool:
        return not self.waiting and not self.unmade

    def progress_text(self) -> str:
        """Return the progress, and the cause of the wait."""
        if self.queue.waits:
            return f"health check: {self.queue.words}"
        if self.all_started:
            return f"health check: {len(self.ended)} of {self.wanted} nodes have answered"
        text = f"health check: {len(self.ended) + len(self.running)} of {self.wanted} pods run"
        if not self.waiting:
            return f"{text}; {self._unmade()}"
        pod, *rest_pods = self.waiting
        suffix = f"; {len(rest_pods)} more wait" if rest_pods else ""
        return f"{text}; {node_of(pod) or name_of(pod)}: {self.wait_reason(pod)[:240]}{suffix}"

    def wait_reason(self, pod: Pod) -> str:
        return why_not(pod, self.warnings.get(name_of(pod), ""))

    def pods_by_node(self) -> dict[str, Pod]:
        """Return the pods by node, without the vanished ones."""
        return {node_of(pod): pod for pod in (*self.ended, *self.running, *self.waiting) if node_of(pod)}

    def start_probes(self) -> tuple[Probe, ...]:
        nowhere = [self.wait_reason(pod) for pod in self.waiting if not node_of(pod)]
        return tuple(_start(words) for words in [*nowhere, *[self._unmade()] * self.unmade])

    def _unmade(self) -> str:
        """Return the message for missing pods, with the last warning about the JobSet or its Job, which make them."""
        event_names = (name for name in self.warnings if name == self.gang or name.startswith(f"{self.gang}-"))
        messages = [self.warnings[name] for name in event_names if name not in self.pods]
        last_warning = f"last warning: {messages[-1]}" if messages else ""
        return "; ".join(filter(None, [f"no pod was made for {self.unmade}", self.queue.words, last_warning]))


def health_check(expectation: str) -> tuple[str, ...]:
    """Return the command of a pod; `expectation`: a file of the config map."""
    return ("python", "-m", "trainer.health", "--expectation", f"/config/{expectation}")


def prove(context: Context, client: Client, left_out: Sequence[str] = (), **changes: Any) -> PreflightProof:
    """Run the health check as a gang over all nodes but those `left_out`. `changes`: fields of the gang that differ.

    Starting is bounded by `recovery.startup_timeout`, the checks by `_RUN_S`, both by the deadline; while the gang
    waits in a queue, by the deadline alone, and it ends once the queue has stopped the gang for good. Each gang has its
    own name, so that a pod of a killed driver's gang is never mistaken for one of this gang.
    """
    labels: dict[str, Any] = {CAMPAIGN_LABEL: context.spec.campaign, ATTEMPT_LABEL: "0"}
    for old in client.list(JobSet, labels=labels):
        attempts.remove(client, JobSet, str(old.metadata.name if old.metadata else ""))
    name = f"{context.spec.campaign}-preflight-{int(time.time() * 1000):x}"[-LONGEST_NAME:]
    gang = _gang(context, name, health_check(EXPECTATION)).model_copy(update=changes)
    context.guard()
    attempts.launch(client, gang, context.spec.cluster, left_out)
    watch = _wait(context, client, labels | {JOBSET_LABEL: name}, _Watch(name, gang.nodes))
    proof = PreflightProof(
        {node: _report(client, pod, watch) for node, pod in watch.pods_by_node().items()}, watch.start_probes()
    )
    attempts.remove(client, JobSet, name)
    return proof


def _wait(context: Context, client: Client, labels: Mapping[str, str], watch: _Watch) -> _Watch:
    """Wait until every pod has ended, or those that started have and no other may start, or the time is over."""
    longest = _RUN_S + DCGM_LONGEST_S.get(context.spec.preflight.dcgm_level or 0, 0.0)
    startup_s = context.spec.recovery.startup_timeout.total_seconds()
    start_until = time.monotonic() + startup_s
    end_until: float | None = None
    for turn in itertools.count():
        blind = ""
        try:
            pods = attempts.pods(client, labels)  # first: what is gone before the queue answers, it may have ended
            watch.see(pods, _queue_place(context, client, watch.gang))
            if turn % _WARNINGS_EVERY == _WARNINGS_EVERY // 2 and not watch.all_started:
                watch.warnings = warnings(client)
        except httpx2.HTTPError as error:
            if not may_pass(error):
                raise
            blind = f"; could not look, the cluster does not answer: {error}"[:200]
        now = time.monotonic()
        if watch.queue.state in ("stopped", "vanished"):  # Kueue never starts it any more
            break
        if watch.queue.waits:
            start_until, end_until = now + startup_s, None
        late = now > start_until
        if end_until is None and (watch.all_started or late):
            end_until = now + longest
        if (watch.all_started or late) and not watch.running:
            break
        if (end_until is not None and now > end_until) or datetime.now(UTC) >= context.deadline:
            break
        context.progress.step(watch.progress_text() + blind)
        time.sleep(_LOOK_S)
    if not watch.all_started:
        watch.warnings = warnings(client)
    return watch


def _queue_place(context: Context, client: Client, gang: str) -> QueuePlace:
    cluster = context.spec.cluster
    if cluster is None or cluster.queue is None:
        return _NO_QUEUE
    return attempts.ask_queue(client, JobSet, gang, cluster.namespace)


def _gang(context: Context, name: str, command: tuple[str, ...]) -> GangJob:
    bake, shape = BakeOutput.of(context.outputs), layout(context.spec)
    instance = catalogue.instance_type(context.spec.nodes.instance_type)
    return GangJob(
        name=name,
        campaign=context.spec.campaign,
        attempt=0,
        image=bake.image,
        code_digest=bake.code,
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        accelerators=instance.accelerators,
        efa_interfaces=instance.efa_interfaces,
        efa_by_claim=context.spec.addons.efa == "dra",
        command=command,
        config_map=CONFIG,
        grace_seconds=5,
        each_to_its_end=True,
        # On borrowed nodes the fabric is proven from where the job uses it.
        host_network=context.spec.borrows_nodes and context.spec.runtime.host_network,
        shares=context.spec.storage.shared is not None,
        sees_node=environment(context.spec).makes_cluster,
    )


def _report(client: Client, pod: Pod, watch: _Watch) -> HealthReport:
    """Return the pod's report, or one that says why there is none."""
    end = ending(pod)
    if end is not None:
        try:
            return HealthReport.model_validate_json(end.message or "")
        except ValueError:
            words = (end.message or "")[:200] or f"exit code {end.exitCode} without a report"
            facts = f"{words}; {last_words(client, name_of(pod))}"
            probe = Probe(name=REPORT, ok=False, seen=facts, wanted="a health report")
    elif has_started(pod):
        probe = Probe(
            name=ANSWER,
            ok=False,
            seen=f"still runs; {last_words(client, name_of(pod))}",
            wanted=f"an end within {_RUN_S:.0f} s, and what a diagnostic takes",
            cure="a file system or a device does not answer: the last log lines name the probe that hangs",
        )
    else:
        probe = _start(watch.wait_reason(pod))
    return HealthReport(node=node_of(pod), probes=(probe,))


def _start(words: str) -> Probe:
    return Probe(name=START, ok=False, seen=words, wanted="a running container", cure=cure_of(words))
