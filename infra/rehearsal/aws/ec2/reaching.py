"""Whether an instance reaches an AWS service from its subnet: by a route out, or by the service's endpoint."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.world import World

ANYWHERE = "0.0.0.0/0"


def reaches(world: World, instance: Any, services: tuple[str, ...]) -> bool:
    """Return whether an instance has a way to all of these services."""
    ec2, subnet_id = world.backend("ec2"), instance.subnet_id
    if str(ec2.get_subnet(subnet_id).default_for_az).lower() == "true":
        return bool(instance.public_ip)  # AWS's default VPC has an internet gateway; moto leaves it out
    route = next((one for one in _table(ec2, subnet_id).routes if one.destination_cidr_block == ANYWHERE), None)
    return _leads_out(route, instance) or all(_endpoint(ec2, world.region, subnet_id, one) for one in services)


def _table(ec2: Any, subnet_id: str) -> Any:
    """Return the subnet's route table: its own, else the VPC's main one."""
    vpc_id = ec2.get_subnet(subnet_id).vpc_id
    tables = [one for one in ec2.route_tables.values() if one.vpc_id == vpc_id]
    own = [one for one in tables if any(link.get("SubnetId") == subnet_id for link in one.associations)]
    return (own or [one for one in tables if one.main_association_id is not None])[0]


def _leads_out(route: Any, instance: Any) -> bool:
    """An internet gateway passes on only what has a public address; a peered VPC passes on nothing."""
    if route is None or route.vpc_pcx is not None:
        return False
    if str(getattr(route.gateway, "id", "")).startswith("igw-"):
        return bool(instance.public_ip)
    return True


def _endpoint(ec2: Any, region: str, subnet_id: str, service: str) -> bool:
    vpc_id = ec2.get_subnet(subnet_id).vpc_id
    return any(
        one.vpc_id == vpc_id
        and one.service_name == f"com.amazonaws.{region}.{service}"
        and one.state == "available"
        and one.vpc_endpoint_type == "Interface"
        and str(one.private_dns_enabled).lower() == "true"
        for one in ec2.vpc_end_points.values()
    )
