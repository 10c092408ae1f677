"""Listings of all other services' kinds, written out by hand: what AWS answers, page by page, and what is seen."""

from __future__ import annotations

from typing import Any

from tests.unit.kinds.aws_by_model import OTHER, OWNER, REGION, TRAIN
from tests.unit.kinds.listings_of_ec2 import BORN, OURS, THEIRS, Case, row


def by(parameter: str, result: str, key: str = "") -> Any:
    """Tags one by one: those of the first id are ours, those of the second another's, the third has none."""

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        id = asked[parameter][0] if isinstance(asked[parameter], list) else asked[parameter]
        found = OURS if "one" in id else THEIRS if "two" in id else []
        if not key:
            return {result: found}
        return {result: [{key: id, "Tags": found}] if found else []}

    return answer


def arn(service: str, rest: str) -> str:
    return f"arn:aws:{service}:{REGION}:{OWNER}:{rest}"


ONE, TWO, THREE = (arn("elasticloadbalancing", f"loadbalancer/net/{name}/1") for name in ("one", "two", "three"))
GROUPS = [arn("elasticloadbalancing", f"targetgroup/{name}/1") for name in ("one", "two", "three")]
TOPICS = [arn("sns", name) for name in ("one", "two", "three")]
POLICIES = [f"arn:aws:iam::{OWNER}:policy/{name}" for name in ("one", "two", "three")]
ROLE = f"arn:aws:iam::{OWNER}:role/bivouac-train-guard"
ROOT = {"Path": "/", "CreateDate": BORN}
BUDGET = {"TimeUnit": "MONTHLY", "BudgetType": "COST"}

