"""Rules about an existing VPC: the spec names it whole, and it has what a campaign's own network would have."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, collapse_addresses

from infra.plan.acl import Traffic, let_through
from infra.plan.catalogue import no_control_plane
from infra.plan.checks.finding import Case, Draft, error, warning
from infra.plan.checks.placement import SERVICE_NETWORK
from infra.plan.facts import SeenNetwork, SeenSubnet
from infra.spec.campaign import Egress, Spec
from infra.spec.sections import OWN_CIDR
from infra.spec.services import MONITORING_SERVICE, SCHEDULER_SERVICE
from trainer.contract import AGENT_PORT

_VPC, _GPU, _CONTROL = "network.vpc_id", "network.subnet_ids.gpu", "network.subnet_ids.control_plane"
AMAZON_DNS = "AmazonProvidedDNS"
CONTROL_PLANE_ADDRESSES = 6
"""EKS requires them in each subnet of a cluster.
https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html"""
GPU_NODE_ADDRESSES = 8
"""The node's own, two that the CNI keeps warm, five pods: the gang's, device plugins and agents. EFA-only interfaces
take none."""
SYSTEM_NODE_ADDRESSES = 20
"""The node's own, two warm, 17 pods: DNS, controllers, the steward, its archive job, every add-on."""
GIB_PER_INTERFACE = 1200
"""FSx does not publish how many interfaces a file system has: assumed is one per smallest step of capacity, and one."""
EPHEMERAL = (32768, 60999)
"""Linux's ports for answers (net.ipv4.ip_local_port_range)."""
_INSIDE = (
    *(("6", port, port, what) for port, what in (
        (443, "the cluster's API"), (10250, "kubelet"), (53, "DNS"), (9443, "webhooks"), (988, "Lustre"),
        (AGENT_PORT, "the ranks' status"),
    )),
    ("6", 1018, 1023, "Lustre"), ("6", *EPHEMERAL, "answers"), ("17", 53, 53, "DNS"), ("17", *EPHEMERAL, "answers"),
)  # fmt: skip
"""Traffic between a campaign's subnets: protocol, ports, purpose. EFA and collectives stay in one subnet, where no ACL
counts."""
NO_WAY_OUT = ("igw-", "pcx-")
"""Targets of a default route that lead a private node nowhere: it has no public address, and no peer forwards."""
_WITHOUT = {
    SCHEDULER_SERVICE: "without a closer, nothing but the deadline ends the GPU nodes of a steward that dies",
    MONITORING_SERVICE: "nobody sees the file system's traffic, and a storage target that fills up",
}
"""Service that a campaign can do without -> what it then lacks."""


def existing_network_fields(case: Case) -> Iterator[Draft]:
    """VPC and subnets are named together, and nothing besides that only a network of the campaign's own has."""
    network, spec = case.spec.network, case.spec
    if network.subnet_ids is not None and network.vpc_id is None:
        cure = "write vpc_id, or remove subnet_ids: the campaign makes its own"
        yield error("network.subnet_ids", "names subnets and no VPC", seen="vpc_id is not set", cure=cure)
    if network.vpc_id is None:
        return
    if network.subnet_ids is None:
        cure = f"write subnet_ids: {{gpu: subnet-..., control_plane: [subnet-..., subnet-...]}}, gpu in {spec.zone}"
        yield error(_VPC, "an existing VPC needs its subnets", seen="subnet_ids is not set", cure=cure)
    elif len(set(network.subnet_ids.control_plane)) == 1:
        subnet = network.subnet_ids.control_plane[0]
        yield error(
            _CONTROL, "the control plane needs two different subnets", seen=subnet, cure="name two, in two zones"
        )
    idle = {
        "network.cidr": network.cidr if network.cidr != OWN_CIDR else None,
        "network.driver_vpc": network.driver_vpc.vpc_id if network.driver_vpc else None,
        "second_zone": spec.second_zone,
    }
    for field, value in idle.items():
        if value is not None:
            cure = "remove it" if field != "network.driver_vpc" else (
                "remove it, connect the networks yourself, and write the driver's ranges into api_allowed_cidrs"
            )  # fmt: skip
            yield error(field, "belongs to a network that the campaign makes", seen=value, cure=cure)


