"""Rules for the network: no access from outside, and all traffic between the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from infra.plan.checks.finding import Draft, error, info
from infra.spec.campaign import Spec
from infra.stack.rules.graph import Graph, Resource

GPU_TEMPLATE = "gpu-nodes"
_INSIDE = "name a security group, or the VPC's own range"


def no_public_ingress(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """No rule admits addresses outside the VPC; only the NAT gateway and a builder have public addresses."""
    # The range of an existing VPC is not known here: no rule needs it.
    inside = IPv4Network(spec.network.cidr) if spec.network.made else None
    for rule in graph.of("SecurityGroupIngressRule"):
        cidr = rule.known("cidrIpv4")
        within = cidr is None or (inside is not None and IPv4Network(cidr).subnet_of(inside))
        if not within and not _admits_the_driver(graph, rule, spec):
            yield error(rule, "lets in addresses outside the VPC", seen=cidr, cure=_INSIDE)
        if rule.known("cidrIpv6") is not None or rule.known("prefixListId") is not None:
            seen = rule.known("cidrIpv6") or rule.known("prefixListId")
            yield error(rule, "lets in addresses outside the VPC", seen=seen, cure=_INSIDE)
    for group in graph.of("SecurityGroup"):
        if group.inputs.get("ingress"):
            yield error(group, "has inline rules", seen="ingress", cure="one resource per rule, so that each is seen")
    for subnet in graph.of("Subnet"):
        # The build network has no NAT gateway to pay for: a builder has a public address.
        if subnet.inputs.get("mapPublicIpOnLaunch") and not graph.of("Repository"):
            yield error(subnet, "gives its instances public addresses", seen=True, cure="leave it private")
    for template in graph.of("LaunchTemplate"):
        for one in template.inputs.get("networkInterfaces") or ():
            if str(one.get("associatePublicIpAddress", "false")).lower() == "true":
                yield error(template, "gives its nodes public addresses", seen=True, cure="leave them private")


def _admits_the_driver(graph: Graph, rule: Resource, spec: Spec) -> bool:
    """Return whether the rule is the one ingress of a private endpoint: the driver's addresses to the cluster's API, by
    HTTPS alone."""
    if not graph.behind(rule, "securityGroupId", "Cluster"):
        return False
    door = tuple(rule.inputs.get(name) for name in ("ipProtocol", "fromPort", "toPort"))
    cidr = IPv4Network(str(rule.inputs["cidrIpv4"]))
    return door == ("tcp", 443, 443) and any(cidr.subnet_of(IPv4Network(one)) for one in spec.network.driver_cidrs)


def public_control_plane(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Reports an API server that the whole internet reaches: only authentication protects it."""
    for cluster in graph.of("Cluster"):
        config = cluster.inputs.get("vpcConfig") or {}
        ranges = config.get("publicAccessCidrs") or ["0.0.0.0/0"]
        if config.get("endpointPublicAccess") and "0.0.0.0/0" in ranges:
            yield info(
                cluster,
                "its API endpoint answers the whole internet (with authentication)",
                seen=", ".join(ranges),
                cure="a private endpoint, or the ranges that you come from",
            )


def node_to_node_traffic(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Every interface of the GPU nodes has a group with rules to itself, all protocols, both ways: only such rules
    match EFA's traffic, and without them collectives hang silently."""
    closed = _selfish(graph, "SecurityGroupIngressRule") & _selfish(graph, "SecurityGroupEgressRule")
    cure = "a rule each way that names the nodes' own group, every protocol"
    for template in graph.of("LaunchTemplate"):
        if template.name != GPU_TEMPLATE:
            continue
        interfaces = template.inputs.get("networkInterfaces") or []
        groups = [one.get("securityGroups") or [] for one in interfaces]
        carried = {one.urn for one in graph.behind(template, "networkInterfaces", "SecurityGroup")}
        if not interfaces:
            yield error(template, "has no network interfaces", seen="none", cure="one per EFA device and a plain one")
        elif not closed & carried:
            named = ", ".join(graph.resources[urn].name for urn in carried) or "none"
            yield error(template, "its interfaces carry no group that names itself both ways", seen=named, cure=cure)
        elif any(sorted(map(str, one)) != sorted(map(str, groups[0])) or not one for one in groups):
            counts = sorted({len(one) for one in groups})
            yield error(
                template,
                "its interfaces carry different groups",
                seen=f"{counts} groups each",
                cure="the same groups on every interface: EKS adds none where we name some",
            )


def _selfish(graph: Graph, kind: str) -> set[str]:
    """Return URNs of groups that a rule of this kind connects with themselves, every protocol."""
    found = set[str]()
    for rule in graph.of(kind):
        mine = {one.urn for one in graph.behind(rule, "securityGroupId", "SecurityGroup")}
        theirs = {one.urn for one in graph.behind(rule, "referencedSecurityGroupId", "SecurityGroup")}
        if rule.inputs.get("ipProtocol") == "-1":
            found |= mine & theirs
    return found


def one_zone(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """GPU nodes and file system share a subnet of the campaign's zone: EFA does not leave a zone, and traffic between
    zones bills."""
    places: list[tuple[Resource, str]] = [
        *((one, "subnetIds") for one in graph.of("NodeGroup") if one.name == GPU_TEMPLATE),
        *((one, "subnetIds") for one in graph.of("LustreFileSystem")),
    ]
    given = spec.network.subnet_ids
    for resource, name in places:
        if given is not None:
            # Its zone is AWS's word, which `check --online` and `run` ask for.
            named = resource.inputs.get(name)
            if named not in (given.gpu, [given.gpu]):
                yield error(resource, "is not in the given subnet of the GPU nodes", seen=named, cure=given.gpu)
            continue
        subnets = graph.behind(resource, name, "Subnet")
        zones = sorted({str(one.inputs.get("availabilityZone")) for one in subnets})
        if len(subnets) != 1 or zones != [spec.zone]:
            yield error(
                resource,
                "is not in one subnet of the campaign's zone",
                seen=f"{', '.join(one.name for one in subnets) or 'no subnet'} in {', '.join(zones) or 'no zone'}",
                cure=f"one subnet in {spec.zone}",
            )
