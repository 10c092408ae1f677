"""A campaign in a company's own VPC, through the real engine with the operator's rights: made, looked at, torn down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.bake.foundation import foundation
from infra.campaign import provision, teardown
from infra.campaign.stages import StageStep, run_step
from infra.inventory import certify, sweep
from infra.record.events import Stage
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_TAG
from tests.rehearsal.acting import FOUNDER, OPERATOR, acting
from tests.rehearsal.existing_network import Existing, build
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly

LISTED = {
    "describe_subnets": ("Subnets", "SubnetId"),
    "describe_route_tables": ("RouteTables", "RouteTableId"),
    "describe_nat_gateways": ("NatGateways", "NatGatewayId"),
    "describe_vpc_endpoints": ("VpcEndpoints", "VpcEndpointId"),
    "describe_network_acls": ("NetworkAcls", "NetworkAclId"),
    "describe_security_groups": ("SecurityGroups", "GroupId"),
}


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CampaignSite, Existing]]:
    """An account with a company's network and the foundation, before the campaign."""
    nodes = {"count": 2, "instance_type": "p5.48xlarge", "ranks_per_node": 1}
    with camp(tmp_path_factory.mktemp("existing"), nodes=nodes) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        made = build(one.client("ec2"))
        one.spec = Spec.model_validate(one.spec.model_dump(mode="json") | {"network": made.section})
        with acting(one, *FOUNDER), one.opened() as context:
            foundation(context)
        yield one, made


@pytest.fixture(scope="module")
def camped(settled: tuple[CampaignSite, Existing]) -> CampaignSite:
    return settled[0]


@pytest.fixture(scope="module")
def place(settled: tuple[CampaignSite, Existing]) -> Existing:
    return settled[1]


def inside(camped: CampaignSite, place: Existing) -> dict[str, Any]:
    """What an administrator sees of the VPC: its parts by id, the routes, the tags of the VPC itself."""
    ec2 = camped.client("ec2")
    of_it = [{"Name": "vpc-id", "Values": [place.vpc]}]
    seen: dict[str, Any] = {"vpc": ec2.describe_vpcs(VpcIds=[place.vpc])["Vpcs"]}
    for operation, (member, key) in LISTED.items():
        name = "Filter" if operation == "describe_nat_gateways" else "Filters"
        seen[member] = {one[key] for one in getattr(ec2, operation)(**{name: of_it})[member]}
    seen["routes"] = ec2.describe_route_tables(RouteTableIds=[place.table])["RouteTables"][0]["Routes"]
    return seen


@pytest.fixture(scope="module")
def before(camped: CampaignSite, place: Existing) -> dict[str, Any]:
    return inside(camped, place)


@pytest.fixture(scope="module")
def provisioned(camped: CampaignSite, before: dict[str, Any]) -> CampaignSite:
    with acting(camped, *OPERATOR), camped.opened() as context:
        run_step(context, StageStep(Stage.PROVISION, "by the operator", provision.run))
    return camped


def test_the_campaign_makes_nothing_there_but_security_groups(
    provisioned: CampaignSite, place: Existing, before: dict[str, Any]
) -> None:
    after, ec2 = inside(provisioned, place), provisioned.client("ec2")
    added = after.pop("SecurityGroups") - before["SecurityGroups"]
    assert after == {key: value for key, value in before.items() if key != "SecurityGroups"}
    names = {group["GroupName"] for group in ec2.describe_security_groups(GroupIds=sorted(added))["SecurityGroups"]}
    assert {name for name in names if not name.startswith("eks-cluster-sg-")} == {
        "bivouac-drilled-nodes", "bivouac-drilled-lustre"
    }  # fmt: skip
    vpcs = {vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if vpc.get("Tags")}
    tagged = [vpc for vpc in ec2.describe_vpcs()["Vpcs"] if {"Key": CAMPAIGN_TAG, "Value": "drilled"} in vpc["Tags"]]
    assert place.vpc in vpcs and not tagged
    eks, group = provisioned.client("eks"), provisioned.names.gpu_group
    config = eks.describe_cluster(name=provisioned.names.cluster)["cluster"]["resourcesVpcConfig"]
    assert (config["vpcId"], config["subnetIds"]) == (place.vpc, place.control_plane)
    nodes = eks.describe_nodegroup(clusterName=provisioned.names.cluster, nodegroupName=group)["nodegroup"]
    assert nodes["subnets"] == [place.gpu]
    (system,) = provisioned.client("fsx").describe_file_systems()["FileSystems"]
    assert system["VpcId"] == place.vpc


