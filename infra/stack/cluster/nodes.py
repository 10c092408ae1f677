"""The node groups: a small one for the system, one for the GPU nodes that starts at zero, and one to prepare data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pulumi
import pulumi_aws as aws
from pulumi import Input, InvokeOptions, Output, ResourceOptions
from pulumi_aws.eks import NodeGroupScalingConfigArgs

from infra.aws.given.node_image import image_parameter
from infra.errors import UserError
from infra.plan.catalogue import InstanceType, instance_type
from infra.plan.purchase import OPEN, RESERVATIONS_ONLY, purchase_problems
from infra.spec import waits
from infra.spec.campaign import Capacity, Nodes, Spec
from infra.spec.names import DATA_POOL, GPU_POOL, GPU_TAINT, HUGE_PAGES, POOL_LABEL, SYSTEM_POOL, Names
from infra.stack.cluster.cluster import EksCluster
from infra.stack.cluster.tuning import tuning_script
from infra.stack.cluster.user_data import huge_pages, node_config, user_data
from infra.stack.lustre import boot_script, client_script
from infra.stack.timeouts import timeouts_of

ROOT_VOLUME_GIB = 100


@dataclass(frozen=True)
class Interface:
    """`device` counts per card."""

    card: int
    device: int
    kind: Literal["interface", "efa-only"]


def efa_layout(item: InstanceType) -> tuple[Interface, ...]:
    """Return one plain interface with the node's only address, and an `efa-only` on every card that can carry one.
    `efa-only` interfaces take no address; the one on card 0 is that card's second device."""
    primary = Interface(0, 0, "interface")
    card_0 = [Interface(0, 1, "efa-only")] if item.efa_on_first_card else []
    interfaces = [Interface(card, 0, "efa-only") for card in range(1, item.network_cards)]
    return (primary, *[*card_0, *interfaces][: item.efa_interfaces])


class _GroupSettings(NamedTuple):
    """Settings of one node group."""

    group: str
    instance: str
    size: int
    """Nodes at once; later preflight, steward, driver and the deadline's schedule set their number."""
    most: int
    template: Mapping[str, Any]
    """Further arguments of the launch template."""
    capacity_type: str = "ON_DEMAND"
    maker: str | None = None
    """Maker of the accelerators; None: the nodes have none."""
    taint: str | None = None
    raid: str | None = None
    scripts: tuple[str, ...] = ()
    huge_pages: int = 0
    """Number of 2 MiB pages reserved before kubelet starts."""
    repaired_by_eks: bool = False
    """EKS itself replaces broken nodes of the group."""


