"""EKS add-ons in two stages: those that nodes need to become ready, and those that need ready nodes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions

from infra.plan import catalogue
from infra.spec import waits
from infra.spec.campaign import Addons, Spec
from infra.spec.names import POOL_LABEL, SYSTEM_POOL
from infra.stack.timeouts import timeouts_of

Stage = Literal["before-nodes", "after-nodes"]
CSI_DRIVER = "aws-fsx-csi-driver"
MOUNTPOINT_DRIVER = "aws-mountpoint-s3-csi-driver"
_SYSTEM_ONLY = {POOL_LABEL: SYSTEM_POOL}


def unused_drivers(spec: Spec) -> tuple[str, ...]:
    """Return the add-ons that mount nothing of this campaign's."""
    uses = {CSI_DRIVER: spec.storage.shared is not None, MOUNTPOINT_DRIVER: bool(spec.runtime.by_mountpoint)}
    return tuple(name for name, is_used in uses.items() if not is_used)


class AddonStage(pulumi.ComponentResource):
    """The add-ons of one stage. Node groups depend on the first stage, so they go before `vpc-cni`, which must outlive
    every node: interfaces that it left behind would keep the VPC from being deleted."""

    def __init__(
        self,
        stage: Stage,
        cluster_name: Input[str],
        interface_tags: dict[str, str],
        depends_on: Sequence[pulumi.Resource] = (),
        choice: Addons | None = None,
        kubernetes: str = "",
        unused_addons: Collection[str] = (),
        opts: ResourceOptions | None = None,
    ) -> None:
        """`choice`: the spec's choice of optional add-ons. `kubernetes`: the cluster's version. `unused_addons`: of
        no use to this campaign."""
        super().__init__("bivouac:infra:Addons", f"addons-{stage}", None, opts)
        self.all: list[pulumi.Resource] = []
        for addon in catalogue.addons():
            if (
                addon.stage != stage
                or addon.name in unused_addons
                or not catalogue.asked_for(addon.option, choice or Addons())
            ):
                continue
            values = configuration(addon.name, interface_tags)
            self.all.append(
                aws.eks.Addon(
                    addon.name,
                    cluster_name=cluster_name,
                    addon_name=addon.name,
                    addon_version=addon.versions.get(kubernetes),
                    configuration_values=json.dumps(values, sort_keys=True) if values else None,
                    resolve_conflicts_on_create="OVERWRITE",
                    resolve_conflicts_on_update="OVERWRITE",
                    preserve=False,
                    opts=ResourceOptions(
                        parent=self, depends_on=list(depends_on), custom_timeouts=timeouts_of(waits.ADD_ON)
                    ),
                )
            )
        self.register_outputs({})


def configuration(name: str, interface_tags: dict[str, str]) -> dict[str, Any]:
    if name == "vpc-cni":
        # Nodes run few pods: warm interfaces would use up addresses and be left behind at teardown.
        environment = {
            "ADDITIONAL_ENI_TAGS": json.dumps(interface_tags, sort_keys=True),
            "WARM_ENI_TARGET": "0",
            "WARM_IP_TARGET": "2",
        }
        return {"env": environment}
    if name == "coredns":
        return {"nodeSelector": _SYSTEM_ONLY}
    if name == "eks-node-monitoring-agent":
        everywhere = {"tolerations": [{"operator": "Exists"}]}
        return {"nodeAgent": everywhere, "dcgmAgent": everywhere}
    if name == CSI_DRIVER:
        return {"controller": {"nodeSelector": _SYSTEM_ONLY}}
    if name == MOUNTPOINT_DRIVER:
        return {"controller": {"nodeSelector": _SYSTEM_ONLY}, "node": {"tolerateAllTaints": True}}
    return {}
