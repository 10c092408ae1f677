"""Contents of the cluster before the first attempt: namespace, rights, the shared volume, and the charts. Attempts,
preflights and the steward are made at run time and are not Pulumi's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ResourceOptions
from pulumi_kubernetes.rbac.v1 import PolicyRuleArgs
from pulumi_kubernetes.resource.v1 import ExactDeviceRequestArgsDict

from infra.cluster import admission
from infra.cluster.gang import MPI_GROUP
from infra.monitoring.alerts import with_alerts
from infra.monitoring.dashboards import with_dashboards
from infra.monitoring.exporters import with_counters
from infra.plan import catalogue
from infra.plan.catalogue import Chart, InstanceType
from infra.spec.campaign import Addons, SharedStorage, Spec
from infra.spec.image_reference import ImageReference, repository_url
from infra.spec.names import (
    ARCHIVE_ACCOUNT,
    DATA_ACCOUNT,
    EFA_CLAIM,
    LOCAL_CHECKPOINTS_HOST_PATH,
    LOCAL_CLAIM,
    NAMESPACE,
    NODE_CLAIM,
    NODE_TOLD_HOST_PATH,
    PRIORITY_CLASS,
    SHARED_CLAIM,
    STEWARD_ACCOUNT,
    STEWARD_REPOSITORY,
    TRAINER_ACCOUNT,
    Names,
)
from infra.stack.cluster.cluster import EksCluster
from infra.stack.cluster.mounts import MountVolume, mount_volumes
from infra.stack.cluster.mpi_operator import MpiOperator
from infra.stack.cluster.remote_write import with_remote_write
from infra.stack.cluster.rights import CHANGE, WATCH, grant_everywhere, grant_here, rule
from infra.stack.storage import LustreStorage

EFA_CLASS = "efa.networking.k8s.aws"


def steward_rules(by_mpirun: bool = False) -> list[PolicyRuleArgs]:
    """Return the steward's rights in the campaign's namespace; `by_mpirun`: its attempts are MPIJobs."""
    return [
        *([rule(MPI_GROUP, ["mpijobs"], CHANGE)] if by_mpirun else []),
        rule("jobset.x-k8s.io", ["jobsets"], CHANGE),
        rule("batch", ["jobs"], CHANGE),
        rule("", ["configmaps"], CHANGE),
        rule("", ["pods"], ("delete", *WATCH)),
        rule("", ["pods/log"], ("get",)),
        rule("", ["events", "services", "endpoints"], WATCH),
        rule("events.k8s.io", ["events"], WATCH),
    ]


def node_rules() -> list[PolicyRuleArgs]:
    """Return the steward's rights on nodes: look and cordon."""
    return [rule("", ["nodes"], ("get", "list", "patch", "watch"))]


def wanted_charts(item: InstanceType, addons: Addons | None = None) -> tuple[Chart, ...]:
    """Return the charts for nodes of this type and those that the spec asks for."""
    present = {"all": True, item.maker: True, "efa": item.efa_interfaces > 0}
    choice = addons or Addons()
    return tuple(
        chart
        for chart in catalogue.charts()
        if present.get(chart.wanted_for) and catalogue.asked_for(chart.option, choice)
    )