def existing_network(case: Case) -> Iterator[Draft]:
    """The VPC is the account's and nobody's to delete; the subnets are in it and in the right zones."""
    vpc, subnet_ids, spec = case.facts.network, case.spec.network.subnet_ids, case.spec
    if vpc is None or subnet_ids is None:
        return
    if not vpc.exists:
        cure = f"name one of {spec.account}, {spec.region}: `aws ec2 describe-vpcs` lists them"
        yield error(_VPC, "account and region have no such VPC", seen=spec.network.vpc_id, cure=cure)
        return
    if vpc.owner != spec.account:
        cure = (
            "name a VPC of the spec's account: a shared one cannot hold the campaign's security groups and file system"
        )
        yield error(_VPC, "is another account's", seen=vpc.owner, cure=cure)
    if vpc.mark:
        cure = "name a VPC that no campaign and no foundation made"
        yield error(_VPC, "Bivouac made it, and a teardown deletes it", seen=vpc.mark, cure=cure)
    subnets = {subnet.id: subnet for subnet in vpc.subnets}
    for field, subnet_id in ((_GPU, subnet_ids.gpu), *((_CONTROL, subnet) for subnet in subnet_ids.control_plane)):
        if subnet_id not in subnets:
            cure = f"name a subnet of it: `aws ec2 describe-subnets --filters Name=vpc-id,Values={spec.network.vpc_id}`"
            yield error(field, f"{spec.network.vpc_id} has no such subnet", seen=subnet_id, cure=cure)
    gpu = subnets.get(subnet_ids.gpu)
    if gpu is not None and gpu.zone != spec.zone:
        cure = f"name one in {spec.zone}, or write zone: {gpu.zone}: EFA does not leave a zone"
        yield error(_GPU, "is not in the campaign's zone", seen=f"{gpu.id} in {gpu.zone}", cure=cure)
    control = [subnets[subnet] for subnet in subnet_ids.control_plane if subnet in subnets]
    if len(control) == 2 and len({subnet.zone for subnet in control}) == 1 and control[0].id != control[1].id:
        zones = ", ".join(f"{subnet.id} in {subnet.zone}" for subnet in control)
        yield error(_CONTROL, "EKS needs subnets in two zones", seen=zones, cure="name another second one")
    ids = {zone.name: zone.id for zone in case.facts.zones or ()}
    for subnet in control:
        if ids.get(subnet.zone) in no_control_plane():
            seen_there = f"{subnet.id} in {subnet.zone} ({ids[subnet.zone]})"
            yield error(_CONTROL, "EKS places no control plane there", seen=seen_there, cure="name one in another zone")


def existing_network_dns(case: Case) -> Iterator[Draft]:
    """Names inside the VPC are Amazon's to resolve: the cluster's private endpoint, FSx and interface endpoints need
    it. https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html"""
    vpc = _existing_vpc(case)
    if vpc is None:
        return
    for on, name in ((vpc.dns_support, "enableDnsSupport"), (vpc.dns_hostnames, "enableDnsHostnames")):
        if not on:
            option = {"enableDnsSupport": "--enable-dns-support", "enableDnsHostnames": "--enable-dns-hostnames"}[name]
            cure = f"`aws ec2 modify-vpc-attribute --vpc-id {case.spec.network.vpc_id} {option}`"
            yield error(_VPC, "nodes would not find the cluster or the file system by name", seen=f"{name} is off",
                        cure=cure)  # fmt: skip
    if AMAZON_DNS not in vpc.name_servers:
        cure = f"a DHCP options set with {AMAZON_DNS}; forward other zones by Route 53 Resolver rules"
        name_servers = ", ".join(vpc.name_servers) or "no name server"
        yield error(_VPC, "its DHCP options name no resolver of Amazon's", seen=name_servers, cure=cure)


