"""The GPU nodes of an existing cluster, for the steward. No call changes a node or ends one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from lightkube import Client
from lightkube.models.core_v1 import NodeCondition, Taint
from lightkube.resources.core_v1 import Node, Pod

from infra.aws.account import Account
from infra.cluster.attempts import remove_now
from infra.cluster.fitness import Ailment, NodeFacts, Sickness
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.nodes import NETWORK_LABELS, GpuNodes, Guard, Launched
from infra.spec.campaign import Spec
from infra.spec.names import GPU_TAINT_KEY, Names
from infra.spec.standing import StandingCluster, Toleration

_HOLDING = ("NoSchedule", "NoExecute")
_RETURNED = " since "
"""Between the name of a node that came back and the time: no node's name has a space."""


_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d+)")
_EARLIER = tuple(f"network.topology.nvidia.com/{layer}" for layer in ("core", "spine", "leaf"))


def network_place(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the node's switches from the top layer down; empty where no label names one.

    NVIDIA/topograph writes `fabric.topograph.run/tier-N`, 0 the nearest switch (its page of node labels, at commit
    e2b6250); before its commit 71314a4 it wrote leaf, spine and core below `network.topology.nvidia.com`.
    """
    tiers = {int(match[1]): labels[match[0]] for match in map(_TIER.fullmatch, labels) if match}
    if tiers:
        return tuple(tiers[tier] for tier in sorted(tiers, reverse=True))
    for family in (_EARLIER, NETWORK_LABELS):
        if place := tuple(labels[name] for name in family if name in labels):
            return place
    return ()


class BorrowedNodes:
    """The nodes with the spec's labels, spare ones among them, with the calls of `GpuNodes`.

    A node that is given up is only left out: the pods' own affinity keeps the next gang off it. One that was dead comes
    back once it is Ready again; one that computed wrongly never does. A borrowed node has no instance of ours, so its
    name stands for it.
    """

    def __init__(self, client: Client, cluster: StandingCluster, campaign: str, wanted_count: int) -> None:
        self.client, self._cluster, self._wanted_count = client, cluster, wanted_count
        self._campaign = campaign
        self._unattended: set[str] = set()
        """Left-out nodes that may have pods of an ended gang."""
        self._left_out: dict[str, datetime | None] = {}
        """Node -> when it was found dead; None: it is left out for good."""
        self._returns: dict[str, str] = {}
        """Node that was dead -> since when it is Ready again, in words."""
        self.not_told: Exception | None = None
        """Always None: no other witness than Kubernetes is asked."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the nodes that no gang of the campaign gets for now, sorted."""
        return tuple(sorted(self._left_out))

    def facts(self, ask_ec2: bool = True) -> tuple[NodeFacts, ...]:
        """Return the nodes as Kubernetes sees them. Raises `httpx2.HTTPError` if it does not answer."""
        rows = tuple(self._facts(node) for node in self.client.list(Node, labels=dict(self._cluster.nodes.labels)))
        self._forget_pods()  # after the look: a node that is back has a living gang
        return rows

    def _facts(self, node: Node) -> NodeFacts:
        name = str(node.metadata.name if node.metadata else "")
        ready = ready_condition(node)
        self._take_back(name, ready)
        allocatable = (node.status.allocatable if node.status else None) or {}
        return NodeFacts(
            name=name,
            instance=self._instance(name),
            ready={"True": True, "False": False}.get(ready.status if ready else "Unknown"),
            quarantined=name in self._left_out,
            instance_state="unknown",
            accelerators=int(allocatable.get(GPU_TAINT_KEY, "0")),
            cordoned=bool(node.spec and node.spec.unschedulable),
            network=network_place((node.metadata.labels if node.metadata else None) or {}),
            ailments=tuple(self._ailments(node, name)),
        )

    def _ailments(self, node: Node, name: str) -> Iterator[Ailment]:
        if name in self._left_out:
            yield Ailment(words="left out by us", sickness=Sickness.HELD)
        if words := not_ready(node):
            ready = ready_condition(node)
            yield Ailment(words=words, sickness=Sickness.LATE, since=ready.lastTransitionTime if ready else None)
        for words in obstacles(node, self._cluster):
            yield Ailment(words=words, sickness=Sickness.HELD)

    def _take_back(self, name: str, ready: NodeCondition | None) -> None:
        """Let a node come to gangs again that was dead and has become Ready since."""
        died_at = self._left_out.get(name)
        ready_since = ready.lastTransitionTime if ready is not None and ready.status == "True" else None
        if died_at is not None and ready_since is not None and ready_since > died_at:
            del self._left_out[name]
            self._unattended.discard(name)
            self._returns[name] = ready_since.isoformat()

    def _instance(self, name: str) -> str:
        """Return what stands for the node's instance. A node that came back is another one: what an earlier attempt
        said of it no longer holds."""
        return f"{name}{_RETURNED}{self._returns[name]}" if name in self._returns else name

    def quarantine(self, node: str, reason: str, died_at: datetime | None = None) -> None:
        """Leave this node out of later gangs: for good, or if it was found dead, at `died_at`, until it is Ready again.

        The node itself stays as it is, whatever the `reason`.
        """
        self._left_out[node] = died_at

    def restore(self, deaths: Mapping[str, datetime | None]) -> None:
        """Leave out the nodes that the record names, also those that are away now; node -> when it was found dead, None
        for good."""
        self._left_out |= {node: died_at for node, died_at in deaths.items() if node not in self._left_out}

    def replace(self, instance: str) -> bool:
        """Leave the node out and return False: this call brings no other node. Spare ones are there or are waited
        for."""
        node = instance.partition(_RETURNED)[0]
        self._left_out.setdefault(node, None)
        self._unattended.add(node)
        return False

    def reboot(self, instance: str) -> None:
        """Do nothing: the node is its owner's. The steward asks for none here."""

    def _forget_pods(self) -> None:
        """Delete what waits for the kubelets of nodes that are left out: pods of an ended gang.

        Where a node is dead, its pods would stay as long as it does, and count against the quota, so that the next gang
        would wait for ever. Kubernetes warns that such a pod may still run. If it does, its checkpoints are those of an
        older attempt, which the fence of the shared tier refuses, and a kubelet that comes back ends it.
        """
        for node in tuple(self._unattended):
            listing = self.client.list(Pod, labels={CAMPAIGN_LABEL: self._campaign}, fields={"spec.nodeName": node})
            pods = [pod for pod in listing if _of_gang(pod)]
            if not pods:
                self._unattended.remove(node)
            for pod in pods:
                if pod.metadata is not None and pod.metadata.deletionTimestamp is not None:
                    remove_now(self.client, str(pod.metadata.name))

    def desired(self) -> int:
        """Return the number of nodes that the gang needs: it always wants as many."""
        return self._wanted_count

    def set_desired(self, count: int) -> bool:
        """Return False: nodes are held by pods alone, and are free once these are gone."""
        return False

    def held(self) -> frozenset[str]:
        """Return no node: none is the campaign's to release."""
        return frozenset()

    def launched(self) -> tuple[Launched, ...]:
        """Return no instance: the campaign launched none."""
        return ()

    def refusals(self, begin: datetime) -> tuple[str, ...]:
        """Return no reason: nobody was asked for a node."""
        return ()

    def console(self, instance: str) -> str:
        """Return no text: a borrowed node has no console of ours."""
        return ""

    def cordon(self, node: str, on: bool) -> None:
        """Do nothing: other people's pods may come to the node."""

    def release(self, instance: str) -> bool:
        """Return False: a node is free once no pod is on it."""
        return False


GangNodes = GpuNodes | BorrowedNodes


def nodes_of(spec: Spec, account: Account, client: Client, names: Names, guard: Guard) -> GangNodes:
    """Return the GPU nodes of a campaign: its own node group, or those that it borrows."""
    if spec.cluster is None:
        return GpuNodes(account, client, names, guard)
    return BorrowedNodes(client, spec.cluster, spec.campaign, spec.nodes.count)


def _of_gang(pod: Pod) -> bool:
    return pod.metadata is not None and ATTEMPT_LABEL in (pod.metadata.labels or {})


def obstacles(node: Node, cluster: StandingCluster) -> Iterator[str]:
    """Yield what keeps the campaign's pods off a node that is Ready."""
    if node.spec and node.spec.unschedulable:
        yield "cordoned by its owner"
    for taint in untolerated(node, cluster):
        yield f"tainted {taint.key}:{taint.effect}"


def untolerated(node: Node, cluster: StandingCluster) -> Iterator[Taint]:
    """Yield the node's taints that keep the gang's pods off, without those that Kubernetes derives from its
    conditions."""
    for taint in (node.spec.taints if node.spec else None) or ():
        is_tolerated = any(_tolerates(toleration, taint) for toleration in cluster.nodes.tolerations)
        if taint.effect in _HOLDING and not is_tolerated and not taint.key.startswith("node.kubernetes.io/"):
            yield taint


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    is_value = toleration.operator == "Exists" or (toleration.value or "") == (taint.value or "")
    return toleration.key == taint.key and is_value and toleration.effect in (None, taint.effect)


def not_ready(node: Node) -> str:
    """Return why a node is not Ready; empty if it is."""
    ready = ready_condition(node)
    if ready is not None and ready.status == "True":
        return ""
    reason = (ready.reason or ready.message or "") if ready else ""
    return f"not Ready ({reason[:160]})" if reason else "not Ready"


def ready_condition(node: Node) -> NodeCondition | None:
    """Return the node's condition Ready; None if it has none."""
    conditions = (node.status.conditions if node.status else None) or []
    return next((condition for condition in conditions if condition.type == "Ready"), None)
