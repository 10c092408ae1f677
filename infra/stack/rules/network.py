"""Rules for the network: no access from outside, and all traffic between the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from infra.plan.checks.finding import Draft, error, info
from infra.spec.campaign import Spec
from infra.stack.rules.graph import Graph, GraphResource

GPU_TEMPLATE = "gpu-nodes"
_INSIDE = "name a security group, or the VPC's own range"


def no_public_ingress(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """No rule admits addresses outside the VPC; only the NAT gateway and a builder have public addresses."""
    # The range of an existing VPC is not known here: no rule needs it.
    vpc_range = IPv4Network(spec.network.cidr) if spec.network.made else None
    for rule in graph.of("SecurityGroupIngressRule"):
        cidr = rule.literal("cidrIpv4")
        is_local = cidr is None or (vpc_range is not None and IPv4Network(cidr).subnet_of(vpc_range))
        if not is_local and not _is_driver_rule(graph, rule, spec):
            yield error(rule, "lets in addresses outside the VPC", seen=cidr, cure=_INSIDE)
        if rule.literal("cidrIpv6") is not None or rule.literal("prefixListId") is not None:
            source = rule.literal("cidrIpv6") or rule.literal("prefixListId")
            yield error(rule, "lets in addresses outside the VPC", seen=source, cure=_INSIDE)
    for group in graph.of("SecurityGroup"):
        if group.inputs.get("ingress"):
            yield error(group, "has inline rules", seen="ingress", cure="one resource per rule, so that each is seen")
    for subnet in graph.of("Subnet"):
        # The build network has no NAT gateway to pay for: a builder has a public address.
        if subnet.inputs.get("mapPublicIpOnLaunch") and not graph.of("Repository"):
            yield error(subnet, "gives its instances public addresses", seen=True, cure="leave it private")
    for template in graph.of("LaunchTemplate"):
        for interface in template.inputs.get("networkInterfaces") or ():
            if str(interface.get("associatePublicIpAddress", "false")).lower() == "true":
                yield error(template, "gives its nodes public addresses", seen=True, cure="leave them private")


def _is_driver_rule(graph: Graph, rule: GraphResource, spec: Spec) -> bool:
    """Return whether the rule is the one ingress of a private endpoint: the driver's addresses to the cluster's API, by
    HTTPS alone."""
    if not graph.origins(rule, "securityGroupId", "Cluster"):
        return False
    door = tuple(rule.inputs.get(name) for name in ("ipProtocol", "fromPort", "toPort"))
    cidr = IPv4Network(str(rule.inputs["cidrIpv4"]))
    return door == ("tcp", 443, 443) and any(
        cidr.subnet_of(IPv4Network(driver_cidr)) for driver_cidr in spec.network.driver_cidrs
    )


def public_control_plane(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Reports an API server that the whole internet reaches: only authentication protects it."""
    for cluster in graph.of("Cluster"):
        config = cluster.inputs.get("vpcConfig") or {}
        ranges = config.get("publicAccessCidrs") or ["0.0.0.0/0"]
        if config.get("endpointPublicAccess") and "0.0.0.0/0" in ranges:
            message = "its API endpoint answers the whole internet (with authentication)"
            cure = "a private endpoint, or the ranges that you come from"
            yield info(cluster, message, seen=", ".join(ranges), cure=cure)


def node_to_node_traffic(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every interface of the GPU nodes has a group with rules to itself, all protocols, both ways: only such rules
    match EFA's traffic, and without them collectives hang silently."""
    self_urns = _self_connected(graph, "SecurityGroupIngressRule") & _self_connected(graph, "SecurityGroupEgressRule")
    for template in graph.of("LaunchTemplate"):
        if template.name != GPU_TEMPLATE:
            continue
        interfaces = template.inputs.get("networkInterfaces") or []
        groups = [entry.get("securityGroups") or [] for entry in interfaces]
        group_urns = {entry.urn for entry in graph.origins(template, "networkInterfaces", "SecurityGroup")}
        if not interfaces:
            yield error(template, "has no network interfaces", seen="none", cure="one per EFA device and a plain one")
        elif not self_urns & group_urns:
            group_names = ", ".join(graph.resources[urn].name for urn in group_urns) or "none"
            message = "its interfaces carry no group that names itself both ways"
            cure = "a rule each way that names the nodes' own group, every protocol"
            yield error(template, message, seen=group_names, cure=cure)
        elif any(sorted(map(str, entry)) != sorted(map(str, groups[0])) or not entry for entry in groups):
            counts = sorted({len(entry) for entry in groups})
            cure = "the same groups on every interface: EKS adds none where we name some"
            yield error(template, "its interfaces carry different groups", seen=f"{counts} groups each", cure=cure)


def _self_connected(graph: Graph, kind: str) -> set[str]:
    """Return URNs of groups that a rule of this kind connects with themselves, every protocol."""
    group_urns = set[str]()
    for rule in graph.of(kind):
        owners = {group.urn for group in graph.origins(rule, "securityGroupId", "SecurityGroup")}
        peers = {group.urn for group in graph.origins(rule, "referencedSecurityGroupId", "SecurityGroup")}
        if rule.inputs.get("ipProtocol") == "-1":
            group_urns |= owners & peers
    return group_urns


def one_zone(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """GPU nodes and file system share a subnet of the campaign's zone: EFA does not leave a zone, and traffic between
    zones bills."""
    places: list[tuple[GraphResource, str]] = [
        *((candidate, "subnetIds") for candidate in graph.of("NodeGroup") if candidate.name == GPU_TEMPLATE),
        *((candidate, "subnetIds") for candidate in graph.of("LustreFileSystem")),
    ]
    subnet_ids = spec.network.subnet_ids
    for resource, name in places:
        if subnet_ids is not None:
            # Its zone is AWS's word, which `check --online` and `run` ask for.
            subnet_id = resource.inputs.get(name)
            if subnet_id not in (subnet_ids.gpu, [subnet_ids.gpu]):
                yield error(
                    resource, "is not in the given subnet of the GPU nodes", seen=subnet_id, cure=subnet_ids.gpu
                )
            continue
        subnets = graph.origins(resource, name, "Subnet")
        zones = sorted({str(candidate.inputs.get("availabilityZone")) for candidate in subnets})
        if len(subnets) != 1 or zones != [spec.zone]:
            subnet_names = ", ".join(subnet.name for subnet in subnets)
            detail = f"{subnet_names or 'no subnet'} in {', '.join(zones) or 'no zone'}"
            cure = f"one subnet in {spec.zone}"
            yield error(resource, "is not in one subnet of the campaign's zone", seen=detail, cure=cure)