def existing_network_overlap(case: Case) -> Iterator[Draft]:
    """No range of the VPC overlaps that of Kubernetes services: nodes would take its addresses for services."""
    vpc = _existing_vpc(case)
    for cidr in () if vpc is None else vpc.cidrs:
        if IPv4Network(cidr).overlaps(SERVICE_NETWORK):
            cure = f"take a VPC outside of {SERVICE_NETWORK}"
            yield error(_VPC, "overlaps the network of Kubernetes services", seen=cidr, cure=cure)


def existing_network_room(case: Case) -> Iterator[Draft]:
    """Each subnet has free addresses for nodes and pods, a replacement beside them, file system and control plane."""
    for field, subnet in _subnets(case):
        demand = _address_demand(case.spec, subnet.id)
        if subnet.free_addresses < sum(demand.values()):
            formula = " + ".join(f"{count} {purpose}" for purpose, count in demand.items())
            free, total = subnet.free_addresses, sum(demand.values())
            detail = f"{subnet.id} ({subnet.cidr}): {free} free, {total} wanted ({formula})"
            cure = "name a larger subnet, or free addresses in it"
            yield error(field, "has too few free addresses", seen=detail, cure=cure)


def existing_network_egress(case: Case) -> Iterator[Draft]:
    """Nodes are private, and have a default route to a NAT gateway or its like, else every endpoint that they need."""
    vpc, spec = _existing_vpc(case), case.spec
    if vpc is None:
        return
    nodes = [(field, subnet) for field, subnet in _subnets(case) if subnet.id in _of_nodes(spec)]
    lacking = [service for service in spec.services if service not in vpc.endpoints]
    for field, subnet in nodes:
        if subnet.public_addresses:
            command = f"aws ec2 modify-subnet-attribute --subnet-id {subnet.id} --no-map-public-ip-on-launch"
            cure = f"`{command}`, or name another"
            detail = f"{subnet.id} has MapPublicIpOnLaunch; EC2 gives none to a node with several interfaces"
            yield error(field, "gives nodes public addresses", seen=detail, cure=cure)
        if spec.network.egress is Egress.NAT:
            yield from _way_out(field, subnet, lacking)
        elif not subnet.s3_gateway and "s3" not in vpc.endpoints:
            cure = "make a gateway endpoint for S3 and associate the subnet's route table with it"
            yield error(field, "nodes without a way out need S3's endpoint", seen=f"{subnet.id}: none", cure=cure)
    if spec.network.egress is Egress.NAT:
        return
    cure = "make interface endpoints with private DNS for them, or write egress: nat where there is a default route"
    if needs := [service for service in lacking if service not in _WITHOUT]:
        yield error("network.egress", "the VPC lacks endpoints that nodes need", seen=", ".join(needs), cure=cure)
    for service in lacking:
        if service in _WITHOUT:
            yield warning("network.egress", _WITHOUT[service], seen=f"no endpoint for {service}", cure=cure)
    for field, subnet in nodes:
        refusing_endpoints = [
            name for name in spec.services if not is_covered(subnet.cidr, vpc.endpoints.get(name, (subnet.cidr,)))
        ]
        if refusing_endpoints:
            cure = f"allow TCP 443 from {subnet.cidr} in the endpoints' security groups"
            yield error(field, "endpoints do not admit its nodes", seen=", ".join(refusing_endpoints), cure=cure)


def _way_out(field: str, subnet: SeenSubnet, lacking: list[str]) -> Iterator[Draft]:
    if not subnet.default_route or subnet.default_route.startswith(NO_WAY_OUT):
        instead = f"add endpoints for {', '.join(lacking)}" if lacking else "its endpoints suffice"
        cure = f"route 0.0.0.0/0 to a NAT gateway (or transit gateway); or write egress: endpoints, {instead}"
        detail = f"{subnet.id}: {subnet.default_route or 'no default route'}"
        yield error(field, "private nodes have no way out", seen=detail, cure=cure)
    elif not subnet.s3_gateway:
        cure = "make a gateway endpoint for S3, which is free, and associate the subnet's route table with it"
        detail = f"{subnet.id}: S3 through {subnet.default_route}"
        yield warning(field, "data and checkpoints go through the default route, which bills each GB", seen=detail,
                      cure=cure)  # fmt: skip


