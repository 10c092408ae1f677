"""Rules over the whole graph of a campaign."""

from __future__ import annotations

import base64
import email
import json
import runpy
from typing import Any

import pytest
import yaml

from infra.cli.hand import by_hand
from infra.plan.catalogue import instance_type
from infra.spec.names import Names
from infra.stack.cluster.cluster import principal_arn
from infra.stack.outputs import CampaignOutputs
from infra.stack.settings import CampaignSettings
from infra.stack.tags import tags
from tests.example import DATA_DIGEST, DEADLINE, example_spec
from tests.graph.engine import CODE, Graph, Node, build, campaign_graph
from tests.root import ROOT


def node_config(graph: Graph, name: str) -> dict[str, Any]:
    text = base64.b64decode(graph.one("LaunchTemplate", name).inputs["userData"]).decode()
    (part,) = [p for p in email.message_from_string(text).walk() if p.get_content_type() == "application/node.eks.aws"]
    return yaml.safe_load(str(part.get_payload()))


def test_every_aws_resource_takes_the_campaigns_tags_from_the_provider(campaign: Graph) -> None:
    provider = next(node for node in campaign.custom if node.type == "pulumi:providers:aws")
    default = provider.inputs["defaultTags"]
    marks = json.loads(default)["tags"] if isinstance(default, str) else default["tags"]
    assert marks == tags(example_spec(), DEADLINE)
    assert marks == {
        "bivouac:campaign": "example",
        "bivouac:owner": "someone@example.com",
        "bivouac:expires": "2026-12-01T12:00:00Z",
        "bivouac:region": "us-east-1",
    }
    orphans = [str(n) for n in campaign.custom if n.type.startswith("aws:") and provider.urn not in n.provider]
    assert not orphans, "default tags reach only what uses our provider"


def test_what_auto_scaling_launches_carries_the_tags_too(campaign: Graph) -> None:
    for template in campaign.of("LaunchTemplate"):
        marked = {
            specification["resourceType"]: specification["tags"]
            for specification in template.inputs["tagSpecifications"]
        }
        assert set(marked) == {"instance", "volume", "network-interface"}
        for found in marked.values():
            assert tags(example_spec(), DEADLINE).items() <= found.items()


def test_the_cni_marks_the_interfaces_that_it_makes(campaign: Graph) -> None:
    values = json.loads(campaign.one("Addon", "vpc-cni").inputs["configurationValues"])
    assert json.loads(values["env"]["ADDITIONAL_ENI_TAGS"])["bivouac:campaign"] == "example"


def test_a_foreign_account_is_refused_by_the_provider(campaign: Graph) -> None:
    provider = next(node for node in campaign.custom if node.type == "pulumi:providers:aws")
    assert example_spec().account in provider.inputs["allowedAccountIds"]


def test_nothing_lets_the_internet_in() -> None:
    for egress in ("nat", "endpoints"):
        graph = campaign_graph(example_spec(network={"egress": egress}))
        rules = graph.of("SecurityGroupIngressRule")
        assert rules
        ranges = {rule.inputs["cidrIpv4"] for rule in rules if "cidrIpv4" in rule.inputs}
        assert ranges <= {example_spec().network.cidr}
        assert not any(rule.inputs["securityGroupId"] == "SecurityGroup-builder" for rule in rules)
        assert not any(subnet.inputs.get("mapPublicIpOnLaunch") for subnet in graph.of("Subnet"))
        assert not any("ingress" in group.inputs for group in graph.of("SecurityGroup"))


def test_nodes_reach_each_other_by_rules_that_name_the_group(campaign: Graph) -> None:
    for kind in ("SecurityGroupIngressRule", "SecurityGroupEgressRule"):
        selfish = [
            rule.inputs
            for rule in campaign.of(kind)
            if rule.inputs["securityGroupId"] == rule.inputs.get("referencedSecurityGroupId") == "SecurityGroup-nodes"
        ]
        assert [rule["ipProtocol"] for rule in selfish] == ["-1"], f"EFA is matched only by a {kind} to itself"


