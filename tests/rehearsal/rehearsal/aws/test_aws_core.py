"""The emulated AWS over HTTP: clusters, node groups, instances and their machines, identities and permissions."""

from __future__ import annotations

import base64

import pytest
from botocore.exceptions import ClientError
from moto import backends
from moto.ec2.responses import EC2Response

from infra.rehearsal.aws.world import Call, FaultAnswer, InstanceLaunch, LaunchRefused
from tests.rehearsal.rehearsal.aws.aws_cluster import (
    cluster,
    code_of,
    create_group,
    delete_group,
    describe,
    node_role,
    of_group,
    site,
    subnets,
    template,
)
from tests.worlds.account_site import AccountSite, FakeMachine, until

__all__ = ["cluster", "node_role", "site", "subnets", "template"]


def test_a_cluster_shows_the_control_plane_it_started(site: AccountSite, cluster: str) -> None:
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
    site: AccountSite, subnets: list[str], node_role: str
) -> None:
    with pytest.raises(ClientError) as error:
        site.client("eks").create_cluster(name="no", roleArn=node_role, resourcesVpcConfig={"subnetIds": subnets})
    assert code_of(error) == "InvalidParameterException"


def test_a_node_group_starts_a_machine_per_instance_as_its_launch_template_says(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str, template: dict[str, str]
) -> None:
    group = create_group(site, "gpu", node_role, subnets, launchTemplate=template)
    machine = until(lambda: of_group(site, "gpu"))[0]
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
    assert [volume["Tags"] for volume in volumes["Volumes"]] == [[{"Key": "bivouac:campaign", "Value": "camp"}]]
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
    site: AccountSite, cluster: str, subnets: list[str], node_role: str
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
    descriptions = [
        activity["Description"]
        for activity in autoscaling.describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
    ]
    assert descriptions[0] == f"Terminating EC2 instance: {new.settings['instance_id']}"
    delete_group(site, "sys")


def test_an_instance_without_its_machine_fails_its_status_check_until_it_is_replaced(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_group(site, "dead", node_role, subnets)
    old = until(lambda: of_group(site, "dead"))[0]
    instance_id = old.settings["instance_id"]
    until(lambda: describe(site, "dead")["status"] == "ACTIVE")
    with monkeypatch.context() as patience:
        patience.setattr(site.world, "replace_impaired_after_s", 600.0)
        old.kill()
        status = site.client("ec2").describe_instance_status(InstanceIds=[instance_id])["InstanceStatuses"][0]
        assert (status["InstanceState"]["Name"], status["InstanceStatus"]["Status"]) == ("running", "impaired")
    assert until(lambda: [one for one in of_group(site, "dead") if one is not old])
    delete_group(site, "dead")


def test_the_size_of_a_node_group_goes_to_zero_and_back_by_either_api(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "size", node_role, subnets, scalingConfig={"minSize": 0, "maxSize": 2, "desiredSize": 0})
    until(lambda: describe(site, "size")["status"] == "ACTIVE")
    eks, autoscaling = site.client("eks"), site.client("autoscaling")
    group = describe(site, "size")["resources"]["autoScalingGroups"][0]["name"]
    eks.update_nodegroup_config(clusterName="camp", nodegroupName="size", scalingConfig={"desiredSize": 2})
    until(lambda: len(of_group(site, "size")) == 2)
    autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=0)
    until(lambda: not of_group(site, "size"))
    assert describe(site, "size")["scalingConfig"]["desiredSize"] == 0
    with pytest.raises(ClientError) as error:
        autoscaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=3)
    assert "above max value 2" in str(error.value)
    until(lambda: describe(site, "size")["status"] == "ACTIVE")
    with pytest.raises(ClientError) as error:
        eks.update_nodegroup_config(clusterName="camp", nodegroupName="size", scalingConfig={"desiredSize": 3})
    assert code_of(error) == "InvalidParameterException"
    delete_group(site, "size")


