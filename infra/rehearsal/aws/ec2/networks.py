"""VPCs, security groups, NAT gateways, endpoints and addresses, with the attributes that moto leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.elastic_ip_addresses import ElasticAddress
from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.models.vpcs import VPCBackend, VPCEndPoint
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

TAG_TYPES = {"eipalloc": "elastic-ip", "nat": "natgateway", "pcx": "vpc-peering-connection"}
"""ID prefix -> DescribeTags' resource type, if moto has another or none."""
POOL = "amazon"
AMAZON_DNS = "AmazonProvidedDNS"
Moto = Callable[..., ActionResult]


def _vpc(moto: Callable[..., Any], ec2: Any, *args: Any, **kwargs: Any) -> Any:
    """Add a default security group whose members reach each other, and the region's default DHCP options."""
    vpc = moto(ec2, *args, **kwargs)
    domain = "ec2.internal" if ec2.region_name == "us-east-1" else f"{ec2.region_name}.compute.internal"
    default = {"domain_name_servers": [AMAZON_DNS], "domain_name": [domain]}
    options = next(iter(ec2.dhcp_options_sets.values()), None)
    ec2.associate_dhcp_options(options or ec2.create_dhcp_options(**default), vpc)
    group = ec2.get_security_group_from_name("default", vpc_id=vpc.id)
    if not group.ingress_rules:
        itself = [{"GroupId": group.id}]
        ec2.authorize_security_group_ingress(group.id, "-1", None, None, [], source_groups=itself, vpc_id=vpc.id)
    return vpc


def _delete_vpc(moto: Callable[..., Any], ec2: Any, vpc_id: str) -> Any:
    """Keep the DHCP options, which moto deletes with the VPC: other VPCs have the same."""
    options, vpc = None, ec2.vpcs.get(vpc_id)
    if vpc is not None:
        options, vpc.dhcp_options = vpc.dhcp_options, None
    try:
        return moto(ec2, vpc_id)
    finally:
        if vpc is not None and vpc_id in ec2.vpcs:
            vpc.dhcp_options = options


def _authorize(direction: str) -> Callable[..., ActionResult]:
    """Answer with all rules; moto answers with those of the last permission only."""

    def authorize(moto: Moto, response: Any) -> ActionResult:
        response.error_on_dryrun()
        rules: list[SecurityGroupRule] = []
        for arguments in response._process_rules_from_querystring():
            new_rules, _ = getattr(response.ec2_backend, f"authorize_security_group_{direction}")(**arguments)
            rules += new_rules
        return ActionResult({"Return": True, "SecurityGroupRules": rules})

    authorize.__qualname__ = f"authorize.{direction}"
    return authorize


def _nat(moto: Callable[..., Any], ec2: Any, subnet_id: str, *args: Any, **kwargs: Any) -> Any:
    """Make the gateway public by default, with an address of its subnet."""
    if kwargs.get("connectivity_type") is None:
        kwargs["connectivity_type"] = "public"
    gateway = moto(ec2, subnet_id, *args, **kwargs)
    eni, (address,) = gateway._eni, gateway.address_set
    eni.private_ip_address = gateway.private_ip = ec2.get_subnet(subnet_id).get_available_subnet_ip(eni)
    eni.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": eni.private_ip_address}]
    address |= {"privateIp": eni.private_ip_address, "isPrimary": True, "status": "succeeded"}
    return gateway


def _endpoint(moto: Callable[..., None], endpoint: Any, *args: Any, **kwargs: Any) -> None:
    """Disable private DNS for a gateway: only interface endpoints have it."""
    moto(endpoint, *args, **kwargs)
    endpoint.vpc_endpoint_type = endpoint.vpc_endpoint_type or "Gateway"
    if endpoint.vpc_endpoint_type == "Gateway":
        endpoint.private_dns_enabled = False


def _address(moto: Moto, response: Any) -> ActionResult:
    answer = moto(response)
    document: Any = answer.result
    document |= {"PublicIpv4Pool": POOL, "NetworkBorderGroup": response.region}
    return answer


def install(world: World) -> None:
    EC2_PREFIX_TO_RESOURCE.update(TAG_TYPES)
    wrap(VPCBackend, "create_vpc", _vpc)
    wrap(VPCBackend, "delete_vpc", _delete_vpc)
    for direction in ("ingress", "egress"):
        wrap(EC2Response, f"authorize_security_group_{direction}", _authorize(direction))
    wrap(NatGatewayBackend, "create_nat_gateway", _nat)
    wrap(VPCEndPoint, "__init__", _endpoint)
    wrap(EC2Response, "allocate_address", _address)
    fields: dict[type, dict[str, Any]] = {
        SecurityGroupRule: {"group_owner_id": property(lambda rule: world.account)},
        VPCEndPoint: {"ip_address_type": "ipv4", "requester_managed": False},
        ElasticAddress: {
            "public_ipv4_pool": POOL,
            "network_border_group": property(lambda address: address.ec2_backend.region_name),
            "instance_id": property(lambda address: address.instance.id if address.instance else None),
            "network_interface_id": property(lambda address: address.eni.id if address.eni else None),
        },
    }
    for kind, facts in fields.items():
        for name, fact in facts.items():
            setattr(kind, name, fact)
