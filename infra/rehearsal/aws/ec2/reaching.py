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
    route = next((entry for entry in _table(ec2, subnet_id).routes if entry.destination_cidr_block == ANYWHERE), None)
    return _leads_out(route, instance) or all(_endpoint(ec2, world.region, subnet_id, entry) for entry in services)


def _table(ec2: Any, subnet_id: str) -> Any:
    """Return the subnet's route table: its own, else the VPC's main one."""
    vpc_id = ec2.get_subnet(subnet_id).vpc_id
    tables = [table for table in ec2.route_tables.values() if table.vpc_id == vpc_id]
    associated = [table for table in tables if any(link.get("SubnetId") == subnet_id for link in table.associations)]
    return (associated or [table for table in tables if table.main_association_id is not None])[0]


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
        endpoint.vpc_id == vpc_id
        and endpoint.service_name == f"com.amazonaws.{region}.{service}"
        and endpoint.state == "available"
        and endpoint.vpc_endpoint_type == "Interface"
        and str(endpoint.private_dns_enabled).lower() == "true"
        for endpoint in ec2.vpc_end_points.values()
    )
