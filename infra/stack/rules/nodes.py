"""Rules for nodes: all EFA devices, encrypted disks, no old metadata service, none launched too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from infra.plan.catalogue import InstanceType, instance_type
from infra.plan.checks.finding import Draft, error
from infra.plan.purchase import OPEN, RESERVATIONS_ONLY, RESERVED
from infra.spec.campaign import Capacity, Spec
from infra.stack.rules.graph import Graph, GraphResource
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
            for message, detail in _layout(interfaces, item):
                cure = f"{item.name} has {item.efa_interfaces} EFA devices on {item.network_cards} cards"
                yield error(template, message, seen=detail, cure=cure)


def _layout(interfaces: list[Mapping[str, Any]], item: InstanceType) -> Iterator[tuple[str, str]]:
    """Count independently, so that the program's arithmetic does not judge itself."""
    places = [
        (int(interface.get("networkCardIndex") or 0), int(interface.get("deviceIndex") or 0))
        for interface in interfaces
    ]
    kinds = [interface.get("interfaceType") or "interface" for interface in interfaces]
    efa = Counter(card for (card, _), kind in zip(places, kinds, strict=True) if kind in _EFA)
    if sum(efa.values()) != item.efa_interfaces:
        yield "does not attach all EFA devices of its type", f"{sum(efa.values())} of {item.efa_interfaces}"
    if crowded_cards := sorted(card for card, number in efa.items() if number > 1):
        yield "puts several EFA devices on one card", f"cards {crowded_cards}"
    if efa[0] and not item.efa_on_first_card:
        yield "puts an EFA device on card 0, which carries none", f"{efa[0]} on card 0"
    if shared_places := sorted(place for place, number in Counter(places).items() if number > 1):
        yield "gives two interfaces one place", f"(card, device) {shared_places}"
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
            message, cure = "answers version 1 of the metadata service", "metadata_options.http_tokens: required"
            yield error(template, message, seen=options.get("httpTokens") or "optional", cure=cure)
        elif int(options.get("httpPutResponseHopLimit") or 1) > 1:
            detail = f"{options['httpPutResponseHopLimit']} hops"
            cure = "one hop: pods have roles of their own"
            yield error(template, "lets pods reach the node's role", seen=detail, cure=cure)


def encrypted_volumes(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every disk of a node is encrypted and deleted with the node."""
    for template in graph.of("LaunchTemplate"):
        mappings = template.inputs.get("blockDeviceMappings") or []
        if not mappings:
            cure = "map /dev/xvda, encrypted, deleted with the node"
            yield error(template, "leaves its disk to the image's settings", seen="no block device mapping", cure=cure)
        for mapping in mappings:
            ebs = mapping.get("ebs") or {}
            if str(ebs.get("encrypted")).lower() != "true":
                cure = "ebs.encrypted: true"
                yield error(template, "has a disk that is not encrypted", seen=mapping.get("deviceName"), cure=cure)
            if str(ebs.get("deleteOnTermination", "true")).lower() != "true":
                message, cure = "leaves a disk behind", "delete_on_termination: true"
                yield error(template, message, seen=mapping.get("deviceName"), cure=cure)


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
            cure = f"nodes.capacity is {spec.nodes.capacity.value}"
            yield error(template, "is not bought as the spec says", seen=market or "no market", cure=cure)
        if spec.nodes.capacity in RESERVED and (reservation := _reservation(template)) != spec.nodes.reservation_id:
            cure = f"target {spec.nodes.reservation_id}"
            yield error(template, "does not start in the campaign's reservation", seen=reservation or "none", cure=cure)
        if block and template.inputs.get("placement"):
            cure = "none: a block's instances lie close already"
            yield error(template, "puts a capacity block into a placement group", seen="placement", cure=cure)


def _reservation(template: GraphResource) -> str | None:
    """Return the reservation that is the template's only capacity, in the spec's terms."""
    reservation_spec = template.inputs.get("capacityReservationSpecification") or {}
    target = reservation_spec.get("capacityReservationTarget") or {}
    is_exclusive = reservation_spec.get("capacityReservationPreference") == RESERVATIONS_ONLY
    if is_exclusive and not target:
        return OPEN
    if group := target.get("capacityReservationResourceGroupArn"):
        return str(group) if is_exclusive else f"{group}, on demand once it is full"
    return target.get("capacityReservationId")


def one_efa_plugin(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Only one plugin hands out EFA devices: two would assign each device twice, and NVIDIA's plugin from 0.19 on
    mounts every RDMA device by default."""
    releases = {release.name: release for release in graph.of("Release")}
    plugins = sorted(_EFA_CHARTS & releases.keys())
    if len(plugins) > 1:
        yield error(
            releases[plugins[0]], "is not alone in handing out EFA devices", seen=", ".join(plugins), cure="one of them"
        )
    plugin = releases.get("nvidia-device-plugin")
    if plugin is not None and (plugin.inputs.get("values") or {}).get("mofedEnabled") is not False:
        detail = (plugin.inputs.get("values") or {}).get("mofedEnabled", "the chart's own choice")
        yield error(plugin, "mounts RDMA devices behind the EFA plugin's back", seen=detail, cure="mofedEnabled: false")


def no_eks_repair(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """EKS repairs no GPU node: the steward does, and EKS would replace nodes that train."""
    for group in graph.of("NodeGroup"):
        if group.name == GPU_TEMPLATE and (group.inputs.get("nodeRepairConfig") or {}).get("enabled") is not False:
            detail = group.inputs.get("nodeRepairConfig") or "EKS's own choice"
            yield error(group, "is repaired by EKS too", seen=detail, cure="node_repair_config.enabled: false")