def test_lustre_opens_its_ports_to_nodes_and_to_itself(campaign: Graph) -> None:
    opened = {
        (rule.inputs["referencedSecurityGroupId"], rule.inputs["fromPort"], rule.inputs["toPort"])
        for rule in campaign.of("SecurityGroupIngressRule")
        if rule.inputs["securityGroupId"] == "SecurityGroup-lustre"
    }
    peers, ports = ("SecurityGroup-nodes", "SecurityGroup-lustre"), ((988, 988), (1018, 1023))
    assert opened == {(peer, first, last) for peer in peers for first, last in ports}


def test_lustre_with_efa_is_matched_by_groups_for_every_protocol() -> None:
    shared = {"efa": True, "capacity_gib": 19200}
    graph = campaign_graph(example_spec(storage={"shared": shared}))
    lustre = graph.one("LustreFileSystem", "shared").inputs
    assert lustre["efaEnabled"] is True and lustre["metadataConfiguration"] == {"mode": "AUTOMATIC"}
    pairs = {
        (rule.inputs["securityGroupId"], rule.inputs.get("referencedSecurityGroupId"))
        for kind in ("SecurityGroupIngressRule", "SecurityGroupEgressRule")
        for rule in graph.of(kind)
        if rule.inputs["ipProtocol"] == "-1" and "cidrIpv4" not in rule.inputs
    }
    nodes, fsx = "SecurityGroup-nodes", "SecurityGroup-lustre"
    assert pairs == {(nodes, nodes), (fsx, fsx), (nodes, fsx), (fsx, nodes)}


def test_every_efa_device_of_the_type_is_attached_and_carries_both_groups(campaign: Graph) -> None:
    interfaces = campaign.one("LaunchTemplate", "gpu-nodes").inputs["networkInterfaces"]
    efas = [interface for interface in interfaces if interface["interfaceType"] == "efa-only"]
    assert len(efas) == instance_type("p5.48xlarge").efa_interfaces == 32
    for one in interfaces:
        assert set(one["securityGroups"]) == {"SecurityGroup-nodes", "sg-cluster"}, "EKS adds no group to ours"
        assert "associatePublicIpAddress" not in one


def test_gpu_nodes_and_file_system_share_one_subnet_in_the_campaigns_zone(campaign: Graph) -> None:
    group = campaign.one("NodeGroup", "gpu-nodes").inputs
    assert group["subnetIds"] == ["Subnet-gpu"]
    assert campaign.one("LustreFileSystem", "shared").inputs["subnetIds"] == "Subnet-gpu"
    assert campaign.one("Subnet", "gpu").inputs["availabilityZone"] == "us-east-1a"


def test_the_control_plane_lies_in_two_zones(campaign: Graph) -> None:
    subnets = campaign.one("Cluster", "cluster").inputs["vpcConfig"]["subnetIds"]
    zones = {campaign.one("Subnet", name.removeprefix("Subnet-")).inputs["availabilityZone"] for name in subnets}
    assert zones == {"us-east-1a", "us-east-1b"}