def test_a_launch_that_is_refused_is_told_and_tried_again(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str
) -> None:
    def sold_out(launch: InstanceLaunch) -> None:
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
    activities = site.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
    assert any(one["StatusCode"] == "Failed" for one in activities)
    until(lambda: of_group(site, "none"))
    delete_group(site, "none")


def test_a_node_group_whose_instances_never_join_fails_with_their_ids(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "joins", False)
    monkeypatch.setattr(site.world, "join_within_s", 1.0)
    create_group(site, "lost", node_role, subnets)
    until(lambda: describe(site, "lost")["status"] == "CREATE_FAILED")
    issue = describe(site, "lost")["health"]["issues"][0]
    assert issue["code"] == "NodeCreationFailure"
    assert issue["resourceIds"] == [of_group(site, "lost")[0].settings["instance_id"]]
    delete_group(site, "lost")


def test_an_add_on_that_needs_a_node_waits_for_one(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str
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
    site: AccountSite, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "last", node_role, subnets, scalingConfig={"minSize": 0, "maxSize": 1, "desiredSize": 0})
    with pytest.raises(ClientError) as error:
        site.client("eks").delete_cluster(name="camp")
    assert code_of(error) == "ResourceInUseException"
    delete_group(site, "last")


def test_a_builder_gets_a_machine_and_other_instances_do_not(
    site: AccountSite, subnets: list[str], node_role: str
) -> None:
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


def test_a_deleted_cluster_leaves_neither_control_plane_nor_security_group(site: AccountSite, cluster: str) -> None:
    eks = site.client("eks")
    group = eks.describe_cluster(name="camp")["cluster"]["resourcesVpcConfig"]["clusterSecurityGroupId"]
    site.client("logs").delete_log_group(logGroupName="/aws/eks/camp/cluster")
    assert eks.delete_cluster(name="camp")["cluster"]["status"] == "DELETING"
    eks.get_waiter("cluster_deleted").wait(name="camp", WaiterConfig={"Delay": 0, "MaxAttempts": 200})
    assert site.planes[0].stopped
    # Whoever deletes the log group before the cluster finds it made again.
    groups = site.client("logs").describe_log_groups(logGroupNamePrefix="/aws/eks/camp/")["logGroups"]
    assert [group["logGroupName"] for group in groups] == ["/aws/eks/camp/cluster"]
    found = site.client("ec2").describe_security_groups()["SecurityGroups"]
    assert group not in [one["GroupId"] for one in found]


def test_a_fault_hook_answers_in_place_of_the_service(site: AccountSite) -> None:
    def throttle(call: Call) -> FaultAnswer | None:
        if (call.service, call.action) == ("eks", "ListClusters"):
            return FaultAnswer("ThrottlingException", "Rate exceeded", 429)
        return None

    site.world.faults.append(throttle)
    try:
        with pytest.raises(ClientError) as error:
            site.client("eks").list_clusters()
        assert code_of(error) == "ThrottlingException"
    finally:
        site.world.faults.remove(throttle)
    assert site.client("eks").list_clusters()["clusters"] == []


def test_a_request_changes_the_rules_of_its_own_answer_alone(site: AccountSite) -> None:
    ec2 = site.client("ec2")
    ec2.create_key_pair(KeyName="shown")
    rules = dict(EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER)
    (pair,) = ec2.describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
    assert pair["PublicKey"]
    (pair,) = ec2.describe_key_pairs()["KeyPairs"]
    assert "PublicKey" not in pair
    assert rules == EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER, "one for all requests, also for those under way"


def test_a_request_looks_for_nothing_again_that_another_found(
    site: AccountSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto would look through the folders of all its services twice with each request."""
    clients = [site.client(name) for name in ("sts", "ec2")]
    asks = [clients[0].get_caller_identity, clients[1].describe_vpcs]
    for ask in asks:
        ask()
    looked: list[str] = []
    monkeypatch.setattr(backends, "list_of_moto_modules", lambda: looked.append("modules") or [])
    monkeypatch.setattr(backends, "_import_backend", lambda *names: looked.append("backend"))
    for ask in asks:
        ask()
    assert looked == []
