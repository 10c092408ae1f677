"""Kueue's word on a gang: whether it may start, and why not. Pure, on the objects as the API server gives them.

A gang with a queue is made suspended. Kueue makes a Workload for it, reserves quota, and lets it start; it suspends it
again to preempt it. Until then no pod is there, which is neither a failure nor a hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.utils.quantity import parse_quantity

from trainer.contract.frozen import Frozen

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
REQUIRED_TOPOLOGY = f"{GROUP}/podset-required-topology"
PREFERRED_TOPOLOGY = f"{GROUP}/podset-preferred-topology"
Workload = create_namespaced_resource(GROUP, VERSION, "Workload", "workloads")
LocalQueue = create_namespaced_resource(GROUP, VERSION, "LocalQueue", "localqueues")
ClusterQueue = create_global_resource(GROUP, VERSION, "ClusterQueue", "clusterqueues")
WorkloadPriorityClass = create_global_resource(GROUP, VERSION, "WorkloadPriorityClass", "workloadpriorityclasses")

Object = Mapping[str, Any]
State = Literal[
    "unnoticed", "waiting", "checking", "evicting", "evicted", "stopped", "vanished", "admitted", "finished"
]  # fmt: skip
VANISHED = (
    "the gang's job is not there any more, and we did not end it: Kueue deletes what it has stopped after its "
    "afterDeactivatedByKueue, or somebody did; how the attempt ended is not known"
)
"""What is said of a job that is gone. With it Kueue's Workload is gone too, and every reason."""
_LONGEST = 300
"""Length in characters to which messages are cut."""
_CAUSES = {
    "InClusterQueue": "another gang of its queue took its quota by priority",
    "InCohortReclamation": "its quota was borrowed, and the owner took it back",
    "InCohortReclaimWhileBorrowing": "a gang of the cohort took its quota by priority",
    "InCohortFairSharing": "its queue held more than its fair share of the cohort",
    "PodsReadyTimeout": "its pods were not ready within the time that Kueue allows",
    "AdmissionCheck": "an admission check took its admission back",
    "ClusterQueueStopped": "an admin has stopped the ClusterQueue",
    "LocalQueueStopped": "an admin has stopped the LocalQueue",
}
"""Kueue's reason for an eviction -> the same for people; others stand as Kueue has them."""


class QueuePlace(Frozen):
    """Where a gang stands in its queue."""

    state: State
    """`unnoticed`: Kueue has made no Workload. `waiting`: for quota. `checking`: quota is reserved, an admission check
    is not ready. `evicting`: its pods are being ended. `evicted`: it waits again. `stopped`: somebody or a limit of
    Kueue took it out, and Kueue never starts it by itself. `vanished`: its job is gone. `admitted`: its pods may start.
    `finished`: it has ended."""
    reason: str = ""
    """Kueue's own word, such as `Pending`, `Inadmissible`, `Preempted`, `NodeFailures`."""
    message: str = ""
    """Kueue's own sentence."""

    @property
    def waits(self) -> bool:
        """True while no pod can be expected, so that no clock of pods counts."""
        return self.state not in ("admitted", "finished")

    @property
    def words(self) -> str:
        """The state for people; empty once the pods may start."""
        if not self.waits:
            return ""
        text = {
            "unnoticed": "Kueue has not noticed the gang: see that it runs, and that the queue exists",
            "waiting": "the gang waits for quota",
            "checking": "the gang has quota and waits for an admission check",
            "evicting": "Kueue ends the gang's pods",
            "evicted": "Kueue has ended the gang's pods, and it waits again",
            "stopped": "Kueue will not start the gang by itself",
            "vanished": VANISHED,
        }[self.state]
        if self.state == "waiting" and not self.reason:
            text = f"{text}, and Kueue has not looked at it yet: others are before it"
        return ": ".join(filter(None, [text, _CAUSES.get(self.reason, ""), self.reason, self.message]))


def queue_place(job_uid: str, workloads: Iterable[Object]) -> QueuePlace:
    """Return the place of the job with this uid, of the Workloads of its namespace."""
    own_workloads = [workload for workload in workloads if _owns(job_uid, workload)]
    if not own_workloads:
        return QueuePlace(state="unnoticed")
    # Kueue makes a new one where the job no longer equals the old one, which stays until it is finished.
    newest = max(own_workloads, key=lambda workload: str(workload["metadata"].get("creationTimestamp", "")))
    return _place(newest)


def _owns(job_uid: str, workload: Object) -> bool:
    return any(owner.get("uid") == job_uid for owner in workload["metadata"].get("ownerReferences") or ())


def _place(workload: Object) -> QueuePlace:
    status = workload.get("status") or {}
    conditions = {row["type"]: row for row in status.get("conditions") or ()}

    def holds(kind: str) -> bool:
        return bool(conditions.get(kind, {}).get("status") == "True")

    def place_of(state: State, *kinds: str) -> QueuePlace:
        row: Object = next((conditions[kind] for kind in kinds if kind in conditions), {})
        message = " ".join(str(row.get("message", "")).split())[:_LONGEST]
        return QueuePlace(state=state, reason=str(row.get("reason", "")), message=message)

    if holds("Finished"):
        return place_of("finished", "Finished")
    if workload.get("spec", {}).get("active") is False:
        return place_of("stopped", "Evicted", "QuotaReserved")
    if holds("Evicted"):
        # `Preempted` names who took the quota; `Evicted` says only that somebody did.
        kinds = ("Preempted", "Evicted") if holds("Preempted") else ("Evicted",)
        return place_of("evicting" if holds("QuotaReserved") else "evicted", *kinds)
    if holds("Admitted"):
        return place_of("admitted", "Admitted")
    if holds("QuotaReserved"):
        return _check_place(status) or place_of("checking", "Admitted", "QuotaReserved")
    return place_of("waiting", "QuotaReserved")