SERVICES = [
    Case(
        "schedule", "scheduler.list_schedules", "Schedules",
        [{"Name": "one"}, {"Name": "two", "GroupName": "night"}],
        [row("one", "one"), row("night/two", "two")],
        more={"scheduler.get_schedule": {"CreationDate": BORN, "Target": {"Arn": "arn:x", "RoleArn": ROLE}}},
    ),
    Case(
        "rule", "events.list_rules", "Rules",
        [{"Name": "one", "State": "ENABLED"}, {"Name": "two", "State": "DISABLED"}],
        [row("one", "one", born=None), row("two", "two", born=None)],
    ),
    Case(
        "Auto Scaling group", "autoscaling.describe_auto_scaling_groups", "AutoScalingGroups",
        [
            {"AutoScalingGroupName": name, "MinSize": 0, "MaxSize": 1, "DesiredCapacity": 1, "DefaultCooldown": 300,
             "AvailabilityZones": ["us-east-1a"], "HealthCheckType": "EC2", "CreatedTime": BORN, "Tags": tags}
            for name, tags in (("one", [{**OURS[0], "PropagateAtLaunch": True}]), ("two", []))
        ],
        [row("one", "one", TRAIN), row("two", "two")],
    ),
    Case(
        "launch configuration", "autoscaling.describe_launch_configurations", "LaunchConfigurations",
        [{"LaunchConfigurationName": name, "ImageId": "ami-1", "InstanceType": "m7i.large", "CreatedTime": BORN}
         for name in ("one", "two")],
        [row("one", "one"), row("two", "two")],
    ),
    Case(
        "cluster", "eks.list_clusters", "clusters",
        ["one", "two"],
        [row("one", "one", TRAIN, "0.10"), row("two", "two", usd="0.10", leaving=True)],
        more={"eks.describe_cluster": lambda asked: {
            "one": {"cluster": {"name": "one", "createdAt": BORN, "status": "ACTIVE", "tags": TRAIN}},
            "two": {"cluster": {"name": "two", "createdAt": BORN, "status": "DELETING"}},
        }[asked["name"]]},
    ),
    Case(
        "load balancer", "elbv2.describe_load_balancers", "LoadBalancers",
        [
            {"LoadBalancerArn": ONE, "LoadBalancerName": "one", "CreatedTime": BORN, "State": {"Code": "active"}},
            {"LoadBalancerArn": TWO, "LoadBalancerName": "two", "CreatedTime": BORN, "State": {"Code": "failed"}},
            {"LoadBalancerArn": THREE, "LoadBalancerName": "three", "CreatedTime": BORN},
        ],
        [row(ONE, "one", TRAIN, None), row(TWO, "two", OTHER, None), row(THREE, "three", usd=None)],
        more={"elbv2.describe_tags": by("ResourceArns", "TagDescriptions", "ResourceArn")},
    ),
    Case(
        "classic load balancer", "elb.describe_load_balancers", "LoadBalancerDescriptions",
        [{"LoadBalancerName": name, "CreatedTime": BORN} for name in ("one", "two", "three")],
        [row("one", "one", TRAIN, None), row("two", "two", OTHER, None), row("three", "three", usd=None)],
        more={"elb.describe_tags": by("LoadBalancerNames", "TagDescriptions", "LoadBalancerName")},
    ),
    Case(
        "target group", "elbv2.describe_target_groups", "TargetGroups",
        [{"TargetGroupArn": id, "TargetGroupName": name}
         for id, name in zip(GROUPS, ("one", "two", "three"), strict=True)],
        [row(GROUPS[0], "one", TRAIN, born=None), row(GROUPS[1], "two", OTHER, born=None),
         row(GROUPS[2], "three", born=None)],
        more={"elbv2.describe_tags": by("ResourceArns", "TagDescriptions", "ResourceArn")},
    ),
    Case(
        "file system", "fsx.describe_file_systems", "FileSystems",
        [
            {"FileSystemId": "fs-00000001", "Lifecycle": "AVAILABLE", "CreationTime": BORN, "StorageCapacity": 7300,
             "Tags": OURS, "LustreConfiguration": {"DeploymentType": "SCRATCH_2"}},
            {"FileSystemId": "fs-00000002", "Lifecycle": "DELETING", "CreationTime": BORN, "StorageCapacity": 73000,
             "Tags": THEIRS, "LustreConfiguration": {"DeploymentType": "PERSISTENT_2",
                                                     "PerUnitStorageThroughput": 250}},
            {"FileSystemId": "fs-00000003", "Lifecycle": "FAILED", "CreationTime": BORN, "StorageCapacity": 1200},
        ],
        [row("fs-00000001", tags=TRAIN, usd="1.4"), row("fs-00000002", tags=OTHER, usd="21", leaving=True),
         row("fs-00000003", usd=None)],
    ),
    Case(
        "instance profile", "iam.list_instance_profiles", "InstanceProfiles",
        [{**ROOT, "InstanceProfileName": name, "InstanceProfileId": "AIPA" * 4,
          "Arn": f"arn:aws:iam::{OWNER}:instance-profile/{name}", "Roles": []} for name in ("one", "two", "three")],
        [row("one", "one", TRAIN), row("two", "two", OTHER), row("three", "three")],
        more={"iam.list_instance_profile_tags": by("InstanceProfileName", "Tags")},
    ),
    Case(
        "role", "iam.list_roles", "Roles",
        [{**ROOT, "RoleName": name, "RoleId": "AROA" * 4, "Arn": f"arn:aws:iam::{OWNER}:role/{name}"}
         for name in ("one", "two", "three")],
        [row("one", "one", TRAIN), row("two", "two", OTHER), row("three", "three")],
        more={"iam.list_role_tags": by("RoleName", "Tags")},
    ),
    Case(
        "policy", "iam.list_policies", "Policies",
        [{**ROOT, "PolicyName": one.rpartition("/")[2], "Arn": one} for one in POLICIES],
        [row(POLICIES[0], "one", TRAIN), row(POLICIES[1], "two", OTHER), row(POLICIES[2], "three")],
        {"Scope": "Local"}, {"iam.list_policy_tags": by("PolicyArn", "Tags")},
    ),
    Case(
        "budget", "budgets.describe_budgets", "Budgets",
        [{"BudgetName": "one", **BUDGET}, {"BudgetName": "two", **BUDGET}],
        [row("one", "one", born=None), row("two", "two", born=None)],
        {"AccountId": OWNER},
    ),
    Case(
        "parameter", "ssm.describe_parameters", "Parameters",
        [{"Name": name, "LastModifiedDate": BORN} for name in ("/one", "/aws/service/eks", "/two", "/awsome")],
        [row("/one", "/one", TRAIN), row("/two", "/two", OTHER), row("/awsome", "/awsome")],
        more={"ssm.list_tags_for_resource": by("ResourceId", "TagList")},
    ),
    Case(
        "alarm", "cloudwatch.describe_alarms", "MetricAlarms",
        [{"AlarmName": "one"}, {"AlarmName": "two"}],
        [row("one", "one", born=None), row("two", "two", born=None)],
    ),
    Case(
        "log group", "logs.describe_log_groups", "logGroups",
        [{"logGroupName": name, "creationTime": 1793529000000} for name in ("one", "two", "three")],
        [row("one", "one", TRAIN), row("two", "two", OTHER), row("three", "three")],
        more={"logs.list_tags_log_group": lambda asked: {
            "tags": {"one": TRAIN, "two": OTHER}.get(asked["logGroupName"], {})}},
    ),
    Case(
        "topic", "sns.list_topics", "Topics",
        [{"TopicArn": one} for one in TOPICS],
        [row(TOPICS[0], "one", TRAIN, born=None), row(TOPICS[1], "two", OTHER, born=None),
         row(TOPICS[2], "three", born=None)],
        more={"sns.list_tags_for_resource": by("ResourceArn", "Tags")},
    ),
    Case(
        "bucket", "s3.list_buckets", "Buckets",
        [{"Name": name, "CreationDate": BORN} for name in ("one", "two", "three")],
        [row("one", "one", TRAIN, None), row("two", "two", OTHER, None), row("three", "three", usd=None)],
        more={"s3.get_bucket_tagging": by("Bucket", "TagSet")},
    ),
]  # fmt: skip
