"""Rules for nodes: all EFA devices, encrypted disks, no old metadata service, none launched too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from infra.plan.catalogue import InstanceType, instance_type
from infra.plan.checks.finding import Draft, error
from infra.plan.purchase import OPEN, RESERVATIONS_ONLY, RESERVED
from infra.spec.campaign import Capacity, Spec
from infra.stack.rules.graph import Graph, Resource
from infra.stack.rules.network import GPU_TEMPLATE

_EFA = ("efa", "efa-only")
_EFA_CHARTS = frozenset({"aws-efa-k8s-device-plugin", "aws-dranet"})


def efa_devices(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """The template attaches all EFA devices of the type, at most one per card, none on a card that takes none, and a
    plain primary interface:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"""
    item = instance_type(spec.nodes.instance_type)
    for template in graph.of("LaunchTemplate"):
        if template.name == GPU_TEMPLATE:
            interfaces = template.inputs.get("networkInterfaces") or []
            for message, seen in _layout(interfaces, item):
                cure = f"{item.name} has {item.efa_interfaces} EFA devices on {item.network_cards} cards"
                yield error(template, message, seen=seen, cure=cure)


def _layout(interfaces: list[Mapping[str, Any]], item: InstanceType) -> Iterator[tuple[str, str]]:
    """Count independently, so that the program's arithmetic does not judge itself."""
    places = [(int(one.get("networkCardIndex") or 0), int(one.get("deviceIndex") or 0)) for one in interfaces]
    kinds = [one.get("interfaceType") or "interface" for one in interfaces]
    efa = Counter(card for (card, _), kind in zip(places, kinds, strict=True) if kind in _EFA)
    if sum(efa.values()) != item.efa_interfaces:
        yield "does not attach all EFA devices of its type", f"{sum(efa.values())} of {item.efa_interfaces}"
    if crowded := sorted(card for card, number in efa.items() if number > 1):
        yield "puts several EFA devices on one card", f"cards {crowded}"
    if efa[0] and not item.efa_on_first_card:
        yield "puts an EFA device on card 0, which carries none", f"{efa[0]} on card 0"
    if doubled := sorted(place for place, number in Counter(places).items() if number > 1):
        yield "gives two interfaces one place", f"(card, device) {doubled}"
    primary = dict(zip(places, kinds, strict=True)).get((0, 0))
    if primary not in ("interface", "efa"):
        yield "has no primary interface with an address on card 0, device 0", str(primary)
    per_card = Counter(card for card, _ in places)
    if full := sorted(card for card, number in per_card.items() if number > item.interfaces_per_card):
        yield f"puts more than {item.interfaces_per_card} interfaces on a card", f"cards {full}"


def metadata_service(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """The metadata service is IMDSv2 with one hop: a pod must not take the node's role."""
    for template in graph.of("LaunchTemplate", "Instance"):
        options = template.inputs.get("metadataOptions") or {}
        if options.get("httpTokens") != "required":
            yield error(
                template,
                "answers version 1 of the metadata service",
                seen=options.get("httpTokens") or "optional",
                cure="metadata_options.http_tokens: required",
            )
        elif int(options.get("httpPutResponseHopLimit") or 1) > 1:
            yield error(
                template,
                "lets pods reach the node's role",
                seen=f"{options['httpPutResponseHopLimit']} hops",
                cure="one hop: pods have roles of their own",
            )


def encrypted_volumes(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every disk of a node is encrypted and deleted with the node."""
    for template in graph.of("LaunchTemplate"):
        mappings = template.inputs.get("blockDeviceMappings") or []
        if not mappings:
            yield error(
                template,
                "leaves its disk to the image's settings",
                seen="no block device mapping",
                cure="map /dev/xvda, encrypted, deleted with the node",
            )
        for one in mappings:
            ebs = one.get("ebs") or {}
            if str(ebs.get("encrypted")).lower() != "true":
                yield error(
                    template, "has a disk that is not encrypted", seen=one.get("deviceName"), cure="ebs.encrypted: true"
                )
            if str(ebs.get("deleteOnTermination", "true")).lower() != "true":
                yield error(
                    template, "leaves a disk behind", seen=one.get("deviceName"), cure="delete_on_termination: true"
                )


def no_initial_nodes(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """The GPU group begins at zero: nothing bills before the cluster is ready."""
    for group in graph.of("NodeGroup"):
        scaling = group.inputs.get("scalingConfig") or {}
        if group.name == GPU_TEMPLATE and (scaling.get("minSize") or scaling.get("desiredSize")):
            yield error(group, "starts GPU nodes at once", seen=scaling, cure="min_size and desired_size 0")


def purchase(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """The launch template buys as the spec says, and no capacity block is in a placement group."""
    block = spec.nodes.capacity is Capacity.CAPACITY_BLOCK
    for template in graph.of("LaunchTemplate"):
        if template.name != GPU_TEMPLATE:
            continue
        market = (template.inputs.get("instanceMarketOptions") or {}).get("marketType")
        if block != (market == "capacity-block"):
            yield error(
                template,
                "is not bought as the spec says",
                seen=market or "no market",
                cure=f"nodes.capacity is {spec.nodes.capacity.value}",
            )
        if spec.nodes.capacity in RESERVED and (named := _reserved(template)) != spec.nodes.reservation_id:
            yield error(
                template,
                "does not start in the campaign's reservation",
                seen=named or "none",
                cure=f"target {spec.nodes.reservation_id}",
            )
        if block and template.inputs.get("placement"):
            yield error(
                template,
                "puts a capacity block into a placement group",
                seen="placement",
                cure="none: a block's instances lie close already",
            )


def _reserved(template: Resource) -> str | None:
    """Return the reservation that is the template's only capacity, in the spec's terms."""
    asked = template.inputs.get("capacityReservationSpecification") or {}
    target = asked.get("capacityReservationTarget") or {}
    only = asked.get("capacityReservationPreference") == RESERVATIONS_ONLY
    if only and not target:
        return OPEN
    if group := target.get("capacityReservationResourceGroupArn"):
        return str(group) if only else f"{group}, on demand once it is full"
    return target.get("capacityReservationId")


def one_efa_plugin(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Only one plugin hands out EFA devices: two would assign each device twice, and NVIDIA's plugin from 0.19 on
    mounts every RDMA device by default."""
    releases = {one.name: one for one in graph.of("Release")}
    both = sorted(_EFA_CHARTS & releases.keys())
    if len(both) > 1:
        yield error(
            releases[both[0]], "is not alone in handing out EFA devices", seen=", ".join(both), cure="one of them"
        )
    plugin = releases.get("nvidia-device-plugin")
    if plugin is not None and (plugin.inputs.get("values") or {}).get("mofedEnabled") is not False:
        seen = (plugin.inputs.get("values") or {}).get("mofedEnabled", "the chart's own choice")
        yield error(plugin, "mounts RDMA devices behind the EFA plugin's back", seen=seen, cure="mofedEnabled: false")


def no_eks_repair(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """EKS repairs no GPU node: the steward does, and EKS would replace nodes that train."""
    for group in graph.of("NodeGroup"):
        if group.name == GPU_TEMPLATE and (group.inputs.get("nodeRepairConfig") or {}).get("enabled") is not False:
            seen = group.inputs.get("nodeRepairConfig") or "EKS's own choice"
            yield error(group, "is repaired by EKS too", seen=seen, cure="node_repair_config.enabled: false")