def _edges(graph: Graph) -> dict[str, tuple[Node, Node]]:
    gpu, system = graph.one("NodeGroup", "gpu-nodes"), graph.one("NodeGroup", "system-nodes")
    cluster = graph.one("Cluster", "cluster")
    kubernetes = next(node for node in graph.custom if node.type == "pulumi:providers:kubernetes")
    return {
        "GPU nodes after the CNI": (gpu, graph.one("Addon", "vpc-cni")),
        "system nodes after the CNI": (system, graph.one("Addon", "vpc-cni")),
        "GPU nodes after kube-proxy": (gpu, graph.one("Addon", "kube-proxy")),
        "GPU nodes after the identity agent": (gpu, graph.one("Addon", "eks-pod-identity-agent")),
        "GPU nodes after the schedule": (gpu, graph.one("Schedule", "deadline")),
        "GPU nodes after their way out": (gpu, graph.one("Route", "private-nat")),
        "GPU nodes after the self rule": (gpu, graph.one("SecurityGroupEgressRule", "nodes-self-out")),
        "GPU nodes after the placement group": (gpu, graph.one("PlacementGroup", "gpu-nodes")),
        "GPU nodes after the CNI's rights": (gpu, graph.one("RolePolicyAttachment", "cni-AmazonEKS_CNI_Policy")),
        "the CNI after its role": (graph.one("Addon", "vpc-cni"), graph.one("PodIdentityAssociation", "aws-node")),
        "the schedule after its rights": (graph.one("Schedule", "deadline"), graph.one("RolePolicy", "guard")),
        "CoreDNS after a node": (graph.one("Addon", "coredns"), system),
        "the CSI driver after a node": (graph.one("Addon", "aws-fsx-csi-driver"), system),
        "JobSet after DNS": (graph.one("Release", "jobset"), graph.one("Addon", "coredns")),
        "the cluster after its logs": (cluster, graph.one("LogGroup", "logs")),
        "the cluster after its rights": (cluster, graph.one("RolePolicyAttachment", "cluster-AmazonEKSClusterPolicy")),
        "Kubernetes after the operator's rights": (kubernetes, graph.one("AccessPolicyAssociation", "operator")),
        "Kubernetes after minutes, in which the operator's rights come to count": (kubernetes, system),
        "the volume after the data": (
            graph.one("PersistentVolume", "shared"),
            graph.one("DataRepositoryAssociation", "data"),
        ),
    }


def test_things_come_to_be_in_the_order_that_teardown_needs_reversed(campaign: Graph) -> None:
    wrong = [name for name, (later, earlier) in _edges(campaign).items() if not campaign.comes_after(later, earlier)]
    assert not wrong
    schedule, gpu = campaign.one("Schedule", "deadline"), campaign.one("NodeGroup", "gpu-nodes")
    assert not campaign.comes_after(schedule, gpu), "the guard must not wait for what it guards"


def test_every_kubernetes_object_comes_after_the_operator_and_dies_with_the_cluster(campaign: Graph) -> None:
    door, cluster = campaign.one("AccessPolicyAssociation", "operator"), campaign.one("Cluster", "cluster")
    objects = [node for node in campaign.custom if node.type.startswith("kubernetes:")]
    assert len(objects) >= 15
    for node in objects:
        assert campaign.comes_after(node, door), node
        assert node.deleted_with == cluster.urn, node


def test_no_service_and_no_claim_makes_anything_in_aws(campaign: Graph) -> None:
    assert not campaign.of("Service")
    for claim in campaign.of("PersistentVolumeClaim"):
        assert claim.inputs["spec"]["storageClassName"] == "" and claim.inputs["spec"]["volumeName"]


def test_the_number_of_resources_does_not_grow_with_the_nodes() -> None:
    few, many = (campaign_graph(example_spec(nodes={"count": count})) for count in (2, 512))
    assert sorted(few.nodes) == sorted(many.nodes)
    assert many.one("NodeGroup", "gpu-nodes").inputs["scalingConfig"]["maxSize"] == 513