class _NodeGroup(pulumi.ComponentResource):
    """A launch template and its node group, with tags on what Auto Scaling launches."""

    pool: str

    def __init__(
        self,
        spec: Spec,
        cluster: EksCluster,
        marks: Mapping[str, str],
        role_arn: Input[str],
        subnet_id: Input[str],
        security_group_ids: Sequence[Input[str]],
        depends_on: Sequence[pulumi.Resource],
        key_arn: str | None = None,
        opts: ResourceOptions | None = None,
        image: str | None = None,
    ) -> None:
        # Both names are part of every URN below: with others an update would make new nodes.
        super().__init__(f"bivouac:infra:{type(self).__name__}", f"{self.pool}-nodes", None, opts)
        self._spec, self._names, self._cluster = spec, Names(spec), cluster
        self._tags, self._key_arn = dict(marks), key_arn
        self._settings = self._group_settings(security_group_ids)
        template = self._template(image or self._image(self._settings.maker), self._settings.template)
        self.group = self._node_group(template, role_arn, subnet_id, depends_on)
        self.register_outputs({"name": self.group.node_group_name})

    def _group_settings(self, security_group_ids: Sequence[Input[str]]) -> _GroupSettings:
        raise NotImplementedError

    def _image(self, maker: str | None) -> Output[str]:
        parameter = image_parameter(self._spec.kubernetes, maker)
        return aws.ssm.get_parameter_output(name=parameter, opts=InvokeOptions(parent=self)).value

    def _template(self, image: Input[str], arguments: Mapping[str, Any]) -> aws.ec2.LaunchTemplate:
        return aws.ec2.LaunchTemplate(
            f"{self.pool}-nodes",
            name=self._settings.group,
            image_id=image,
            instance_type=self._settings.instance,
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
                {"resource_type": kind, "tags": {**self._tags, "Name": self._settings.group}}
                for kind in ("instance", "volume", "network-interface")
            ],
            # A newer image or a later deadline during a campaign would roll every node.
            opts=ResourceOptions(parent=self, ignore_changes=["imageId", "tagSpecifications"]),
            **arguments,
        )

    def _user_data(self) -> Output[str]:
        settings = self._settings
        labels = {POOL_LABEL: self.pool, "eks.amazonaws.com/nodegroup": settings.group}
        return Output.all(self._cluster.endpoint, self._cluster.authority).apply(
            lambda address: user_data(
                node_config(self._names.cluster, address[0], address[1], labels, settings.taint, raid=settings.raid),
                *((huge_pages(settings.huge_pages),) if settings.huge_pages else ()),
                *settings.scripts,
            )
        )

    def _node_group(
        self,
        template: aws.ec2.LaunchTemplate,
        role_arn: Input[str],
        subnet_id: Input[str],
        depends_on: Sequence[pulumi.Resource],
    ) -> aws.eks.NodeGroup:
        size, largest = self._settings.size, self._settings.most
        return aws.eks.NodeGroup(
            f"{self.pool}-nodes",
            cluster_name=self._cluster.eks.name,
            node_group_name=self._settings.group,
            node_role_arn=role_arn,
            subnet_ids=[subnet_id],
            capacity_type=self._settings.capacity_type,
            scaling_config=NodeGroupScalingConfigArgs(min_size=size, desired_size=size, max_size=largest),
            launch_template={"id": template.id, "version": template.latest_version.apply(lambda v: str(int(v)))},
            update_config={"max_unavailable": 1},
            # Explicit, so that switching EKS's repair on for GPU nodes shows in a preview.
            node_repair_config={"enabled": self._settings.repaired_by_eks},
            opts=ResourceOptions(
                parent=self,
                depends_on=list(depends_on),
                ignore_changes=["scalingConfig.desiredSize"],
                delete_before_replace=True,
                custom_timeouts=timeouts_of(waits.NODE_GROUP),
            ),
        )


class SystemNodes(_NodeGroup):
    """Nodes for CoreDNS, the JobSet controller and the steward: one, or two with a standby steward."""

    pool = SYSTEM_POOL

    def _group_settings(self, security_group_ids: Sequence[Input[str]]) -> _GroupSettings:
        nodes = self._spec.nodes
        return _GroupSettings(
            self._names.system_group,
            nodes.system_instance_type,
            size=nodes.system_count,
            most=nodes.system_count + 1,
            template={"vpc_security_group_ids": list(security_group_ids)},
            # The steward mounts the shared file system.
            scripts=() if self._spec.storage.shared is None else (client_script(),),
            repaired_by_eks=True,
        )


class DataNodes(_NodeGroup):
    """Nodes that prepare the data; none until the driver asks. In the stack only until the data are there."""

    pool = DATA_POOL

    def _group_settings(self, security_group_ids: Sequence[Input[str]]) -> _GroupSettings:
        prepare = self._spec.built_in[1].prepare
        return _GroupSettings(
            self._names.of("node group", DATA_POOL),
            prepare.instance_type,
            size=0,
            most=prepare.nodes,
            template={"vpc_security_group_ids": list(security_group_ids)},
            capacity_type="SPOT" if prepare.capacity == "spot" else "ON_DEMAND",
        )