@pytest.fixture(scope="module")
def neighbours(provisioned: CampaignSite, place: Existing) -> dict[str, str]:
    """What other people make in their VPC while the campaign stands there: younger than it, with no tag at all."""
    ec2 = provisioned.client("ec2")
    group = ec2.create_security_group(GroupName="shop", Description="shop", VpcId=place.vpc)["GroupId"]
    subnet = ec2.create_subnet(VpcId=place.vpc, CidrBlock="10.9.40.0/24", AvailabilityZone="us-east-1a")["Subnet"]
    card = {"SubnetId": place.gpu, "Groups": [group], "Description": "shop's till"}
    interface = ec2.create_network_interface(**card)["NetworkInterface"]["NetworkInterfaceId"]
    service = {"VpcId": place.vpc, "ServiceName": "com.amazonaws.us-east-1.kms", "VpcEndpointType": "Interface"}
    endpoint = ec2.create_vpc_endpoint(**service, SubnetIds=[place.gpu], SecurityGroupIds=[group])["VpcEndpoint"]
    return {"security group": group, "subnet": str(subnet["SubnetId"]), "network interface": interface,
            "VPC endpoint": str(endpoint["VpcEndpointId"])}  # fmt: skip


@pytest.fixture(scope="module")
def left_over(provisioned: CampaignSite, place: Existing) -> str:
    """An interface as the CNI leaves one: with the campaign's tag and group, on nothing."""
    ec2 = provisioned.client("ec2")
    named = [{"Name": "group-name", "Values": ["bivouac-drilled-nodes"]}]
    (group,) = ec2.describe_security_groups(Filters=named)["SecurityGroups"]
    tags = [{"ResourceType": "network-interface", "Tags": [{"Key": CAMPAIGN_TAG, "Value": "drilled"}]}]
    made = ec2.create_network_interface(
        SubnetId=place.gpu, Groups=[group["GroupId"]], Description="aws-K8S-i-0123456789abcdef0", TagSpecifications=tags
    )
    return str(made["NetworkInterface"]["NetworkInterfaceId"])


def test_a_sweep_lists_what_the_campaign_made_and_nothing_of_the_vpc_or_its_neighbours(
    provisioned: CampaignSite, place: Existing, neighbours: dict[str, str], left_over: str, before: dict[str, Any]
) -> None:
    with provisioned.opened() as context:
        known = certify.knowledge(context.store, context.names)
        sight = sweep.look(context)
    listed = {one.thing.id for one in sight.left}
    foreign = {place.vpc, place.gpu, place.table, *place.control_plane, *place.parts.values(), *neighbours.values()}
    foreign |= before["NetworkAcls"] | before["SecurityGroups"]
    assert listed & foreign == set() and not known.places & foreign
    assert left_over in listed and {"cluster", "file system", "security group"} <= {one.kind for one in sight.left}


def test_a_teardown_ends_the_campaigns_things_and_leaves_the_network_to_its_owners(
    provisioned: CampaignSite, place: Existing, neighbours: dict[str, str], left_over: str, before: dict[str, Any]
) -> None:
    with acting(provisioned, *OPERATOR), provisioned.opened() as context:
        ec2 = context.account.client("ec2")
        ec2.delete_network_interface(NetworkInterfaceId=left_over)
        run_step(context, StageStep(Stage.TEARDOWN, "by the operator", lambda one: teardown.run(one, abandon=True)))
        run_step(context, StageStep(Stage.CERTIFY, "by the operator", certify.run))
        certificate = told(context)
    assert certificate["clean"] and not certificate["found"]
    after = inside(provisioned, place)
    for kind, member in (("security group", "SecurityGroups"), ("subnet", "Subnets"), ("VPC endpoint", "VpcEndpoints")):
        assert after[member] == before[member] | {neighbours[kind]}
        after.pop(member)
    assert after == {key: value for key, value in before.items() if key in after}
    wanted = {"NetworkInterfaceIds": [neighbours["network interface"]]}
    assert len(provisioned.client("ec2").describe_network_interfaces(**wanted)["NetworkInterfaces"]) == 1


def told(context: Context) -> dict[str, Any]:
    certificate = context.state().certificate
    assert certificate is not None
    return dict(certificate)
