"""What `check --online` says of an existing VPC of the emulated account, and of what is missing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest

from infra.aws.account import Account
from infra.aws.asked import ask_aws
from infra.plan.checks import Finding, check
from infra.plan.survey import survey
from infra.spec.campaign import SpecFile
from tests.example import example_spec
from tests.rehearsal.aws_account import Account as Account_
from tests.rehearsal.existing_network import Existing, build
from tests.root import ROOT

TODAY = date(2026, 8, 1)


@pytest.fixture(scope="module")
def ec2(aws: Account_) -> Any:
    return aws.ec2


@pytest.fixture(scope="module")
def nat(ec2: Any) -> Existing:
    return build(ec2)


@pytest.fixture(scope="module")
def closed(ec2: Any) -> Existing:
    """A VPC without a way out, with every endpoint."""
    return build(ec2, nat=False, cidr="10.19")


@pytest.fixture
def told(here: Account) -> Callable[..., list[Finding]]:
    """Findings about a network."""

    def tell(network: dict[str, Any]) -> list[Finding]:
        spec = example_spec(network=network)
        said = list[str]()
        facts = ask_aws(here, spec, survey(spec), said.append)
        assert not said, "every question about the network was answered"
        found = check(SpecFile(path=ROOT / "spec.yaml", spec=spec, lines={}), facts, TODAY)
        return [one for one in found if "network" in one.rule or "zone" in one.rule]

    return tell


def test_a_network_that_has_all_is_no_finding(told: Any, nat: Existing, closed: Existing) -> None:
    assert told(nat.section) == [] and told(closed.section | {"egress": "endpoints"}) == []


def test_a_network_of_another_name_or_of_a_campaign_is_refused(told: Any, ec2: Any, nat: Existing) -> None:
    (absent,) = told(nat.section | {"vpc_id": "vpc-0123456789abcdef9"})
    assert "account and region have no such VPC" in absent.message
    ec2.create_tags(Resources=[nat.vpc], Tags=[{"Key": "bivouac:campaign", "Value": "other"}])
    (marked,) = told(nat.section)
    ec2.delete_tags(Resources=[nat.vpc], Tags=[{"Key": "bivouac:campaign"}])
    assert marked.seen == "bivouac:campaign=other"


def test_subnets_of_another_vpc_or_zone_are_refused(told: Any, nat: Existing, closed: Existing) -> None:
    first, second = nat.control_plane
    far = nat.section | {"subnet_ids": {"gpu": second, "control_plane": [first, closed.gpu]}}
    found = told(far)
    assert {one.seen for one in found} >= {f"{second} in us-east-1b", closed.gpu}
    assert any("zone: us-east-1b" in one.cure for one in found)


def test_each_lack_is_told_with_its_value_and_its_cure(told: Any, ec2: Any, nat: Existing) -> None:
    rule = {"RouteTableId": nat.table, "DestinationCidrBlock": "0.0.0.0/0"}
    options = ec2.create_dhcp_options(DhcpConfigurations=[{"Key": "domain-name-servers", "Values": ["10.9.0.5"]}])
    before = ec2.describe_vpcs(VpcIds=[nat.vpc])["Vpcs"][0]["DhcpOptionsId"]
    ec2.delete_route(**rule)
    ec2.modify_vpc_attribute(VpcId=nat.vpc, EnableDnsHostnames={"Value": False})
    ec2.associate_dhcp_options(VpcId=nat.vpc, DhcpOptionsId=options["DhcpOptions"]["DhcpOptionsId"])
    ec2.modify_subnet_attribute(SubnetId=nat.gpu, MapPublicIpOnLaunch={"Value": True})
    try:
        found = told(nat.section)
    finally:
        ec2.create_route(**rule, NatGatewayId=nat.parts["nat"])
        ec2.modify_vpc_attribute(VpcId=nat.vpc, EnableDnsHostnames={"Value": True})
        ec2.associate_dhcp_options(VpcId=nat.vpc, DhcpOptionsId=before)
        ec2.modify_subnet_attribute(SubnetId=nat.gpu, MapPublicIpOnLaunch={"Value": False})
    seen = " | ".join(one.seen for one in found)
    for word in ("10.9.0.5", "no default route", "enableDnsHostnames is off", f"{nat.gpu} has MapPublicIpOnLaunch"):
        assert word in seen, seen
    assert {one.rule for one in found} == {"existing-network-dns", "existing-network-egress"}
    assert told(nat.section) == [], "and all is as it was"


def test_a_lost_endpoint_a_closed_one_and_a_closed_acl_are_told(told: Any, ec2: Any, closed: Existing) -> None:
    section = closed.section | {"egress": "endpoints"}
    (acl,) = ec2.describe_network_acls(Filters=[{"Name": "vpc-id", "Values": [closed.vpc]}])["NetworkAcls"]
    deny: dict[str, Any] = {
        "NetworkAclId": acl["NetworkAclId"], "RuleNumber": 50, "Protocol": "6", "RuleAction": "deny", "Egress": True,
        "CidrBlock": "10.19.1.0/24", "PortRange": {"From": 10250, "To": 10250},
    }  # fmt: skip
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "10.19.0.0/16"}]}
    narrow = {**https, "IpRanges": [{"CidrIp": "10.19.2.0/24"}]}
    group = closed.parts["group"]
    ec2.create_network_acl_entry(**deny)
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[https])
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[narrow])
    ec2.delete_vpc_endpoints(VpcEndpointIds=[closed.parts["fsx"]])
    found = told(section)
    reaches, blocks = "existing-network-egress", "existing-network-acl"
    by_place = {(one.rule, one.field): one for one in found}
    assert by_place[reaches, "network.egress"].seen == "fsx"
    assert "10.19.1.0/24" in by_place[reaches, "network.subnet_ids.gpu"].cure
    blocked = by_place[blocks, "network.subnet_ids.control_plane"].seen
    assert f"kubelet (tcp 10250) to {closed.gpu}" in blocked and acl["NetworkAclId"] in blocked


def test_a_subnet_without_enough_addresses_is_told_with_what_takes_them(told: Any, ec2: Any, nat: Existing) -> None:
    small = ec2.create_subnet(VpcId=nat.vpc, CidrBlock="10.9.9.0/28", AvailabilityZone="us-east-1a")["Subnet"]
    ec2.associate_route_table(RouteTableId=nat.table, SubnetId=small["SubnetId"])
    section = nat.section | {"subnet_ids": {"gpu": small["SubnetId"], "control_plane": nat.control_plane}}
    (found,) = told(section)
    assert found.rule == "existing-network-room" and "11 free, 42 wanted" in found.seen


def test_a_given_network_asks_for_no_quota_of_networks_and_costs_none(here: Account, nat: Existing) -> None:
    spec = example_spec(network=nat.section)
    wanted = {room.quota.name: room.wanted for room in ask_aws(here, spec, survey(spec), print).quotas}
    other = {room.quota.name: room.wanted for room in ask_aws(here, example_spec(), survey(spec), print).quotas}
    assert other["VPCs per Region"] == wanted["VPCs per Region"] + 1
    assert {"EC2-VPC Elastic IPs", "NAT gateways per Availability Zone"} == set(other) - set(wanted)


@pytest.fixture(autouse=True)
def as_site() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        yield