class Workloads(pulumi.ComponentResource):
    """All of this goes with the cluster, so nothing is deleted piece by piece (`deleted_with`)."""

    def __init__(
        self,
        spec: Spec,
        cluster: EksCluster,
        storage: LustreStorage | None,
        runs_on: Sequence[pulumi.Resource],
        opts: ResourceOptions | None = None,
        mount_names: Sequence[str] | None = None,
    ) -> None:
        """`runs_on`: resources that a pod of ours needs to be scheduled. `storage`: None without a file system.
        `mount_names`: see `CampaignSettings`."""
        super().__init__("bivouac:infra:Workloads", "workloads", None, opts)
        self._cluster, self._names, self._campaign = cluster, Names(spec), spec.campaign
        self._host_network = spec.runtime.host_network
        self._namespace = kubernetes.core.v1.Namespace(
            "campaign",
            metadata={"name": NAMESPACE, "labels": admission.pod_security(self._host_network)},
            opts=self._child(depends_on=[]),
        )
        self._by_mpirun, self._prepares_data = spec.runtime.by_mpirun, spec.prepares_data
        lustre_names = dict(name.split("=") for name in mount_names or ())
        self._mounts = mount_volumes(spec, lustre_names)
        self._bounds = self._admission(spec)
        kubernetes.scheduling.v1.PriorityClass(
            "training",
            metadata={"name": PRIORITY_CLASS},
            value=1_000_000,
            global_default=False,
            description="Training pods of a campaign",
            opts=self._child(depends_on=[]),
        )
        self._accounts()
        if storage is not None and spec.storage.shared is not None:
            self._shared_volume(spec.storage.shared, storage)
        for claim, source in self._mounts.items():
            self._mount(claim, source)
        for claim, path in ((LOCAL_CLAIM, LOCAL_CHECKPOINTS_HOST_PATH), (NODE_CLAIM, NODE_TOLD_HOST_PATH)):
            self._node_folder(claim, path)
        item = catalogue.instance_type(spec.nodes.instance_type)
        if spec.addons.efa == "dra" and item.efa_interfaces:
            self._efa_claim(item)
        self._charts(item, spec.addons, runs_on)
        operator = catalogue.operators()["mpi-operator"]
        if self._by_mpirun or catalogue.asked_for(operator.option, spec.addons):
            image = operator.reference(spec.addons.image_mirror)
            MpiOperator(image, self._child([*runs_on, self._namespace, *self._bounds]))
        self.register_outputs({})

    def _child(self, depends_on: Sequence[pulumi.Resource]) -> ResourceOptions:
        return ResourceOptions(parent=self, deleted_with=self._cluster.eks, depends_on=list(depends_on))

    def _in_namespace(self) -> ResourceOptions:
        return self._child([self._namespace])

    def _admission(self, spec: Spec) -> list[pulumi.Resource]:
        """Make the policies and their bindings; return the bindings."""
        api, bindings = kubernetes.admissionregistration.v1, list[pulumi.Resource]()
        job_image = None if spec.runtime.image is None else ImageReference.parse(spec.runtime.image).name
        repository = repository_url(spec.account, spec.region)
        mpi = spec.campaign if self._by_mpirun else None
        steward_repository = repository_url(spec.account, spec.region, STEWARD_REPOSITORY)
        policies = admission.policies(
            self._names.prefix, repository, job_image, mpi, steward_repository, self._host_network, sorted(self._mounts)
        )
        for name, document in policies.items():
            bound = admission.binding(document)
            policy = api.ValidatingAdmissionPolicy(
                name, metadata=document["metadata"], spec=document["spec"], opts=self._child([])
            )
            bindings.append(
                api.ValidatingAdmissionPolicyBinding(
                    name, metadata=bound["metadata"], spec=bound["spec"], opts=self._child([policy])
                )
            )
        return bindings

    def _accounts(self) -> None:
        # The trainer needs no API server, so its pods carry no token.
        accounts = [(TRAINER_ACCOUNT, False), (STEWARD_ACCOUNT, True), (ARCHIVE_ACCOUNT, False)]
        accounts += [(DATA_ACCOUNT, False)] if self._prepares_data else []
        for account, token in accounts:
            kubernetes.core.v1.ServiceAccount(
                account,
                metadata={"name": account, "namespace": NAMESPACE},
                automount_service_account_token=token,
                opts=self._in_namespace(),
            )
        # The right to make pods depends on the policies that bound it.
        binding_opts = self._child([self._namespace, *self._bounds])
        grant_here(STEWARD_ACCOUNT, steward_rules(self._by_mpirun), self._in_namespace(), binding_opts)
        grant_everywhere(
            STEWARD_ACCOUNT, f"{self._names.prefix}-steward", node_rules(), self._child([]), self._in_namespace()
        )

    def _shared_volume(self, shared: SharedStorage, storage: LustreStorage) -> None:
        """Make a static volume: the file system is Pulumi's, so nothing is left when the CSI driver is gone. With a new
        file system both are made anew, the claim deleted first: Kubernetes keeps a volume while a claim has it."""
        anew = ResourceOptions(delete_before_replace=True, replace_on_changes=["spec"])
        lustre, links = storage.lustre, [storage.data] if storage.data is not None else []
        attributes = {"dnsname": lustre.dns_name, "mountname": lustre.mount_name}
        csi = {"driver": "fsx.csi.aws.com", "volume_handle": lustre.id, "volume_attributes": attributes}
        fields = {"volume_mode": "Filesystem", "mount_options": ["flock"], "csi": csi}
        self._volume(SHARED_CLAIM, fields, f"{shared.capacity_gib}Gi", links, anew)

    def _mount(self, claim: str, source: MountVolume) -> None:
        """Make a static volume of what somebody has; with the cluster it goes, and what it shows stays."""
        csi = {"driver": source.driver, "volume_handle": source.handle, "volume_attributes": source.attributes}
        reference = {"namespace": NAMESPACE, "name": claim}
        self._volume(claim, {"claim_ref": reference, "mount_options": list(source.options), "csi": csi})

    def _node_folder(self, claim: str, path: str) -> None:
        """Make a claim for a folder of the pod's node. Pods name the claim: only the volume names a path."""
        self._volume(claim, {"host_path": {"path": path, "type": "DirectoryOrCreate"}})

    def _volume(
        self,
        name: str,
        fields: Mapping[str, Any],
        size: str = "1Gi",
        after: Sequence[pulumi.Resource] = (),
        extra_opts: ResourceOptions | None = None,
    ) -> None:
        """Make a volume of what exists, and the claim on it. A size is required, though no driver looks at it."""
        of_both = {"access_modes": ["ReadWriteMany"], "storage_class_name": ""}
        terms: dict[str, Any] = {"capacity": {"storage": size}, "persistent_volume_reclaim_policy": "Retain"}
        volume_spec: Any = {**of_both, **terms, **fields}
        volume = kubernetes.core.v1.PersistentVolume(
            name,
            metadata={"name": f"{self._names.prefix}-{name}"},
            spec=volume_spec,
            opts=ResourceOptions.merge(self._child(after), extra_opts),
        )
        volume_name = volume.metadata.apply(lambda metadata: metadata.name or "")
        claim_spec: Any = {**of_both, "volume_name": volume_name, "resources": {"requests": {"storage": size}}}
        kubernetes.core.v1.PersistentVolumeClaim(
            name,
            metadata={"name": name, "namespace": NAMESPACE},
            spec=claim_spec,
            opts=ResourceOptions.merge(self._child([self._namespace, volume]), extra_opts),
        )

    def _efa_claim(self, item: InstanceType) -> None:
        """Make the template of each pod's claim: all of a node's EFA devices, or the pod is not placed."""
        request: ExactDeviceRequestArgsDict = {
            "device_class_name": EFA_CLASS,
            "allocation_mode": "ExactCount",
            "count": item.efa_interfaces,
        }
        kubernetes.resource.v1.ResourceClaimTemplate(
            EFA_CLAIM,
            metadata={"name": EFA_CLAIM, "namespace": NAMESPACE},
            spec={"spec": {"devices": {"requests": [{"name": EFA_CLAIM, "exactly": request}]}}},
            opts=self._in_namespace(),
        )

    def _values(self, chart: Chart, addons: Addons) -> dict[str, Any]:
        values = with_counters(chart.name, with_alerts(chart.name, chart.values_from(addons.image_mirror)))
        values = with_remote_write(chart.name, values, addons.remote_write, self._campaign)
        return with_dashboards(chart.name, values, addons.grafana)

    def _charts(self, item: InstanceType, addons: Addons, runs_on: Sequence[pulumi.Resource]) -> None:
        charts = wanted_charts(item, addons)
        namespaces = {chart.namespace for chart in charts} - {"kube-system"}
        spaces: Mapping[str, pulumi.Resource] = {
            name: kubernetes.core.v1.Namespace(name, metadata={"name": name}, opts=self._child([]))
            for name in sorted(namespaces)
        }
        for chart in charts:
            space = [spaces[chart.namespace]] if chart.namespace in spaces else []
            # Device plugins run on GPU nodes, of which there are none yet.
            waits_for = runs_on if chart.wanted_for == "all" else ()
            kubernetes.helm.v3.Release(
                chart.name,
                name=chart.name,
                chart=chart.chart,
                version=chart.version,
                repository_opts={"repo": chart.repository} if chart.repository else None,
                namespace=chart.namespace,
                values=self._values(chart, addons),
                timeout=600,
                skip_await=not chart.awaited,
                opts=self._child([*waits_for, *space]),
            )