def _check_place(status: Object) -> QueuePlace | None:
    """Return the place by the first admission check that is not ready; None if none says so."""
    open_checks = [row for row in status.get("admissionChecks") or () if row.get("state") != "Ready"]
    if not open_checks:
        return None
    check = open_checks[0]
    message = " ".join(str(check.get("message", "")).split())[:_LONGEST]
    return QueuePlace(state="checking", reason=f"{check.get('name')} is {check.get('state')}", message=message)


def quantities(amounts: Mapping[str, str]) -> dict[str, Decimal]:
    """Return resource -> amount in Kubernetes' units: cores, bytes, devices."""
    return {name: parse_quantity(text) or Decimal() for name, text in amounts.items()}


def pod_demand(pod: Object, overhead: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Return resource -> what a pod takes of its node: what its containers request, and the `overhead` that its
    RuntimeClass adds. https://kubernetes.io/docs/concepts/scheduling-eviction/pod-overhead/"""
    totals = dict(overhead)
    for container in pod["containers"]:
        for name, amount in quantities((container.get("resources") or {}).get("requests", {})).items():
            totals[name] = totals.get(name, Decimal()) + amount
    return totals


def demand(jobset: Object, overhead: Mapping[str, Decimal] = MappingProxyType({})) -> dict[str, Decimal]:
    """Return resource -> what all pods of a JobSet take together, as Kueue counts them: with their overhead."""
    totals: dict[str, Decimal] = {}
    for group in jobset["spec"]["replicatedJobs"]:
        job = group["template"]["spec"]
        count = group.get("replicas", 1) * job.get("parallelism", 1)
        for name, amount in pod_demand(job["template"]["spec"], overhead).items():
            totals[name] = totals.get(name, Decimal()) + count * amount
    return totals


class QuotaGaps(Frozen):
    """What keeps a gang from being admitted by a ClusterQueue, for ever or while others need their quota."""

    uncovered: tuple[str, ...] = ()
    """Resources for which no flavour has quota, in words."""
    short: tuple[str, ...] = ()
    """Resources of which no flavour has enough, in words."""
    borrowed: tuple[str, ...] = ()
    """Resources of which the queue's own quota has too little, so that the rest is borrowed, in words."""


def quota_gaps(cluster_queue: Object, amounts: Mapping[str, Decimal]) -> QuotaGaps:
    """Return the gaps between a ClusterQueue's flavours and what a gang takes. What others use now does not count, and
    neither does what it may borrow of a cohort without limit."""
    spec = cluster_queue.get("spec") or {}
    in_cohort = bool(spec.get("cohortName"))
    groups = spec.get("resourceGroups") or ()
    quota_names = {name for group in groups for name in group.get("coveredResources") or ()}
    missing_names = [
        f"{name}, of {', '.join(sorted(quota_names)) or 'none'}" for name in sorted(amounts) if name not in quota_names
    ]
    short: list[str] = []
    borrowed: list[str] = []
    for group in groups:
        names = [name for name in sorted(amounts) if name in (group.get("coveredResources") or ())]
        own, most = _offers(group, in_cohort=False), _offers(group, in_cohort=in_cohort)
        # All pods of the gang are alike, and all resources of a group come from one flavour.
        if not names or any(_suffices(offer, amounts, names) for offer in own.values()):
            continue
        enough = [flavour for flavour, offer in most.items() if _suffices(offer, amounts, names)]
        borrowed += [_words(flavour, own[flavour], amounts, names) for flavour in enough]
        if not enough:
            short += [_words(flavour, offer, amounts, names) for flavour, offer in most.items()]
    return QuotaGaps(uncovered=tuple(missing_names), short=tuple(short), borrowed=tuple(borrowed))


def _offers(group: Object, *, in_cohort: bool) -> dict[str, dict[str, Decimal | None]]:
    """Return flavour -> resource -> the most that it can give; None where only the cohort limits it."""
    return {
        flavour["name"]: {row["name"]: _quota_limit(row, in_cohort) for row in flavour.get("resources") or ()}
        for flavour in group.get("flavors") or ()
    }


def _quota_limit(row: Object, in_cohort: bool) -> Decimal | None:
    """Return the most of a resource that a flavour can give; None where only its cohort limits it."""
    nominal = parse_quantity(str(row.get("nominalQuota", "0"))) or Decimal()
    if not in_cohort:
        return nominal
    limit = row.get("borrowingLimit")
    return None if limit is None else nominal + (parse_quantity(str(limit)) or Decimal())


def _suffices(offer: Mapping[str, Decimal | None], amounts: Mapping[str, Decimal], names: Iterable[str]) -> bool:
    return all((limit := offer.get(name, Decimal())) is None or limit >= amounts[name] for name in names)


def _words(flavour: str, offer: Mapping[str, Decimal | None], amounts: Mapping[str, Decimal], names: list[str]) -> str:
    lacking = [
        f"{limit.normalize():f} {name} of {amounts[name].normalize():f}"
        for name in names
        if (limit := offer.get(name, Decimal())) is not None and limit < amounts[name]
    ]
    return f"{flavour}: {', '.join(lacking)}"
