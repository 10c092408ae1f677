"""What a client writes to EC2, EKS and FSx it reads again, with AWS's documented defaults.

As in `test_aws_readback`, which is about services that stand in no network, every expectation is written by hand.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.rehearsal.aws.aws_cluster import code_of, holds, role, site, subnets, vpc
from tests.waiting import until
from tests.worlds.account_site import AccountSite

pytestmark = pytest.mark.usefixtures("answers_as_modelled")

__all__ = ["site", "subnets", "vpc"]

ACCOUNT = "123456789012"
FIRST, LATER = [{"Key": "a", "Value": "b"}], [{"Key": "c", "Value": "d"}]


def test_tags_of_everything_of_ec2_change_and_are_listed_under_ec2_s_names(site: AccountSite, vpc: str) -> None:
    ec2 = site.client("ec2")

    def marked(kind: str) -> dict[str, Any]:
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": FIRST}]}

    template = ec2.create_launch_template(
        LaunchTemplateName="tagged", LaunchTemplateData={"InstanceType": "m5.large"}, **marked("launch-template")
    )["LaunchTemplate"]["LaunchTemplateId"]
    other = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    peering = ec2.create_vpc_peering_connection(VpcId=vpc, PeerVpcId=other, **marked("vpc-peering-connection"))
    address = ec2.allocate_address(Domain="vpc", **marked("elastic-ip"))["AllocationId"]
    group = ec2.create_placement_group(GroupName="tagged", Strategy="cluster", **marked("placement-group"))
    made = {
        "launch-template": template,
        "vpc-peering-connection": peering["VpcPeeringConnection"]["VpcPeeringConnectionId"],
        "elastic-ip": address,
        "placement-group": group["PlacementGroup"]["GroupId"],
    }
    ec2.create_tags(Resources=list(made.values()), Tags=LATER)
    ec2.delete_tags(Resources=list(made.values()), Tags=[{"Key": "a"}])
    tags = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": list(made.values())}])["Tags"]
    assert {one["ResourceType"]: (one["ResourceId"], one["Key"], one["Value"]) for one in tags} == {
        kind: (identifier, "c", "d") for kind, identifier in made.items()
    }
    assert ec2.describe_launch_templates(LaunchTemplateIds=[template])["LaunchTemplates"][0]["Tags"] == LATER
    assert ec2.describe_addresses(AllocationIds=[address])["Addresses"][0]["Tags"] == LATER
    by_tag = [{"Name": "tag:a", "Values": ["b"]}]
    assert ec2.describe_launch_templates(Filters=by_tag)["LaunchTemplates"] == []


def test_a_launch_template_shows_its_data_as_written_and_a_version_takes_over_its_source(site: AccountSite) -> None:
    ec2 = site.client("ec2")
    data: dict[str, Any] = {
        "ImageId": "ami-12345678",
        "InstanceType": "m5.large",
        "UserData": base64.b64encode(b"#!/bin/sh").decode(),
        "EbsOptimized": True,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "IamInstanceProfile": {"Name": "builder"},
        "Monitoring": {"Enabled": True},
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "enabled"},
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvda",
                "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Encrypted": True, "Throughput": 200, "Iops": 4000},
            }
        ],
        "NetworkInterfaces": [
            {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface", "AssociatePublicIpAddress": False},
            {"DeviceIndex": 1, "NetworkCardIndex": 0, "InterfaceType": "efa-only", "Groups": ["sg-12345678"]},
        ],
        "Placement": {"GroupName": "near", "Tenancy": "default"},
        "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-only"},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": FIRST}],
    }
    own = [{"ResourceType": "launch-template", "Tags": LATER}]
    template = ec2.create_launch_template(
        LaunchTemplateName="whole", VersionDescription="first", LaunchTemplateData=data, TagSpecifications=own
    )["LaunchTemplate"]
    assert holds(template, DefaultVersionNumber=1, LatestVersionNumber=1, Tags=LATER)
    where = {"LaunchTemplateId": template["LaunchTemplateId"]}
    (shown,) = ec2.describe_launch_template_versions(**where)["LaunchTemplateVersions"]
    assert holds(shown, LaunchTemplateData=data, VersionDescription="first", DefaultVersion=True, VersionNumber=1)
    larger = {"InstanceType": "m5.xlarge"}
    ec2.create_launch_template_version(**where, SourceVersion="1", LaunchTemplateData=larger)
    (shown,) = ec2.describe_launch_template_versions(**where, Versions=["$Latest"])["LaunchTemplateVersions"]
    assert holds(shown, LaunchTemplateData=data | larger, DefaultVersion=False, VersionNumber=2)
    ec2.create_launch_template_version(**where, LaunchTemplateData=larger)
    (shown,) = ec2.describe_launch_template_versions(**where, Versions=["3"])["LaunchTemplateVersions"]
    assert shown["LaunchTemplateData"] == larger


def test_a_launch_template_version_takes_over_from_a_source_that_is_there_before_it(site: AccountSite) -> None:
    ec2, small = site.client("ec2"), {"InstanceType": "m5.large"}
    template = ec2.create_launch_template(LaunchTemplateName="grown", LaunchTemplateData=small)["LaunchTemplate"]
    where = {"LaunchTemplateId": template["LaunchTemplateId"]}
    optimised = ec2.create_launch_template_version(
        LaunchTemplateName="grown", SourceVersion="$Latest", LaunchTemplateData={"EbsOptimized": True}
    )["LaunchTemplateVersion"]
    assert optimised["LaunchTemplateData"] == small | {"EbsOptimized": True}
    with pytest.raises(ClientError) as refused:
        ec2.create_launch_template_version(**where, SourceVersion="9", LaunchTemplateData={})
    assert code_of(refused) == "InvalidLaunchTemplateId.VersionNotFound"
    assert len(ec2.describe_launch_template_versions(**where)["LaunchTemplateVersions"]) == 2


def test_a_new_vpc_s_default_group_lets_its_own_members_in(site: AccountSite, vpc: str) -> None:
    of_vpc = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": ["default"]}]
    (group,) = site.client("ec2").describe_security_groups(Filters=of_vpc)["SecurityGroups"]
    empty: dict[str, Any] = {"IpRanges": [], "Ipv6Ranges": [], "PrefixListIds": [], "UserIdGroupPairs": []}
    itself = [{"GroupId": group["GroupId"], "UserId": ACCOUNT}]
    assert group["IpPermissions"] == [empty | {"IpProtocol": "-1", "UserIdGroupPairs": itself}]
    assert group["IpPermissionsEgress"] == [empty | {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


def test_the_answer_to_several_permissions_names_a_rule_for_each(site: AccountSite, vpc: str) -> None:
    ec2 = site.client("ec2")
    group = ec2.create_security_group(GroupName="several", Description="several", VpcId=vpc)["GroupId"]
    inside = [{"CidrIp": "10.0.0.0/8", "Description": "inside"}]
    permissions = [{"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": inside} for port in (988, 1021)]
    for direction in ("ingress", "egress"):
        made = getattr(ec2, f"authorize_security_group_{direction}")(GroupId=group, IpPermissions=permissions)
        rules = made["SecurityGroupRules"]
        assert [rule["FromPort"] for rule in rules] == [988, 1021]
        assert all(holds(rule, GroupOwnerId=ACCOUNT, Description="inside", CidrIpv4="10.0.0.0/8") for rule in rules)
        ids = [rule["SecurityGroupRuleId"] for rule in rules]
        shown = ec2.describe_security_group_rules(SecurityGroupRuleIds=ids)["SecurityGroupRules"]
        assert {one["SecurityGroupRuleId"] for one in shown} == set(ids)


def test_a_nat_gateway_is_public_and_has_an_address_of_its_subnet(site: AccountSite, subnets: list[str]) -> None:
    ec2 = site.client("ec2")
    allocated = ec2.allocate_address(Domain="vpc")
    assert holds(allocated, Domain="vpc", PublicIpv4Pool="amazon", NetworkBorderGroup="us-east-1")
    (address,) = ec2.describe_addresses(AllocationIds=[allocated["AllocationId"]])["Addresses"]
    assert holds(address, PublicIpv4Pool="amazon", NetworkBorderGroup="us-east-1", InstanceId=None, AssociationId=None)
    nat_gateway = ec2.create_nat_gateway(SubnetId=subnets[0], AllocationId=allocated["AllocationId"])["NatGateway"]
    (shown,) = ec2.describe_nat_gateways(NatGatewayIds=[nat_gateway["NatGatewayId"]])["NatGateways"]
    assert holds(shown, ConnectivityType="public", SubnetId=subnets[0])
    (own,) = shown["NatGatewayAddresses"]
    assert holds(own, IsPrimary=True, Status="succeeded", PublicIp=allocated["PublicIp"])
    assert own["PrivateIp"].startswith("10.42.0.")
    (eni,) = ec2.describe_network_interfaces(NetworkInterfaceIds=[own["NetworkInterfaceId"]])["NetworkInterfaces"]
    assert eni["PrivateIpAddress"] == own["PrivateIp"]


@pytest.mark.parametrize(("service", "private"), [("s3", False), ("ecr.api", True)])
def test_an_endpoint_has_private_dns_where_it_has_interfaces(
    site: AccountSite, vpc: str, subnets: list[str], service: str, private: bool
) -> None:
    where = {"SubnetIds": subnets[:1]} if private else {}
    kind = "Interface" if private else "Gateway"
    name = f"com.amazonaws.us-east-1.{service}"
    made = site.client("ec2").create_vpc_endpoint(VpcId=vpc, ServiceName=name, VpcEndpointType=kind, **where)
    assert holds(made["VpcEndpoint"], PrivateDnsEnabled=private, RequesterManaged=False, IpAddressType="ipv4")


PLACED = [
    ({"Strategy": "cluster"}, {"PartitionCount": None, "SpreadLevel": None}),
    ({"Strategy": "spread"}, {"PartitionCount": None, "SpreadLevel": "rack"}),
    ({"Strategy": "spread", "SpreadLevel": "host"}, {"SpreadLevel": "host"}),
    ({"Strategy": "partition"}, {"PartitionCount": 2, "SpreadLevel": None}),
    ({"Strategy": "partition", "PartitionCount": 7}, {"PartitionCount": 7}),
]


@pytest.mark.parametrize(("asked", "shown"), PLACED)
def test_a_placement_group_shows_its_strategy_s_own_setting(
    site: AccountSite, asked: dict[str, Any], shown: dict[str, Any]
) -> None:
    ec2 = site.client("ec2")
    ec2.create_placement_group(GroupName="placed", **asked)
    (group,) = ec2.describe_placement_groups(GroupNames=["placed"])["PlacementGroups"]
    ec2.delete_placement_group(GroupName="placed")
    assert holds(group, **shown)


@pytest.mark.parametrize("optimized", [False, True])
def test_a_reservation_is_optimized_for_ebs_where_that_was_asked(site: AccountSite, optimized: bool) -> None:
    ec2 = site.client("ec2")
    what = {"InstanceType": "p5.48xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    made = ec2.create_capacity_reservation(InstanceCount=1, **what, **({"EbsOptimized": True} if optimized else {}))
    identifier = made["CapacityReservation"]["CapacityReservationId"]
    (shown,) = ec2.describe_capacity_reservations(CapacityReservationIds=[identifier])["CapacityReservations"]
    assert holds(shown, EbsOptimized=optimized, EndDateType="unlimited", InstanceMatchCriteria="open")


LOGS = ["api", "audit", "authenticator", "controllerManager", "scheduler"]


def test_a_cluster_shows_the_settings_that_were_made_and_no_others(site: AccountSite, subnets: list[str]) -> None:
    eks = site.client("eks")
    arn = role(site, "cluster", "eks.amazonaws.com", attach="AmazonEKSClusterPolicy")
    eks.create_cluster(name="bare", roleArn=arn, resourcesVpcConfig={"subnetIds": subnets})
    eks.get_waiter("cluster_active").wait(name="bare", WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    cluster = eks.describe_cluster(name="bare")["cluster"]
    absent = dict.fromkeys(("encryptionConfig", "zonalShiftConfig", "computeConfig", "storageConfig"))
    assert holds(
        cluster,
        **absent,
        accessConfig={"authenticationMode": "CONFIG_MAP"},
        deletionProtection=False,
        kubernetesNetworkConfig={
            "serviceIpv4Cidr": "172.20.0.0/16",
            "ipFamily": "ipv4",
            "elasticLoadBalancing": {"enabled": False},
        },
        logging={"clusterLogging": [{"types": LOGS, "enabled": False}]},
        upgradePolicy={"supportType": "EXTENDED"},
    )
    audited = {"clusterLogging": [{"types": ["audit"], "enabled": True}]}
    update = first = eks.update_cluster_config(name="bare", logging=audited)["update"]
    assert holds(update, type="LoggingUpdate", params=[{"type": "ClusterLogging", "value": json.dumps(audited)}])
    rest = [{"types": [one for one in LOGS if one != "audit"], "enabled": False}]
    assert eks.describe_cluster(name="bare")["cluster"]["logging"]["clusterLogging"] == [
        {"types": ["audit"], "enabled": True},
        *rest,
    ]
    update = eks.update_cluster_config(name="bare", zonalShiftConfig={"enabled": True})["update"]
    assert update["type"] == "ZonalShiftConfigUpdate"
    assert eks.describe_cluster(name="bare")["cluster"]["zonalShiftConfig"] == {"enabled": True}
    _grow(site, subnets)
    assert eks.list_updates(name="bare")["updateIds"] == [first["id"], update["id"]]
    assert eks.list_updates(name="bare", nodegroupName="own")["updateIds"] == []
    policies = eks.list_access_policies()["accessPolicies"]
    arn = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    assert {"name": "AmazonEKSClusterAdminPolicy", "arn": arn} in policies


def _grow(site: AccountSite, subnets: list[str]) -> None:
    """A node group with an image of its own: its release is the image."""
    eks, nodes = site.client("eks"), role(site, "nodes", "ec2.amazonaws.com", attach="AmazonEKSWorkerNodePolicy")
    data = {"ImageId": "ami-12345678", "InstanceType": "m5.large", "UserData": base64.b64encode(b"x").decode()}
    template = site.client("ec2").create_launch_template(LaunchTemplateName="own", LaunchTemplateData=data)
    by = {"id": template["LaunchTemplate"]["LaunchTemplateId"], "version": "1"}
    call: dict[str, Any] = {"clusterName": "bare", "nodeRole": nodes, "subnets": subnets[:1]}
    call["scalingConfig"] = {"minSize": 0, "maxSize": 1, "desiredSize": 0}
    own = eks.create_nodegroup(nodegroupName="own", launchTemplate=by, **call)["nodegroup"]
    assert holds(own, amiType="CUSTOM", version="1.36", releaseVersion="ami-12345678", instanceTypes=None)
    eks.create_nodegroup(nodegroupName="stock", **call)
    until(lambda: eks.describe_nodegroup(clusterName="bare", nodegroupName="stock")["nodegroup"]["status"] == "ACTIVE")
    sizes = {"minSize": 0, "maxSize": 4, "desiredSize": 0}
    labels = {"addOrUpdateLabels": {"a": "b"}, "removeLabels": ["c"]}
    where = {"clusterName": "bare", "nodegroupName": "stock"}
    update = eks.update_nodegroup_config(**where, scalingConfig=sizes, labels=labels)["update"]
    told = {param["type"]: json.loads(param["value"]) for param in update["params"]}
    kept = {"LabelsToAdd": {"a": "b"}, "LabelsToRemove": ["c"]}
    assert told == {"MinSize": 0, "MaxSize": 4, "DesiredSize": 0} | kept
    assert eks.describe_nodegroup(**where)["nodegroup"]["scalingConfig"] == sizes


LUSTRE = [
    (1200, {"DeploymentType": "SCRATCH_2"}, {"AutomaticBackupRetentionDays": None, "MetadataConfiguration": None}),
    (1200, {"PerUnitStorageThroughput": 125}, {"AutomaticBackupRetentionDays": 0, "MetadataConfiguration": None}),
    (1200, {"MetadataConfiguration": {"Mode": "AUTOMATIC"}}, {"MetadataConfiguration": ("AUTOMATIC", 1500)}),
    (9600, {"MetadataConfiguration": {"Mode": "AUTOMATIC"}}, {"MetadataConfiguration": ("AUTOMATIC", 6000)}),
    (48000, {"MetadataConfiguration": {"Mode": "AUTOMATIC"}}, {"MetadataConfiguration": ("AUTOMATIC", 24000)}),
    (
        1200,
        {"MetadataConfiguration": {"Mode": "USER_PROVISIONED", "Iops": 12000}},
        {"MetadataConfiguration": ("USER_PROVISIONED", 12000)},
    ),
]


@pytest.mark.parametrize(("capacity", "asked", "shown"), LUSTRE)
def test_a_file_system_shows_what_fsx_chose_for_it(
    site: AccountSite, vpc: str, subnets: list[str], capacity: int, asked: dict[str, Any], shown: dict[str, Any]
) -> None:
    fsx, kms = site.client("fsx"), site.client("kms")
    scratch = "DeploymentType" in asked
    lustre = asked if scratch else {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125} | asked
    file_system = fsx.create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=capacity, SubnetIds=subnets[:1], LustreConfiguration=lustre
    )["FileSystem"]
    assert holds(file_system, StorageCapacity=capacity, StorageType="SSD", Lifecycle="CREATING")
    configuration = file_system["LustreConfiguration"]
    assert (
        holds(configuration, DataCompressionType="NONE", CopyTagsToBackups=False, **lustre)
        or "MetadataConfiguration" in shown
    )
    metadata = configuration.get("MetadataConfiguration")
    seen = configuration | {"MetadataConfiguration": metadata and (metadata["Mode"], metadata["Iops"])}
    assert holds(seen, **shown)
    if scratch:
        assert "KmsKeyId" not in file_system
    else:
        assert holds(
            kms.describe_key(KeyId=file_system["KmsKeyId"])["KeyMetadata"], KeyManager="AWS", KeyState="Enabled"
        )
