"""The node groups: a small one for the system, and one for the GPU nodes that starts at zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi import Input, InvokeOptions, Output, ResourceOptions
from pulumi_aws.eks import NodeGroupScalingConfigArgs

from infra.aws.given.node_image import image_parameter
from infra.plan.catalogue import instance_type
from infra.spec import waits
from infra.spec.campaign import Spec
from infra.spec.names import DATA_POOL, GPU_POOL, GPU_TAINT, HUGE_PAGES, POOL_LABEL, SYSTEM_POOL, Names
from infra.stack.cluster.capacity import SPARE_NODES, purchase
from infra.stack.cluster.cluster import Cluster
from infra.stack.cluster.tuning import tuning_script
from infra.stack.cluster.user_data import huge_pages, node_config, user_data
from infra.stack.lustre import boot_script, client_script
from infra.stack.network.efa import efa_layout
from infra.stack.timeouts import bounded

ROOT_VOLUME_GIB = 100


class _NodeGroup(pulumi.ComponentResource):
    """Common part of both groups: launch template, boot configuration, tags on what Auto Scaling launches."""

    pool: str
    taint: str | None = None
    raid: str | None = None
    repaired_by_eks = False
    """EKS itself replaces broken nodes of the group."""
    _scripts: tuple[str, ...] = ()
    huge_pages = 0
    """Number of 2 MiB pages reserved before kubelet starts."""

    def _prepare(
        self, spec: Spec, cluster: Cluster, marks: Mapping[str, str], group: str, key_arn: str | None = None
    ) -> None:
        self._spec, self._names, self._cluster, self._group = spec, Names(spec), cluster, group
        self._tags, self._key_arn = dict(marks), key_arn

    def _image(self, maker: str | None) -> Output[str]:
        parameter = image_parameter(self._spec.kubernetes, maker)
        return aws.ssm.get_parameter_output(name=parameter, opts=InvokeOptions(parent=self)).value

    def _template(self, image: Input[str], instance: str, **more: Any) -> aws.ec2.LaunchTemplate:
        return aws.ec2.LaunchTemplate(
            f"{self.pool}-nodes",
            name=self._group,
            image_id=image,
            instance_type=instance,
            update_default_version=True,
            user_data=self._user_data(),
            # One hop: pods have their own roles and must not reach the node's.
            metadata_options={"http_endpoint": "enabled", "http_tokens": "required", "http_put_response_hop_limit": 1},
            block_device_mappings=[
                {
                    "device_name": "/dev/xvda",
                    "ebs": {
                        "volume_size": ROOT_VOLUME_GIB,
                        "volume_type": "gp3",
                        "encrypted": "true",
                        "delete_on_termination": "true",
                        **({"kms_key_id": self._key_arn} if self._key_arn else {}),
                    },
                }
            ],
            # The provider's default tags do not reach what Auto Scaling launches.
            tag_specifications=[
                {"resource_type": kind, "tags": {**self._tags, "Name": self._group}}
                for kind in ("instance", "volume", "network-interface")
            ],
            # A newer image or a later deadline during a campaign would roll every node.
            opts=ResourceOptions(parent=self, ignore_changes=["imageId", "tagSpecifications"]),
            **more,
        )

    def _user_data(self) -> Output[str]:
        labels = {POOL_LABEL: self.pool, "eks.amazonaws.com/nodegroup": self._group}
        return Output.all(self._cluster.endpoint, self._cluster.authority).apply(
            lambda at: user_data(
                node_config(self._names.cluster, at[0], at[1], labels, self.taint, raid=self.raid),
                *((huge_pages(self.huge_pages),) if self.huge_pages else ()),
                *self._scripts,
            )
        )

    def _node_group(
        self,
        template: aws.ec2.LaunchTemplate,
        role_arn: Input[str],
        subnet_id: Input[str],
        scaling: NodeGroupScalingConfigArgs,
        capacity_type: str,
        depends_on: Sequence[pulumi.Resource],
    ) -> aws.eks.NodeGroup:
        return aws.eks.NodeGroup(
            f"{self.pool}-nodes",
            cluster_name=self._cluster.eks.name,
            node_group_name=self._group,
            node_role_arn=role_arn,
            subnet_ids=[subnet_id],
            capacity_type=capacity_type,
            scaling_config=scaling,
            launch_template={"id": template.id, "version": template.latest_version.apply(lambda v: str(int(v)))},
            update_config={"max_unavailable": 1},
            # Explicit, so that switching EKS's repair on for GPU nodes shows in a preview.
            node_repair_config={"enabled": self.repaired_by_eks},
            opts=ResourceOptions(
                parent=self,
                depends_on=list(depends_on),
                # Preflight, steward and the deadline's schedule set the size.
                ignore_changes=["scalingConfig.desiredSize"],
                delete_before_replace=True,
                custom_timeouts=bounded(waits.NODE_GROUP),
            ),
        )


class SystemNodes(_NodeGroup):
    """Nodes for CoreDNS, the JobSet controller and the steward: one, or two with a standby steward."""

    pool = SYSTEM_POOL
    repaired_by_eks = True

    def __init__(
        self,
        spec: Spec,
        cluster: Cluster,
        marks: Mapping[str, str],
        role_arn: Input[str],
        subnet_id: Input[str],
        security_group_ids: Sequence[Input[str]],
        depends_on: Sequence[pulumi.Resource],
        key_arn: str | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        super().__init__("bivouac:infra:SystemNodes", "system-nodes", None, opts)
        self._prepare(spec, cluster, marks, Names(spec).system_group, key_arn)
        # The steward mounts the shared file system.
        self._scripts = () if spec.storage.shared is None else (client_script(),)
        count = spec.nodes.system_count
        template = self._template(
            self._image(None), spec.nodes.system_instance_type, vpc_security_group_ids=list(security_group_ids)
        )
        self.group = self._node_group(
            template,
            role_arn,
            subnet_id,
            NodeGroupScalingConfigArgs(min_size=count, desired_size=count, max_size=count + 1),
            "ON_DEMAND",
            depends_on,
        )
        self.register_outputs({"name": self.group.node_group_name})


class DataNodes(_NodeGroup):
    """Nodes that prepare the data; none until the driver asks. In the stack only until the data are there."""

    pool = DATA_POOL

    def __init__(
        self,
        spec: Spec,
        cluster: Cluster,
        marks: Mapping[str, str],
        role_arn: Input[str],
        subnet_id: Input[str],
        security_group_ids: Sequence[Input[str]],
        depends_on: Sequence[pulumi.Resource],
        key_arn: str | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        super().__init__("bivouac:infra:DataNodes", "data-nodes", None, opts)
        self._prepare(spec, cluster, marks, Names(spec).of("node group", DATA_POOL), key_arn)
        wanted = spec.built_in[1].prepare
        template = self._template(
            self._image(None), wanted.instance_type, vpc_security_group_ids=list(security_group_ids)
        )
        self.group = self._node_group(
            template,
            role_arn,
            subnet_id,
            NodeGroupScalingConfigArgs(min_size=0, desired_size=0, max_size=wanted.nodes),
            "SPOT" if wanted.capacity == "spot" else "ON_DEMAND",
            depends_on,
        )
        self.register_outputs({"name": self.group.node_group_name})


class GpuNodes(_NodeGroup):
    """The GPU nodes, in one subnet, with every EFA device of their type; none until preflight asks."""

    pool = GPU_POOL
    taint = GPU_TAINT

    def __init__(
        self,
        spec: Spec,
        cluster: Cluster,
        marks: Mapping[str, str],
        role_arn: Input[str],
        subnet_id: Input[str],
        security_group_ids: Sequence[Input[str]],
        depends_on: Sequence[pulumi.Resource],
        image: str | None = None,
        key_arn: str | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        super().__init__("bivouac:infra:GpuNodes", "gpu-nodes", None, opts)
        self._prepare(spec, cluster, marks, Names(spec).gpu_group, key_arn)
        item = instance_type(spec.nodes.instance_type)
        self.raid = spec.storage.local.layout
        shared = spec.storage.shared
        script = None if shared is None else boot_script(shared, item, spec.nodes.count + SPARE_NODES)
        # The client's script does nothing where the image has one; somebody's own image is set up no further.
        client = () if spec.image.nodes == "bake" or shared is None else (client_script(),)
        tuning = (tuning_script(),) if spec.image.nodes == "eks" else ()
        self._scripts = (*client, *tuning, *((script,) if script else ()))
        bought = purchase(spec.nodes, item)
        self.huge_pages = HUGE_PAGES if item.efa_interfaces else 0
        interfaces = [
            {
                "network_card_index": one.card,
                "device_index": one.device,
                "interface_type": one.kind,
                "delete_on_termination": "true",
                "security_groups": list(security_group_ids),
            }
            for one in efa_layout(item)
        ]
        more: dict[str, Any] = {"network_interfaces": interfaces}
        if bought.market_type:
            more["instance_market_options"] = {"market_type": bought.market_type}
        if bought.reservation is not None:
            more["capacity_reservation_specification"] = bought.reservation
        if bought.placement_group:
            more["placement"] = {"group_name": self._placement_group().name}
        template = self._template(image or self._image(item.maker), item.name, **more)
        self.group = self._node_group(
            template,
            role_arn,
            subnet_id,
            NodeGroupScalingConfigArgs(min_size=0, desired_size=0, max_size=spec.nodes.count + SPARE_NODES),
            bought.capacity_type,
            depends_on,
        )
        self.register_outputs({"name": self.group.node_group_name})

    def _placement_group(self) -> aws.ec2.PlacementGroup:
        return aws.ec2.PlacementGroup(
            "gpu-nodes", name=self._names.placement_group, strategy="cluster", opts=ResourceOptions(parent=self)
        )