def existing_network_acl(case: Case) -> Iterator[Draft]:
    """No network ACL blocks the nodes' way to AWS or the traffic between the campaign's subnets."""
    subnets = {subnet.id: (field, subnet) for field, subnet in _subnets(case)}
    for field, subnet in subnets.values():
        obstacles = [] if subnet.id not in _of_nodes(case.spec) else [
            f"{purpose} {direction}"
            for traffic, purpose, direction in (
                (Traffic(True, "6", 443, 443, IPv4Network("0.0.0.0/0")), "HTTPS", "to 0.0.0.0/0"),
                (Traffic(False, "6", *EPHEMERAL, IPv4Network("0.0.0.0/0")), "answers", "from 0.0.0.0/0"),
            )
            if not let_through(subnet.acl, traffic)
        ]  # fmt: skip
        for _, peer in subnets.values():
            if peer.id != subnet.id:
                obstacles += _acl_obstacles(subnet, peer)
        if obstacles:
            cure = "allow it in that ACL, or name another subnet; security groups already keep others out"
            detail = f"{subnet.acl_id or 'no ACL'} of {subnet.id}: {'; '.join(obstacles)}"
            yield error(field, "its network ACL blocks traffic of the campaign", seen=detail, cure=cure)


def _acl_obstacles(subnet: SeenSubnet, peer: SeenSubnet) -> Iterator[str]:
    cidr = IPv4Network(peer.cidr)
    for protocol, first_port, last_port, purpose in _INSIDE:
        for egress in (True, False):
            if not let_through(subnet.acl, Traffic(egress, protocol, first_port, last_port, cidr)):
                ports = f"{'tcp' if protocol == '6' else 'udp'} {first_port}" + (
                    f"-{last_port}" if last_port != first_port else ""
                )
                yield f"{purpose} ({ports}) {'to' if egress else 'from'} {peer.id}"


def _existing_vpc(case: Case) -> SeenNetwork | None:
    vpc = case.facts.network
    return vpc if vpc is not None and vpc.exists else None


def _subnets(case: Case) -> Iterator[tuple[str, SeenSubnet]]:
    """Yield each subnet that was found, once, with its field."""
    vpc, subnet_ids = _existing_vpc(case), case.spec.network.subnet_ids
    if vpc is not None and subnet_ids is not None:
        yield from ((_GPU if subnet.id == subnet_ids.gpu else _CONTROL, subnet) for subnet in vpc.subnets)


def _of_nodes(spec: Spec) -> tuple[str, str]:
    subnet_ids = spec.network.subnet_ids
    return ("", "") if subnet_ids is None else (subnet_ids.gpu, subnet_ids.control_plane[0])


def _address_demand(spec: Spec, subnet_id: str) -> dict[str, int]:
    """Return what takes addresses in a subnet -> how many."""
    gpu, system = _of_nodes(spec)
    subnet_ids, demand = spec.network.subnet_ids, dict[str, int]()
    if subnet_id == gpu:
        demand[f"of {spec.nodes.count} GPU nodes and a spare"] = (spec.nodes.count + 1) * GPU_NODE_ADDRESSES
        if (shared := spec.storage.shared) is not None:
            demand["of the file system"] = -(-shared.capacity_gib // GIB_PER_INTERFACE) + 1
    if subnet_id == system:
        count = spec.nodes.system_count
        demand[f"of {count} system nodes and a spare"] = (count + 1) * SYSTEM_NODE_ADDRESSES
    if subnet_ids is not None and subnet_id in subnet_ids.control_plane:
        demand["of the control plane"] = CONTROL_PLANE_ADDRESSES
    return demand


def is_covered(cidr: str, ranges: tuple[str, ...]) -> bool:
    """Return whether the ranges together cover a subnet."""
    networks = collapse_addresses(IPv4Network(network) for network in ranges)
    return any(IPv4Network(cidr).subnet_of(network) for network in networks)
