"""EKS's resources for a node group: launch template, instance profile, Auto Scaling group and user data."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import EmailMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.parser import Parser
from typing import Any

from infra.rehearsal.aws.ec2.autoscaling import NodeGroupLaunch
from infra.rehearsal.aws.ec2.instances import CLUSTER_TAG, NODE_GROUP_TAG
from infra.rehearsal.aws.eks.clusters import Cluster
from infra.rehearsal.aws.eks.nodegroup_rules import block_id
from infra.rehearsal.aws.ssm_parameters import recommended_image
from infra.rehearsal.aws.world import World

SCALE_DOWN = timedelta(minutes=40)
"""EKS empties the node group this long before a capacity block's end."""
NODE_CONFIG = "application/node.eks.aws"
TAINT_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


@dataclass
class ManagedGroup:
    document: dict[str, Any]
    scaling_group: str
    profile: str
    own_template: str | None = None
    """The launch template that EKS made because none was given."""
    since: float = field(default_factory=time.monotonic)
    update: dict[str, Any] | None = None
    """The update in progress."""
    was: str | None = None
    """Status before a configuration change in progress."""

    @property
    def name(self) -> str:
        return str(self.document["nodegroupName"])


def make_template(world: World, cluster: Cluster, group: ManagedGroup, number: str) -> Any:
    disk = {"VolumeSize": group.document["diskSize"], "VolumeType": "gp3", "DeleteOnTermination": True}
    data = {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": disk}], "UserData": None}
    tags = {"launch-template": {CLUSTER_TAG: cluster.name, NODE_GROUP_TAG: group.name}}
    ec2 = world.backend("ec2")
    template = ec2.create_launch_template(f"eks-{number}", "", data, tags)
    group.own_template = template.id
    return template.default_version()


def make_profile(world: World, group: ManagedGroup, role_arn: str) -> None:
    world.backend("iam").create_instance_profile(group.profile, "/", [role_arn.rpartition("/")[2]])


def make_scaling_group(world: World, cluster: Cluster, group: ManagedGroup, version: Any) -> None:
    document = group.document
    set_recipe(world, cluster, group, version)
    tags = {
        CLUSTER_TAG: cluster.name,
        NODE_GROUP_TAG: group.name,
        f"kubernetes.io/cluster/{cluster.name}": "owned",
        "k8s.io/cluster-autoscaler/enabled": "true",
        f"k8s.io/cluster-autoscaler/{cluster.name}": "owned",
    }
    scaling = document["scalingConfig"]
    world.backend("autoscaling").create_auto_scaling_group(
        name=group.scaling_group,
        availability_zones=[],
        desired_capacity=scaling["desiredSize"],
        max_size=scaling["maxSize"],
        min_size=scaling["minSize"],
        launch_config_name=None,
        launch_template={"LaunchTemplateId": version.template.id, "Version": str(version.number)},
        vpc_zone_identifier=",".join(document["subnets"]),
        default_cooldown=None,
        health_check_period=15,
        health_check_type="EC2",
        load_balancers=[],
        target_group_arns=[],
        placement_group=None,
        termination_policies=["AllocationStrategy", "OldestLaunchTemplate", "OldestInstance"],
        tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
        capacity_rebalance=document["capacityType"] == "SPOT",
    )
    if document["capacityType"] == "CAPACITY_BLOCK":
        _end_with_block(world, group, version)


def _end_with_block(world: World, group: ManagedGroup, version: Any) -> None:
    """Schedule the action that empties the group, as EKS does, before EC2 terminates the block's instances."""
    ends = world.block_ends(block_id(version.data))
    if ends is not None:
        world.backend("autoscaling").put_scheduled_update_group_action(
            name=group.scaling_group, desired_capacity=0, max_size=None, min_size=0,
            scheduled_action_name="Amazon EKS Node Group Capacity Scaledown Before Reservation End",
            start_time=(ends - SCALE_DOWN).isoformat(), end_time=None, recurrence=None, timezone=None,
        )  # fmt: skip


def set_recipe(world: World, cluster: Cluster, group: ManagedGroup, version: Any) -> None:
    document, data = group.document, version.data
    recipe = None
    if not data.get("ImageId"):
        template_data = data["UserData"].decode() if data.get("UserData") else ""
        recipe = merged_user_data(cluster, document, template_data)
    profile = world.backend("iam").get_instance_profile(group.profile)
    world.auto_scaling.recipes[group.scaling_group] = NodeGroupLaunch(
        instance_types=document.get("instanceTypes", []),
        security_groups=[cluster.security_group],
        user_data=recipe,
        profile_arn=profile.arn,
        market="spot" if document["capacityType"] == "SPOT" else None,
        image="" if document["amiType"] == "CUSTOM" else recommended_image(document["version"], document["amiType"]),
    )


def merged_user_data(cluster: Cluster, group: dict[str, Any], user_data: str) -> str:
    """Return `user_data` (MIME or empty) with EKS's NodeConfig, for a node whose image EKS chose."""
    multipart = MIMEMultipart("mixed")
    message = Parser().parsestr(user_data) if user_data else EmailMessage()
    for part in message.walk() if message.is_multipart() else ():
        if not part.is_multipart():
            multipart.attach(part)
    document, network = cluster.document, cluster.document["kubernetesNetworkConfig"]
    labels = {"eks.amazonaws.com/nodegroup": group["nodegroupName"], **group["labels"]}
    flags = ["--node-labels=" + ",".join(f"{key}={value}" for key, value in sorted(labels.items()))]
    taints = [f"{taint['key']}={taint.get('value', '')}:{TAINT_EFFECTS[taint['effect']]}" for taint in group["taints"]]
    if taints:
        flags.append("--register-with-taints=" + ",".join(taints))
    config = {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {
            "cluster": {
                "name": cluster.name,
                "apiServerEndpoint": document["endpoint"],
                "certificateAuthority": document["certificateAuthority"]["data"],
                "cidr": network["serviceIpv4Cidr"],
            },
            "kubelet": {"flags": flags},
        },
    }
    node_config = MIMEText(json.dumps(config), "plain")  # JSON is YAML
    node_config.replace_header("Content-Type", NODE_CONFIG)
    multipart.attach(node_config)
    return multipart.as_string()
