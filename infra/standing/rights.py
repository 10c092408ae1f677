"""The rights of a campaign at a cluster that stands: what `bivouac grant` prints and `check --online` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from infra.cluster.gang import MPI_GROUP
from infra.cluster.standing import pod_groups
from infra.cluster.standing.fabric_claims import DRA_GROUP, template_name
from infra.cluster.standing.queueing import GROUP as KUEUE_GROUP
from infra.spec.campaign import Spec
from infra.spec.names import STEWARD_ACCOUNT
from infra.spec.standing import StandingCluster, StandingFabric

DRIVER_ACCOUNT = "driver"
"""Who runs `bivouac`: this account, or a user or group that the cluster knows."""
_WHY_WAITING = "why the gang is not admitted"
_WHY_GROUPED = "bind the gang's pods all together, where the cluster can"
_LOOK = ("get", "list", "watch")
_CHANGE = (*_LOOK, "create", "delete", "patch", "update")


@dataclass(frozen=True)
class Right:
    """Verbs on resources of one API group, for one account."""

    account: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str
    names: tuple[str, ...] = ()
    """The only objects that it is for. Empty: all."""
    everywhere: bool = False
    """For the whole cluster, since the resource has no namespace; else for the campaign's namespace."""

    @property
    def kinds(self) -> str:
        """The resources, and the only objects of them."""
        kinds = ", ".join(f"{name}.{self.group}" if self.group else name for name in self.resources)
        return " ".join([kinds, *self.names])


def rights(spec: Spec, cluster: StandingCluster) -> tuple[Right, ...]:
    """Return every right, of the driver and of the steward. No other account of the campaign has one."""
    mpi = spec.runtime.by_mpirun
    of_steward = steward_rights(mpi, queue=cluster.queue is not None, by_group=cluster.queue is None and not mpi)
    return (*driver_rights(cluster, mpi), *of_steward)


def driver_rights(cluster: StandingCluster, by_mpirun: bool = False) -> tuple[Right, ...]:
    """Return the rights of who runs `bivouac`. `by_mpirun`: attempts are MPIJobs."""
    shared = cluster.shared

    def right(group: str, resources: tuple[str, ...], verbs: tuple[str, ...], reason: str) -> Right:
        return Right(DRIVER_ACCOUNT, group, resources, verbs, reason)

    claims = ("get", "list") if shared.storage_class is None else ("get", "list", "create", "delete")
    volumes = (
        right("", ("persistentvolumeclaims",), claims, "the shared tier is there, or is claimed and given back"),
        *(
            Right(
                DRIVER_ACCOUNT, "storage.k8s.io", ("storageclasses",), ("get",), "the storage class of the spec exists",
                names=(storage_class,), everywhere=True,
            )
            for storage_class in filter(None, [shared.storage_class])
        ),
    )  # fmt: skip
    return (
        right("apps", ("deployments",), _CHANGE, "start, change and remove the steward"),
        right("", ("configmaps",), _CHANGE, "configuration of the steward and of the health check"),
        right("jobset.x-k8s.io", ("jobsets",), _CHANGE, "run the health check; remove the gang at the end"),
        *([right(MPI_GROUP, ("mpijobs",), ("get", "list", "delete"), "remove the gang")] if by_mpirun else []),
        *([] if cluster.queue else [right(pod_groups.GROUP, (pod_groups.PLURAL,), ("list", "create"), _WHY_GROUPED)]),
        right("batch", ("jobs",), ("get", "list", "create", "delete"), "bring data; remove all at the end"),
        right("", ("services", "resourcequotas"), ("list",), "certify what is left and what is given back"),
        right("apps", ("replicasets",), ("list",), "certify that nothing of the steward is left"),
        right("", ("pods",), ("get", "list", "watch", "create", "delete"), "prove a node first; see the pods"),
        right("", ("pods/log",), ("get",), "last words of a pod that failed"),
        right("", ("events",), _LOOK, "why a pod does not start"),
        Right(
            DRIVER_ACCOUNT, "", ("secrets",), ("get",), "the login to S3, which keeps the record",
            names=(cluster.s3.secret,),
        ),
        *volumes,
        *_queue_rights(cluster),
        *_claim_rights(cluster.fabric),
        Right(DRIVER_ACCOUNT, "", ("nodes",), ("get", "list"), "see which nodes are fit", everywhere=True),
    )  # fmt: skip


def _queue_rights(cluster: StandingCluster) -> tuple[Right, ...]:
    """Return the driver's rights to see the queue; none without one. No right changes anything of Kueue's."""

    def right(resource: str, verbs: tuple[str, ...], reason: str, *names: str, everywhere: bool = False) -> Right:
        return Right(DRIVER_ACCOUNT, KUEUE_GROUP, (resource,), verbs, reason, names=names, everywhere=everywhere)

    if cluster.queue is None:
        return ()
    priority = [] if cluster.priority is None else [cluster.priority]
    return (
        right("localqueues", ("get",), "the queue exists", cluster.queue),
        right("workloads", _LOOK, _WHY_WAITING),
        # Its name stands in the queue, which an admin may change.
        right("clusterqueues", ("get",), "the queue is active, and has quota for the gang", everywhere=True),
        *(
            right("workloadpriorityclasses", ("get",), "the priority of the spec exists", name, everywhere=True)
            for name in priority
        ),
    )


def _claim_rights(fabric: StandingFabric) -> tuple[Right, ...]:
    """Return the driver's rights to see what the gang's pods claim of a DRA driver; none where they claim nothing. Only
    Kubernetes makes claims."""
    rows = {"resourceclaimtemplates": template_name(fabric), "deviceclasses": fabric.device_class}
    return tuple(
        Right(
            DRIVER_ACCOUNT, DRA_GROUP, (resource,), ("get",), "the adapters that pods claim exist", names=(name,),
            everywhere=resource == "deviceclasses",
        )
        for resource, name in rows.items() if name
    )  # fmt: skip


def steward_rights(by_mpirun: bool = False, *, queue: bool = False, by_group: bool = False) -> tuple[Right, ...]:
    """Return the steward's rights: those that it has at EKS, but that it never changes a node. `queue`: the gang waits
    in a queue, whose word it hears. `by_group`: its pods may be bound as a PodGroup."""

    def right(group: str, resources: tuple[str, ...], verbs: tuple[str, ...], reason: str) -> Right:
        return Right(STEWARD_ACCOUNT, group, resources, verbs, reason)

    return (
        *([right(MPI_GROUP, ("mpijobs",), _CHANGE, "launch and end attempts by mpirun")] if by_mpirun else []),
        right("jobset.x-k8s.io", ("jobsets",), _CHANGE, "launch and end attempts"),
        *([right(KUEUE_GROUP, ("workloads",), _LOOK, _WHY_WAITING)] if queue else []),
        *([right(pod_groups.GROUP, (pod_groups.PLURAL,), ("create",), _WHY_GROUPED)] if by_group else []),
        right("batch", ("jobs",), _CHANGE, "archive and copies"),
        right("", ("configmaps",), _CHANGE, "configuration of an attempt"),
        right("", ("pods",), ("delete", *_LOOK), "see the ranks; end a gang that is broken"),
        right("", ("pods/log",), ("get",), "ship the logs"),
        right("", ("events", "services", "endpoints"), _LOOK, "why a pod does not start"),
        right("events.k8s.io", ("events",), _LOOK, "why a pod does not start"),
        Right(STEWARD_ACCOUNT, "", ("nodes",), _LOOK, "a silent pod is dead only if its node says so", everywhere=True),
    )