def test_gpu_nodes_start_at_zero_and_their_number_is_not_pulumis(campaign: Graph) -> None:
    group = campaign.one("NodeGroup", "gpu-nodes")
    assert group.inputs["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 5}
    assert group.ignore_changes == ("scalingConfig.desiredSize",)


def test_the_node_configuration_is_complete(campaign: Graph) -> None:
    spec = node_config(campaign, "gpu-nodes")["spec"]
    assert spec["cluster"] == {
        "name": "bivouac-example",
        "apiServerEndpoint": "https://control.plane",
        "certificateAuthority": "Q0E=",
        "cidr": "172.20.0.0/16",
    }
    assert spec["instance"]["localStorage"]["strategy"] == "RAID0"
    labels = "bivouac.dev/pool=gpu,eks.amazonaws.com/nodegroup=bivouac-example-gpu"
    assert spec["kubelet"]["flags"] == [
        f"--node-labels={labels}",
        "--register-with-taints=nvidia.com/gpu=present:NoSchedule",
    ]
    system = node_config(campaign, "system-nodes")["spec"]
    assert "instance" not in system and "taints" not in str(system)
    assert "bivouac.dev/pool=system" in system["kubelet"]["flags"][0]


def test_launch_templates_hold_nothing_that_a_node_group_refuses(campaign: Graph) -> None:
    for template in campaign.of("LaunchTemplate"):
        inputs = template.inputs
        assert {"iamInstanceProfile", "hibernationOptions", "instanceInitiatedShutdownBehavior"}.isdisjoint(inputs)
        assert ("vpcSecurityGroupIds" in inputs) != ("networkInterfaces" in inputs)
        assert not any("subnetId" in one for one in inputs.get("networkInterfaces", []))
        assert inputs["imageId"] and inputs["metadataOptions"]["httpTokens"] == "required"
    for group in campaign.of("NodeGroup"):
        assert {"amiType", "instanceTypes", "diskSize", "remoteAccess", "version"}.isdisjoint(group.inputs)


def test_an_image_or_a_deadline_that_changes_does_not_roll_the_nodes(campaign: Graph) -> None:
    for template in campaign.of("LaunchTemplate"):
        assert template.ignore_changes == ("imageId", "tagSpecifications")


def test_a_baked_node_image_replaces_the_looked_up_one() -> None:
    graph = campaign_graph(example_spec(), node_image="ami-0123456789abcdef0")
    assert graph.one("LaunchTemplate", "gpu-nodes").inputs["imageId"] == "ami-0123456789abcdef0"
    assert "x86_64-standard" in graph.one("LaunchTemplate", "system-nodes").inputs["imageId"]


def test_the_cluster_lets_nobody_in_for_having_made_it(campaign: Graph) -> None:
    cluster = campaign.one("Cluster", "cluster").inputs
    assert cluster["accessConfig"] == {
        "authenticationMode": "API",
        "bootstrapClusterCreatorAdminPermissions": False,
    }
    assert cluster["bootstrapSelfManagedAddons"] is False
    assert cluster["upgradePolicy"] == {"supportType": "STANDARD"}
    entry = campaign.one("AccessEntry", "operator").inputs
    assert entry["principalArn"] == "arn:aws:iam::123456789012:role/ci", "the role behind the session"


def test_a_named_operator_goes_before_the_caller() -> None:
    arn = "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/Admin_1"
    graph = campaign_graph(example_spec(), operator_arn=arn)
    assert graph.one("AccessPolicyAssociation", "operator").inputs["principalArn"] == arn
    assert principal_arn("arn:aws:iam::123456789012:user/operator") == "arn:aws:iam::123456789012:user/operator"


def test_the_schedule_sets_the_gpu_nodes_to_zero_at_the_deadline(campaign: Graph) -> None:
    schedule = campaign.one("Schedule", "deadline").inputs
    assert schedule["scheduleExpression"] == "at(2026-12-01T12:00:00)"
    assert schedule["target"]["arn"] == "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"
    assert json.loads(schedule["target"]["input"]) == {
        "ClusterName": "bivouac-example",
        "NodegroupName": "bivouac-example-gpu",
        "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
    }


def test_the_data_set_is_linked_by_its_digest(campaign: Graph) -> None:
    link = campaign.one("DataRepositoryAssociation", "data").inputs
    assert link["fileSystemPath"] == "/data"
    assert link["dataRepositoryPath"] == f"s3://bivouac-data-123456789012-us-east-1/datasets/{DATA_DIGEST}/"


def test_each_mount_of_a_workload_is_a_link_that_follows_its_prefix() -> None:
    job = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 9, "step_seconds": 1},
        "mounts": {"corpus": "s3://somebodys/tokens/", "eval": "s3://somebodys/held-out"},
        "init_from": "s3://somebodys/llama",
    }  # fmt: skip
    graph = campaign_graph(example_spec(training=None, data=None, workload=job))
    links = {node.name: node.inputs for node in graph.of("DataRepositoryAssociation")}
    assert {name: (one["fileSystemPath"], one["dataRepositoryPath"]) for name, one in links.items()} == {
        "data": ("/data", f"s3://bivouac-data-123456789012-us-east-1/datasets/{DATA_DIGEST}/"),
        "mount-corpus": ("/mounts/corpus", "s3://somebodys/tokens/"),
        "mount-eval": ("/mounts/eval", "s3://somebodys/held-out"),
        "mount-init-from": ("/mounts/init-from", "s3://somebodys/llama"),
    }
    for name in ("mount-corpus", "mount-eval"):
        assert set(links[name]["s3"]["autoImportPolicy"]["events"]) == {"NEW", "CHANGED", "DELETED"}
        assert "autoExportPolicy" not in links[name]["s3"], "nothing is written back"


