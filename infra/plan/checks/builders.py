"""Rules about an existing place for builders: Systems Manager reaches a builder there, and it reaches what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from infra.plan.acl import Traffic, let_through
from infra.plan.checks.finding import Case, Draft, error, warning
from infra.plan.checks.network import EPHEMERAL, NO_WAY_OUT, is_covered
from infra.plan.facts import SeenBuilders, SeenSubnet
from infra.spec.campaign import Spec

_SUBNET, _GROUP = "image.builders.subnet_id", "image.builders.security_group_id"
SERVICES = ("ssm", "ssmmessages", "ecr.api")
"""Interface endpoints that a builder needs without a way out: Systems Manager's agent the first two, the push the last.
Files, the registry's layers and Amazon Linux's packages come from S3.
https://docs.aws.amazon.com/systems-manager/latest/userguide/setup-create-vpc.html
https://docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html
https://docs.aws.amazon.com/linux/al2023/ug/managing-repos-os-updates.html"""
_EVERYWHERE = IPv4Network("0.0.0.0/0")


def builder_network(case: Case) -> Iterator[Draft]:
    """The place that the spec names for builders is there and private, with a way to all that a bake needs."""
    survey = case.facts.builders
    if survey is not None:
        yield from drafts(case.spec, survey)


def drafts(spec: Spec, survey: SeenBuilders) -> Iterator[Draft]:
    """Yield what keeps a builder from its work, and a warning of what others could do to it."""
    place, subnet = spec.image.builders, survey.subnet
    if place is None:
        return
    if subnet is None:
        cure = f"name one of {spec.account}, {spec.region}: `aws ec2 describe-subnets` lists them"
        yield error(_SUBNET, "account and region have no such subnet", seen=place.subnet_id, cure=cure)
        return
    if subnet.free_addresses < 1:
        cure = "name another subnet, or free an address"
        yield error(_SUBNET, "has no free address", seen=f"{subnet.id} ({subnet.cidr})", cure=cure)
    if lacks := _lacking(spec, subnet, survey):
        way = subnet.default_route or "no default route"
        yield error(
            _SUBNET,
            "a builder there has no way to what it needs",
            seen=f"{subnet.id}, {way}; it lacks {'; '.join(lacks)}",
            cure="route 0.0.0.0/0 to a NAT gateway (or transit gateway), or make what it lacks"
            + ("; image.nodes: eks or an AMI bakes no node image" if spec.image.nodes == "bake" else ""),
        )
    if obstacle := _acl_obstacles(subnet):
        cure = "allow it in that ACL, or name another subnet"
        yield error(_SUBNET, "its network ACL blocks the builder", seen=f"{subnet.acl_id}: {obstacle}", cure=cure)
    if not survey.group:
        cure = f"name one of the VPC of {subnet.id}"
        yield error(_GROUP, "the subnet's VPC has no such security group", seen=place.security_group_id, cure=cure)
    elif str(_EVERYWHERE) not in survey.https_to:
        cure = "allow TCP 443 to 0.0.0.0/0 in its egress: S3's addresses are public ones, also behind an endpoint"
        detail = f"{place.security_group_id}: TCP 443 to {', '.join(survey.https_to) or 'nothing'}"
        if survey.https_to:
            yield warning(_GROUP, "lets the builder out to some places only", seen=detail, cure=cure)
        else:
            yield error(_GROUP, "does not let the builder out", seen=detail, cure=cure)
    if survey.let_in:
        detail = f"{place.security_group_id}: {', '.join(survey.let_in)}"
        yield warning(
            _GROUP, "lets others in to the builder, who needs nobody", seen=detail, cure="name one without ingress"
        )


def _lacking(spec: Spec, subnet: SeenSubnet, survey: SeenBuilders) -> list[str]:
    """Return what a builder without a public address cannot reach."""
    if subnet.default_route and not subnet.default_route.startswith(NO_WAY_OUT):
        return []
    lacks = [f"an endpoint of {service} with private DNS" for service in SERVICES if service not in survey.endpoints]
    lacks += [
        f"TCP 443 from {subnet.cidr} to the endpoint of {service}"
        for service in SERVICES
        if service in survey.endpoints and not is_covered(subnet.cidr, survey.endpoints[service])
    ]
    if not subnet.s3_gateway and "s3" not in survey.endpoints:
        lacks.append("an endpoint of S3 on its route table")
    if spec.image.nodes == "bake":
        lacks.append("the internet, where EFA's and NVIDIA's packages of the node image come from")
    return lacks


def _acl_obstacles(subnet: SeenSubnet) -> str:
    flows = (
        (Traffic(True, "6", 443, 443, _EVERYWHERE), "HTTPS to 0.0.0.0/0"),
        (Traffic(False, "6", *EPHEMERAL, _EVERYWHERE), "answers from 0.0.0.0/0"),
    )
    return "; ".join(name for traffic, name in flows if not let_through(subnet.acl, traffic))
