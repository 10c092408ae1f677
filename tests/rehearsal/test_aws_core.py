"""The emulated AWS over HTTP: clusters, node groups, instances and their machines, identities and permissions."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
import requests
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner

from infra.rehearsal.aws.world import Call, Fault, Launch, LaunchRefused
from tests.rehearsal.aws_fakes import FakeMachine, Site, fake_site, until

CLUSTER_ADMIN = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fake_site(tmp_path_factory.mktemp("aws")) as made:
        yield made


def trust(*services: str) -> str:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": list(services)},
        "Action": ["sts:AssumeRole", "sts:TagSession"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def role(site: Site, name: str, *services: str, policy: dict[str, Any] | None = None, attach: str | None = None) -> str:
    iam = site.client("iam")
    arn = str(iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust(*services))["Role"]["Arn"])
    if policy:
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=document)
    if attach:
        iam.attach_role_policy(RoleName=name, PolicyArn=f"arn:aws:iam::aws:policy/{attach}")
    return arn


@pytest.fixture(scope="module")
def subnets(site: Site) -> list[str]:
    ec2 = site.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    return [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.42.{i}.0/24", AvailabilityZone=f"us-east-1{zone}")["Subnet"][
            "SubnetId"
        ]
        for i, zone in enumerate("ab")
    ]


@pytest.fixture(scope="module")
def node_role(site: Site) -> str:
    return role(site, "nodes", "ec2.amazonaws.com", attach="AmazonEKSWorkerNodePolicy")


@pytest.fixture(scope="module")
def cluster(site: Site, subnets: list[str]) -> str:
    arn = role(site, "cluster", "eks.amazonaws.com", attach="AmazonEKSClusterPolicy")
    eks = site.client("eks")
    eks.create_cluster(
        name="camp",
        version="1.36",
        roleArn=arn,
        resourcesVpcConfig={"subnetIds": subnets},
        accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
        logging={"clusterLogging": [{"types": ["audit"], "enabled": True}]},
        tags={"bivouac:campaign": "camp"},
    )
    eks.get_waiter("cluster_active").wait(name="camp", WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    return "camp"


@pytest.fixture(scope="module")
def template(site: Site, cluster: str) -> dict[str, str]:
    ec2 = site.client("ec2")
    nics = [{"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "interface"}] + [
        {"DeviceIndex": int(card == 0), "NetworkCardIndex": card, "InterfaceType": "efa-only"} for card in range(32)
    ]
    tags = [{"ResourceType": kind, "Tags": [{"Key": "bivouac:campaign", "Value": "camp"}]} for kind in KINDS]
    data = {
        "ImageId": "ami-12345678",
        "InstanceType": "p5.48xlarge",
        "UserData": base64.b64encode(b"MIME-Version: 1.0\n").decode(),
        "NetworkInterfaces": nics,
        "TagSpecifications": tags,
    }
    made = ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)["LaunchTemplate"]
    return {"id": made["LaunchTemplateId"], "version": "1"}


KINDS = ("instance", "volume", "network-interface")


def create_group(site: Site, name: str, node_role: str, subnets: list[str], **more: Any) -> dict[str, Any]:
    scaling = more.pop("scalingConfig", {"minSize": 0, "maxSize": 4, "desiredSize": 1})
    call = {"clusterName": "camp", "nodegroupName": name, "nodeRole": node_role, "subnets": subnets[:1]}
    return dict(site.client("eks").create_nodegroup(**call, scalingConfig=scaling, **more)["nodegroup"])


def describe(site: Site, name: str) -> dict[str, Any]:
    return dict(site.client("eks").describe_nodegroup(clusterName="camp", nodegroupName=name)["nodegroup"])


def of_group(site: Site, name: str) -> list[FakeMachine]:
    return [one for one in site.alive() if one.settings["tags"].get("eks:nodegroup-name") == name]


def delete_group(site: Site, name: str) -> None:
    eks = site.client("eks")
    eks.delete_nodegroup(clusterName="camp", nodegroupName=name)
    eks.get_waiter("nodegroup_deleted").wait(
        clusterName="camp", nodegroupName=name, WaiterConfig={"Delay": 0, "MaxAttempts": 500}
    )


def assume(site: Site, arn: str, name: str) -> boto3.Session:
    agent = boto3.Session(*site.world.agent_key, region_name="us-east-1")
    found = site.client("sts", agent).assume_role(RoleArn=arn, RoleSessionName=name)["Credentials"]
    keys = (found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
    return boto3.Session(*keys, region_name="us-east-1")


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_a_cluster_shows_the_control_plane_it_started(site: Site, cluster: str) -> None:
    found = site.client("eks").describe_cluster(name=cluster)["cluster"]
    assert found["endpoint"] == site.planes[0].endpoint
    assert base64.b64decode(found["certificateAuthority"]["data"]).startswith(b"-----BEGIN")
    assert found["accessConfig"] == {"authenticationMode": "API"}
    group = found["resourcesVpcConfig"]["clusterSecurityGroupId"]
    rules = site.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
    assert rules[0]["UserIdGroupPairs"][0]["GroupId"] == group
    assert site.planes[0].settings["token_webhook_url"].endswith("/_site/token-review/camp")
    tagged = site.client("resourcegroupstaggingapi").get_resources(TagFilters=[{"Key": "bivouac:campaign"}])
    assert found["arn"] in [one["ResourceARN"] for one in tagged["ResourceTagMappingList"]]


def test_a_cluster_with_a_role_that_eks_cannot_assume_is_refused(
    site: Site, subnets: list[str], node_role: str
) -> None:
    with pytest.raises(ClientError) as error:
        site.client("eks").create_cluster(name="no", roleArn=node_role, resourcesVpcConfig={"subnetIds": subnets})
    assert code_of(error) == "InvalidParameterException"


def test_a_node_group_starts_a_machine_per_instance_as_its_launch_template_says(
    site: Site, cluster: str, subnets: list[str], node_role: str, template: dict[str, str]
) -> None:
    begun = time.monotonic()
    group = create_group(site, "gpu", node_role, subnets, launchTemplate=template)
    machine = until(lambda: of_group(site, "gpu"))[0]
    assert machine.started - begun < 1.0
    until(lambda: describe(site, "gpu")["status"] == "ACTIVE")
    settings = machine.settings
    assert settings["capacity"] == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}
    assert settings["role_arn"] == node_role and settings["kind"] == "node"
    assert settings["user_data"] == "MIME-Version: 1.0\n"
    assert len(set(settings["pod_addresses"])) == 12 and settings["address"] not in settings["pod_addresses"]
    ec2 = site.client("ec2")
    instance = ec2.describe_instances(InstanceIds=[settings["instance_id"]])["Reservations"][0]["Instances"][0]
    assert instance["State"]["Name"] == "running"
    places = {
        (nic["Attachment"]["NetworkCardIndex"], nic["Attachment"]["DeviceIndex"])
        for nic in instance["NetworkInterfaces"]
    }
    assert len(places) == 33 and (0, 1) in places and (31, 0) in places
    assert [nic["InterfaceType"] for nic in instance["NetworkInterfaces"]].count("efa-only") == 32
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["eks:cluster-name"] == "camp" and tags["bivouac:campaign"] == "camp"
    assert tags["aws:autoscaling:groupName"] == group["resources"]["autoScalingGroups"][0]["name"]
    volumes = ec2.describe_volumes(Filters=[{"Name": "attachment.instance-id", "Values": [settings["instance_id"]]}])
    assert [one["Tags"] for one in volumes["Volumes"]] == [[{"Key": "bivouac:campaign", "Value": "camp"}]]
    entries = site.client("eks").list_access_entries(clusterName="camp")["accessEntries"]
    assert node_role in entries
    delete_group(site, "gpu")
    assert not of_group(site, "gpu") and not machine.alive()
    assert node_role not in site.client("eks").list_access_entries(clusterName="camp")["accessEntries"]
    assert not ec2.describe_network_interfaces(Filters=[{"Name": "subnet-id", "Values": [subnets[0]]}])[
        "NetworkInterfaces"
    ]
    assert not ec2.describe_volumes()["Volumes"]
    assert not site.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]


def test_a_terminated_instance_is_replaced_unasked_and_its_node_deleted(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "sys", node_role, subnets, instanceTypes=["m6i.large"])
    old = until(lambda: of_group(site, "sys"))[0]
    assert "apiServerEndpoint" in old.settings["user_data"]
    until(lambda: describe(site, "sys")["status"] == "ACTIVE")
    site.client("ec2").terminate_instances(InstanceIds=[old.settings["instance_id"]])
    new = until(lambda: [one for one in of_group(site, "sys") if one is not old])[0]
    until(lambda: old.provider_id in site.planes[0].deleted_nodes)
    assert new.settings["instance_id"] != old.settings["instance_id"]

    autoscaling, group = site.client("autoscaling"), describe(site, "sys")["resources"]["autoScalingGroups"][0]["name"]
    until(
        lambda: (
            autoscaling.describe_auto_scaling_instances()["AutoScalingInstances"][0]["LifecycleState"] == "InService"
        )
    )
    autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=new.settings["instance_id"], ShouldDecrementDesiredCapacity=True
    )
    until(lambda: not of_group(site, "sys"))
    assert describe(site, "sys")["scalingConfig"]["desiredSize"] == 0
    told = [
        one["Description"] for one in autoscaling.describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
    ]
    assert told[0] == f"Terminating EC2 instance: {new.settings['instance_id']}"
    delete_group(site, "sys")


def test_an_instance_that_lost_its_machine_fails_its_status_check_until_the_group_replaces_it(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "dead", node_role, subnets)
    old = until(lambda: of_group(site, "dead"))[0]
    instance_id = old.settings["instance_id"]
    until(lambda: describe(site, "dead")["status"] == "ACTIVE")
    old.kill()
    status = site.client("ec2").describe_instance_status(InstanceIds=[instance_id])["InstanceStatuses"][0]
    assert (status["InstanceState"]["Name"], status["InstanceStatus"]["Status"]) == ("running", "impaired")
    assert until(lambda: [one for one in of_group(site, "dead") if one is not old])
    delete_group(site, "dead")


def test_the_size_of_a_node_group_goes_to_zero_and_back_by_either_api(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "size", node_role, subnets, scalingConfig={"minSize": 0, "maxSize": 2, "desiredSize": 0})
    until(lambda: describe(site, "size")["status"] == "ACTIVE")
    eks, autoscaling = site.client("eks"), site.client("autoscaling")
    group = describe(site, "size")["resources"]["autoScalingGroups"][0]["name"]
    eks.update_nodegroup_config(clusterName="camp", nodegroupName="size", scalingConfig={"desiredSize": 2})
    changed = time.monotonic()
    until(lambda: len(of_group(site, "size")) == 2)
    assert max(one.started for one in of_group(site, "size")) - changed < 0.5
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    until(lambda: not of_group(site, "size"))
    assert describe(site, "size")["scalingConfig"]["desiredSize"] == 0
    with pytest.raises(ClientError) as error:
        autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=3)
    assert "above max value 2" in str(error.value)
    with pytest.raises(ClientError) as error:
        eks.update_nodegroup_config(clusterName="camp", nodegroupName="size", scalingConfig={"desiredSize": 3})
    assert code_of(error) == "InvalidParameterException"
    delete_group(site, "size")


def test_a_launch_that_is_refused_is_told_and_tried_again(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    def sold_out(launch: Launch) -> None:
        raise LaunchRefused("InsufficientInstanceCapacity", f"no {launch.instance_type} in {launch.zone}")

    site.world.launch_hooks.append(sold_out)
    try:
        create_group(site, "none", node_role, subnets, instanceTypes=["m6i.large"])
        issue = until(lambda: describe(site, "none")["health"]["issues"])[0]
    finally:
        site.world.launch_hooks.remove(sold_out)
    assert issue["code"] == "AsgInstanceLaunchFailures"
    assert "InsufficientInstanceCapacity - no m6i.large in us-east-1a" in issue["message"]
    group = describe(site, "none")["resources"]["autoScalingGroups"][0]["name"]
    told = site.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
    assert told[0]["StatusCode"] == "Failed"
    until(lambda: of_group(site, "none"))
    delete_group(site, "none")


def test_a_node_group_whose_instances_never_join_fails_with_their_ids(
    site: Site, cluster: str, subnets: list[str], node_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "joins", False)
    create_group(site, "lost", node_role, subnets)
    until(lambda: describe(site, "lost")["status"] == "CREATE_FAILED")
    issue = describe(site, "lost")["health"]["issues"][0]
    assert issue["code"] == "NodeCreationFailure"
    assert issue["resourceIds"] == [of_group(site, "lost")[0].settings["instance_id"]]
    delete_group(site, "lost")


def test_an_add_on_that_needs_a_node_waits_for_one(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    eks = site.client("eks")

    def status(name: str) -> str:
        return str(eks.describe_addon(clusterName="camp", addonName=name)["addon"]["status"])

    for name in ("vpc-cni", "coredns"):
        eks.create_addon(clusterName="camp", addonName=name, configurationValues="{}")
    until(lambda: status("vpc-cni") == "ACTIVE")
    assert status("coredns") == "CREATING"
    create_group(site, "dns", node_role, subnets)
    until(lambda: status("coredns") == "ACTIVE")
    delete_group(site, "dns")
    for name in ("vpc-cni", "coredns"):
        eks.delete_addon(clusterName="camp", addonName=name)
    until(lambda: not eks.list_addons(clusterName="camp")["addons"])


def test_a_cluster_with_node_groups_is_not_deleted(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "last", node_role, subnets, scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0})
    with pytest.raises(ClientError) as error:
        site.client("eks").delete_cluster(name="camp")
    assert code_of(error) == "ResourceInUseException"
    delete_group(site, "last")


def token(session: boto3.Session, site: Site, cluster: str) -> str:
    sts = site.client("sts", session)
    signer = RequestSigner(
        sts.meta.service_model.service_id, "us-east-1", "sts", "v4", session.get_credentials(), session.events
    )
    request = {
        "method": "GET",
        "url": f"{site.world.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(request, region_name="us-east-1", expires_in=60, operation_name="")
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def review(site: Site, given: str, cluster: str = "camp") -> dict[str, Any]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": given}}
    url = f"{site.world.endpoint_url}/_site/token-review/{cluster}"
    return dict(requests.post(url, json=body, timeout=5).json()["status"])


def test_a_token_of_the_clusters_creator_is_a_cluster_admin(site: Site, cluster: str) -> None:
    status = review(site, token(site.session, site, "camp"))
    assert status["authenticated"] and status["user"]["groups"] == ["eks:cluster-admin"]
    assert status["user"]["username"] == "arn:aws:iam::123456789012:user/operator"


def test_tokens_for_another_cluster_or_of_strangers_or_forged_are_nobodys(
    site: Site, cluster: str, node_role: str
) -> None:
    assert not review(site, token(site.session, site, "other"))["authenticated"]
    assert not review(site, token(assume(site, role(site, "stranger", "ec2.amazonaws.com"), "me"), site, "camp"))[
        "authenticated"
    ]
    forged = boto3.Session(site.world.operator_key[0], "wrong", region_name="us-east-1")
    assert not review(site, token(forged, site, "camp"))["authenticated"]
    assert not review(site, "k8s-aws-v1.bm90IGEgdXJs")["authenticated"]


def test_a_nodes_token_names_the_node_while_its_instance_runs(
    site: Site, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "who", node_role, subnets)
    machine = until(lambda: of_group(site, "who"))[0]
    given = token(assume(site, node_role, machine.settings["instance_id"]), site, "camp")
    user = review(site, given)["user"]
    assert user["username"] == f"system:node:{machine.settings['hostname']}"
    assert set(user["groups"]) == {"system:nodes", "system:bootstrappers"}
    delete_group(site, "who")
    assert not review(site, given)["authenticated"]


def test_an_access_entry_lets_a_role_in_with_its_groups(site: Site, cluster: str) -> None:
    arn = role(site, "steward", "pods.eks.amazonaws.com")
    eks = site.client("eks")
    eks.create_access_entry(clusterName="camp", principalArn=arn, kubernetesGroups=["stewards"])
    eks.associate_access_policy(
        clusterName="camp", principalArn=arn, policyArn=CLUSTER_ADMIN, accessScope={"type": "cluster"}
    )
    assert (
        len(eks.list_associated_access_policies(clusterName="camp", principalArn=arn)["associatedAccessPolicies"]) == 1
    )
    user = review(site, token(assume(site, arn, "one"), site, "camp"))["user"]
    assert user["username"] == "arn:aws:sts::123456789012:assumed-role/steward/one"
    assert user["groups"] == ["stewards", "eks:cluster-admin"]
    eks.delete_access_entry(clusterName="camp", principalArn=arn)
    assert not review(site, token(assume(site, arn, "one"), site, "camp"))["authenticated"]


def test_a_pod_gets_its_roles_credentials_through_the_nodes_role_and_no_more(
    site: Site, cluster: str, node_role: str
) -> None:
    site.client("s3").create_bucket(Bucket="state")
    read = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::state/campaigns/*"}
    arn = role(site, "trainer", "pods.eks.amazonaws.com", policy=read)
    subject = {"clusterName": "camp", "namespace": "campaign", "serviceAccount": "trainer"}
    association = site.client("eks").create_pod_identity_association(**subject, roleArn=arn)["association"]
    node = assume(site, node_role, "i-0123")
    seen = site.client("eks-auth", node).assume_role_for_pod_identity(clusterName="camp", token="campaign/trainer")
    assert seen["podIdentityAssociation"]["associationId"] == association["associationId"]
    keys = seen["credentials"]
    pod = boto3.Session(keys["accessKeyId"], keys["secretAccessKey"], keys["sessionToken"], region_name="us-east-1")
    site.client("s3").put_object(Bucket="state", Key="campaigns/a", Body=b"1")
    assert site.client("s3", pod).get_object(Bucket="state", Key="campaigns/a")["Body"].read() == b"1"
    with pytest.raises(ClientError) as error:
        site.client("s3", pod).get_object(Bucket="state", Key="other")
    assert code_of(error) == "AccessDenied"
    with pytest.raises(ClientError) as error:
        site.client("eks-auth", node).assume_role_for_pod_identity(clusterName="camp", token="campaign/other")
    assert code_of(error) == "ResourceNotFoundException"
    site.client("eks").delete_pod_identity_association(clusterName="camp", associationId=association["associationId"])


def test_a_limited_role_is_denied_what_its_policy_does_not_name(site: Site, cluster: str) -> None:
    see = {"Effect": "Allow", "Action": "eks:Describe*", "Resource": "arn:aws:eks:us-east-1:123456789012:cluster/camp"}
    session = assume(site, role(site, "viewer", "ec2.amazonaws.com", policy=see), "me")
    eks = site.client("eks", session)
    assert eks.describe_cluster(name="camp")["cluster"]["status"] == "ACTIVE"
    for call in (
        lambda: eks.describe_cluster(name="other"),
        lambda: eks.delete_cluster(name="camp"),
        lambda: eks.list_clusters(),
    ):
        with pytest.raises(ClientError) as error:
            call()
        assert code_of(error) == "AccessDeniedException"
    with pytest.raises(ClientError) as error:
        site.client("autoscaling", session).set_desired_capacity(AutoScalingGroupName="x", DesiredCapacity=0)
    assert code_of(error) == "AccessDenied"
    with pytest.raises(ClientError) as error:
        site.client("ec2", session).describe_instances()
    assert code_of(error) == "UnauthorizedOperation"


def test_whoever_may_not_pass_a_role_cannot_give_it_to_a_node_group(
    site: Site, cluster: str, subnets: list[str]
) -> None:
    create = {"Effect": "Allow", "Action": "eks:*", "Resource": "*"}
    session = assume(site, role(site, "maker", "ec2.amazonaws.com", policy=create), "me")
    with pytest.raises(ClientError) as error:
        site.client("eks", session).create_nodegroup(
            clusterName="camp", nodegroupName="x", nodeRole="arn:aws:iam::123456789012:role/nodes", subnets=subnets
        )
    assert "iam:PassRole" in str(error.value)


def test_unsigned_and_forged_requests_are_refused(site: Site) -> None:
    assert requests.get(site.world.endpoint_url, timeout=5).status_code == 403
    assert requests.post(f"{site.world.endpoint_url}/moto-api/reset-auth", data="1000", timeout=5).status_code == 404
    forged = boto3.Session(site.world.operator_key[0], "wrong", region_name="us-east-1")
    with pytest.raises(ClientError) as error:
        site.client("sts", forged).get_caller_identity()
    assert code_of(error) == "SignatureDoesNotMatch"


def test_a_builder_gets_a_machine_and_other_instances_do_not(site: Site, subnets: list[str], node_role: str) -> None:
    site.client("iam").create_instance_profile(InstanceProfileName="builder")
    site.client("iam").add_role_to_instance_profile(InstanceProfileName="builder", RoleName="nodes")
    ec2 = site.client("ec2")
    launch = {
        "ImageId": ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
        "InstanceType": "m6i.large",
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": subnets[0],
    }
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "bivouac:role", "Value": "builder"}]}]
    profile = {"Name": "builder"}
    plain = ec2.run_instances(**launch)["Instances"][0]["InstanceId"]
    builder = ec2.run_instances(**launch, TagSpecifications=tags, IamInstanceProfile=profile)["Instances"][0][
        "InstanceId"
    ]
    ec2.get_waiter("instance_running").wait(InstanceIds=[builder], WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    machine = next(one for one in site.alive() if one.settings["instance_id"] == builder)
    assert machine.settings["kind"] == "builder" and machine.settings["role_arn"] == node_role
    assert plain not in site.world.machines
    ec2.terminate_instances(InstanceIds=[plain, builder])
    ec2.get_waiter("instance_terminated").wait(
        InstanceIds=[plain, builder], WaiterConfig={"Delay": 0, "MaxAttempts": 200}
    )
    until(lambda: not machine.alive())
    assert not ec2.describe_network_interfaces(Filters=[{"Name": "subnet-id", "Values": [subnets[0]]}])[
        "NetworkInterfaces"
    ]


def test_a_deleted_cluster_leaves_neither_control_plane_nor_security_group(site: Site, cluster: str) -> None:
    eks = site.client("eks")
    group = eks.describe_cluster(name="camp")["cluster"]["resourcesVpcConfig"]["clusterSecurityGroupId"]
    site.client("logs").delete_log_group(logGroupName="/aws/eks/camp/cluster")
    assert eks.delete_cluster(name="camp")["cluster"]["status"] == "DELETING"
    eks.get_waiter("cluster_deleted").wait(name="camp", WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    assert site.planes[0].stopped
    # Whoever deletes the log group before the cluster finds it made again.
    groups = site.client("logs").describe_log_groups(logGroupNamePrefix="/aws/eks/camp/")["logGroups"]
    assert [one["logGroupName"] for one in groups] == ["/aws/eks/camp/cluster"]
    found = site.client("ec2").describe_security_groups()["SecurityGroups"]
    assert group not in [one["GroupId"] for one in found]


def test_a_fault_hook_answers_in_place_of_the_service(site: Site) -> None:
    def throttle(call: Call) -> Fault | None:
        if (call.service, call.action) == ("eks", "ListClusters"):
            return Fault("ThrottlingException", "Rate exceeded", 429)
        return None

    site.world.faults.append(throttle)
    try:
        with pytest.raises(ClientError) as error:
            site.client("eks").list_clusters()
        assert code_of(error) == "ThrottlingException"
    finally:
        site.world.faults.remove(throttle)
    assert site.client("eks").list_clusters()["clusters"] == []
