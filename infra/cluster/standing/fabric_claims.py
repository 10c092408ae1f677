"""Adapters of InfiniBand or RoCE that a DRA driver hands out (`resource.k8s.io`), in the place of a device plugin.

DRANET publishes each network interface of a node with the attribute `dra.net/rdma` (google/dranet, pkg/apis/
attributes.go at 7b7661a), which a DeviceClass of the cluster selects. The SR-IOV driver also wants a configuration of
its own in the claim (k8snetworkplumbingwg/dra-driver-sriov, README.md at cd9404f), so an admin writes that template.
"""

from __future__ import annotations

from typing import Any

from infra.spec.names import PROJECT
from infra.spec.standing import StandingCluster, StandingFabric

Object = dict[str, Any]
DRA_GROUP, DRA_VERSION = "resource.k8s.io", "v1"
"""Version of Kubernetes 1.34 and later."""
_CLAIM = "fabric"
_OWN_TEMPLATE = f"{PROJECT}-fabric"


def template_name(fabric: StandingFabric) -> str:
    """Return the name of the template of each pod's claim; empty where no DRA driver is asked."""
    return fabric.claim_template or (_OWN_TEMPLATE if fabric.device_class else "")


def claim_template(cluster: StandingCluster) -> Object | None:
    """Return the ResourceClaimTemplate for the spec's DeviceClass; None where the spec names none."""
    fabric = cluster.fabric
    if fabric.device_class is None:
        return None
    amount: Object = {"allocationMode": "All"}
    if fabric.adapters is not None:
        amount = {"allocationMode": "ExactCount", "count": fabric.adapters}
    request = {"name": "adapters", "exactly": {"deviceClassName": fabric.device_class, **amount}}
    return {
        "apiVersion": f"{DRA_GROUP}/{DRA_VERSION}",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": _OWN_TEMPLATE, "namespace": cluster.namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def claim_adapters(pod: Object, fabric: StandingFabric) -> None:
    """Let each container of a gang's pod have the adapters of the pod's own claim, where there is a template of it."""
    template = template_name(fabric)
    if template:
        pod["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": template}]
        for container in pod["containers"]:
            container["resources"]["claims"] = [{"name": _CLAIM}]


def may_pin_memory(pod: Object, fabric: StandingFabric) -> None:
    """Give each container of a gang's pod `IPC_LOCK` where the spec wants it."""
    for container in pod["containers"] if fabric.ipc_lock else ():
        container["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]