def test_weights_in_s3_that_the_built_in_trainer_starts_from_are_a_link_too() -> None:
    section = {"model": "debug", "init_from": "s3://somebodys/llama", "steps": 9, "global_batch": 512}
    links = campaign_graph(example_spec(training=section)).of("DataRepositoryAssociation")
    found = {node.name: (node.inputs["fileSystemPath"], node.inputs["dataRepositoryPath"]) for node in links}
    assert found["mount-init-from"] == ("/mounts/init-from", "s3://somebodys/llama") and len(found) == 2


def test_without_nat_the_nodes_have_endpoints_and_no_way_to_the_internet() -> None:
    graph = campaign_graph(example_spec(network={"egress": "endpoints"}))
    assert not graph.of("NatGateway") + graph.of("InternetGateway") + graph.of("Eip") + graph.of("Route")
    services = {one.inputs["serviceName"].removeprefix("com.amazonaws.us-east-1.") for one in graph.of("VpcEndpoint")}
    assert {"s3", "ecr.api", "ecr.dkr", "ec2", "sts", "eks", "eks-auth", "logs", "fsx", "autoscaling"} <= services


def test_the_nvidia_plugin_leaves_rdma_devices_to_the_efa_plugin(campaign: Graph) -> None:
    assert campaign.one("Release", "nvidia-device-plugin").inputs["values"]["mofedEnabled"] is False


def test_each_accelerator_gets_the_device_plugin_of_its_maker(campaign: Graph) -> None:
    trainium = campaign_graph(example_spec(nodes={"instance_type": "trn1.32xlarge"}))
    assert "neuron-helm-chart" in {one.name for one in trainium.of("Release")}
    assert "nvidia-device-plugin" not in {one.name for one in trainium.of("Release")}
    assert "neuron-helm-chart" not in {one.name for one in campaign.of("Release")}


def test_the_outputs_are_what_the_driver_reads(campaign: Graph) -> None:
    assert set(campaign.outputs) == set(CampaignOutputs.model_fields)
    outputs = CampaignOutputs.model_validate(campaign.outputs)
    assert outputs.gpu_group == Names(example_spec()).gpu_group
    user = json.loads(outputs.kubeconfig)["users"][0]["user"]["exec"]
    assert " ".join([user["command"], *user["args"]]) == "bivouac token --cluster bivouac-example --region us-east-1"


def test_the_program_file_makes_the_same_graph(campaign: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"deadline": DEADLINE, "data_digest": DATA_DIGEST, "closer_code": CODE}
    settings = CampaignSettings.model_validate({"spec": example_spec(), **known})
    monkeypatch.setattr(by_hand, "configuration", lambda *_, **__: settings.to_config())
    monkeypatch.chdir(ROOT / "infra/cli/hand")  # as Pulumi's language host does
    typed = build(lambda: runpy.run_path("."), {"bivouac:spec": "campaign.yaml"})  # type: ignore[arg-type, return-value]
    assert sorted(typed.nodes) == sorted(campaign.nodes)