class GpuNodes(_NodeGroup):
    """The GPU nodes, in one subnet, with every EFA device of their type; none until preflight asks."""

    pool = GPU_POOL

    def _group_settings(self, security_group_ids: Sequence[Input[str]]) -> _GroupSettings:
        spec, shared = self._spec, self._spec.storage.shared
        item = instance_type(spec.nodes.instance_type)
        order = purchase(spec.nodes, item)
        interfaces = [
            {
                "network_card_index": interface.card,
                "device_index": interface.device,
                "interface_type": interface.kind,
                "delete_on_termination": "true",
                "security_groups": list(security_group_ids),
            }
            for interface in efa_layout(item)
        ]
        template: dict[str, Any] = {"network_interfaces": interfaces}
        if order.market_type:
            template["instance_market_options"] = {"market_type": order.market_type}
        if order.reservation is not None:
            template["capacity_reservation_specification"] = order.reservation
        if order.placement_group:
            template["placement"] = {"group_name": self._placement_group().name}
        # The client's script does nothing where the image has one; somebody's own image is set up no further.
        client = () if spec.image.nodes == "bake" or shared is None else (client_script(),)
        tuning = (tuning_script(),) if spec.image.nodes == "eks" else ()
        boot = None if shared is None else boot_script(shared, item, spec.nodes.count + SPARE_NODES)
        return _GroupSettings(
            self._names.gpu_group,
            item.name,
            size=0,
            most=spec.nodes.count + SPARE_NODES,
            template=template,
            capacity_type=order.capacity_type,
            maker=item.maker,
            taint=GPU_TAINT,
            raid=spec.storage.local.layout,
            scripts=(*client, *tuning, *((boot,) if boot else ())),
            huge_pages=HUGE_PAGES if item.efa_interfaces else 0,
        )

    def _placement_group(self) -> aws.ec2.PlacementGroup:
        return aws.ec2.PlacementGroup(
            "gpu-nodes", name=self._names.placement_group, strategy="cluster", opts=ResourceOptions(parent=self)
        )


SPARE_NODES = 1
"""Room above the campaign's size: a replacement may come before the broken node has gone."""


@dataclass(frozen=True)
class PurchaseTerms:
    capacity_type: str
    """The node group's: ON_DEMAND, SPOT or CAPACITY_BLOCK."""
    market_type: str | None
    """The launch template's; None leaves it to the node group."""
    reservation: dict[str, Any] | None
    """The launch template's capacity_reservation_specification; None leaves it to EC2."""
    placement_group: bool


def purchase(nodes: Nodes, item: InstanceType) -> PurchaseTerms:
    """Return the purchase. Raises `UserError` for an option that AWS does not sell."""
    for problem in purchase_problems(nodes, item):
        raise UserError(problem.what, seen=problem.seen, cure=problem.cure)
    kinds = {Capacity.SPOT: "SPOT", Capacity.CAPACITY_BLOCK: "CAPACITY_BLOCK"}
    return PurchaseTerms(
        capacity_type=kinds.get(nodes.capacity, "ON_DEMAND"),
        market_type="capacity-block" if nodes.capacity is Capacity.CAPACITY_BLOCK else None,
        reservation=_reservation(nodes.reservation_id),
        placement_group=wants_placement_group(nodes),
    )


def _reservation(reservation: str | None) -> dict[str, Any] | None:
    """Return the launch template's reservation. `open` and a group are limited to reservations: else EC2 would buy on
    demand once they are full.
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservationSpecification.html"""
    if not reservation:
        return None
    preference = {"capacity_reservation_preference": RESERVATIONS_ONLY}
    if reservation == OPEN:
        return preference
    if reservation.startswith("arn:"):
        return {**preference, "capacity_reservation_target": {"capacity_reservation_resource_group_arn": reservation}}
    return {"capacity_reservation_target": {"capacity_reservation_id": reservation}}


def wants_placement_group(nodes: Nodes) -> bool:
    """Return the spec's choice, by default True for several nodes whose capacity is not placed already."""
    if nodes.placement_group is not None:
        return nodes.placement_group
    return nodes.count > 1 and nodes.capacity in (Capacity.ON_DEMAND, Capacity.SPOT)
