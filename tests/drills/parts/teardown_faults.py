"""The faults of the teardown drill: each is laid on an emulated account, and mended again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infra.spec.names import PROJECT, buckets
from tests.worlds.campaign_site import CampaignSite

Mend = Callable[[], Any]


@dataclass
class Fault:
    """`lay` returns what mends it; None: it ends by itself."""

    name: str
    lay: Callable[[CampaignSite], Mend | None]
    foreign: bool = False
    """Leaves things of others in the account until it is mended."""
    after: str = ""
    """The fault of provision that it goes with, where that matters."""
    swept: bool = False
    """`bivouac sweep` mends it, and no hand."""
    leaks: bool = False
    """AWS makes things that nobody was told of: only the certificate can find them."""


def rule(route: str, **wanted: Any) -> Callable[[CampaignSite], Mend | None]:
    def lay(camp: CampaignSite) -> Mend:
        numbers = camp.ask(route, add=[wanted])["added"]
        return lambda: camp.ask(route, clear=numbers)

    return lay


def taken_role(camp: CampaignSite) -> Mend:
    iam, name = camp.client("iam"), camp.names.role("steward")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')
    return lambda: iam.delete_role(RoleName=name)


def _subnet(camp: CampaignSite) -> str:
    tagged = [{"Name": "tag:bivouac:campaign", "Values": [camp.names.campaign]}]
    subnets = camp.client("ec2").describe_subnets(Filters=tagged)["Subnets"]
    return str(subnets[0]["SubnetId"]) if subnets else ""


def interface(description: str) -> Callable[[CampaignSite], Mend | None]:
    def lay(camp: CampaignSite) -> Mend | None:
        ec2, subnet = camp.client("ec2"), _subnet(camp)
        if not subnet:
            return None
        made = ec2.create_network_interface(SubnetId=subnet, Description=description)["NetworkInterface"]
        return lambda: ec2.delete_network_interface(NetworkInterfaceId=made["NetworkInterfaceId"])

    return lay


def referring_group(camp: CampaignSite) -> Mend | None:
    """A group of someone else in our VPC whose rule names one of ours."""
    ec2 = camp.client("ec2")
    tagged = [{"Name": "tag:bivouac:campaign", "Values": [camp.names.campaign]}]
    ours = ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
    if not ours:
        return None
    group_id = ec2.create_security_group(GroupName="theirs", Description="theirs", VpcId=ours[0]["VpcId"])["GroupId"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": ours[0]["GroupId"]}]}
    ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[rule])
    return lambda: ec2.delete_security_group(GroupId=group_id)


def cluster_by_hand(camp: CampaignSite) -> None:
    """Everything of EKS is deleted behind our back, and waited for."""
    eks, name = camp.client("eks"), camp.names.cluster
    if name not in eks.list_clusters()["clusters"]:
        return
    for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
        eks.delete_nodegroup(clusterName=name, nodegroupName=group)
        eks.get_waiter("nodegroup_deleted").wait(
            clusterName=name, nodegroupName=group, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
    eks.delete_cluster(name=name)
    eks.get_waiter("cluster_deleted").wait(name=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})


def frozen_plane(camp: CampaignSite) -> Mend | None:
    if camp.names.cluster not in camp.world.control_planes:
        return None
    camp.ask(f"control-plane?cluster={camp.names.cluster}&hand=freeze")

    def thaw() -> None:
        if camp.names.cluster in camp.world.control_planes:
            camp.ask(f"control-plane?cluster={camp.names.cluster}&hand=thaw")

    return thaw


def state_gone(camp: CampaignSite) -> Mend | None:
    """The stack's state is lost, and found again by whoever mends it."""
    s3, bucket = camp.client("s3"), buckets(camp.spec.account, camp.spec.region).state
    prefix = f".pulumi/stacks/{PROJECT}/{camp.names.stack}.json"
    keys = [item["Key"] for item in s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())]
    kept = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
    for key in keys:
        s3.delete_object(Bucket=bucket, Key=key)

    def restore() -> None:
        for key, body in kept.items():
            s3.put_object(Bucket=bucket, Key=key, Body=body)

    return restore


def expired_midway(camp: CampaignSite) -> Mend:
    wanted = {"code": "ExpiredToken", "status": 403, "times": None, "message": "The security token has expired"}
    numbers: list[int] = []
    event = threading.Event()

    def later() -> None:
        if not event.wait(3.0):
            numbers.extend(camp.ask("faults", add=[wanted])["added"])

    thread = threading.Thread(target=later, daemon=True)
    thread.start()

    def renew() -> None:
        event.set()
        thread.join()
        if numbers:
            camp.ask("faults", clear=numbers)

    return renew


def throttled(**more: Any) -> Callable[[CampaignSite], Mend | None]:
    return rule("faults", code="RequestLimitExceeded", message="Request limit exceeded.", status=503, **more)


lost_creations = rule("faults", action="Create*", effect="drop-after", times=3, skip=9)


ADD_ON_FAILS = "an add-on fails"


def at_provision() -> list[Fault]:
    return [
        Fault("no fault", lambda camp: None),
        Fault("EC2 throttles", throttled(service="ec2", share=0.4, times=40)),
        Fault("answers of creations are lost", lost_creations, leaks=True),
        Fault("5xx", rule("faults", service="e*", status=500, share=0.2, times=30)),
        Fault("a role's name is taken", taken_role, foreign=True),
        Fault(ADD_ON_FAILS, rule("troubles", kind="add-on", name="coredns", phase="create", outcome="fail")),
        Fault("the control plane fails", rule("troubles", kind="cluster", phase="create", outcome="fail")),
        Fault("a node group fails", rule("troubles", kind="node-group", phase="create", outcome="fail")),
        Fault("the file system fails", rule("troubles", kind="file-system", phase="create", outcome="fail")),
        Fault("a quota", rule("capacity", instance_type="m7i*", code="VcpuLimitExceeded", message="vCPU limit of 0")),
    ]


def at_teardown() -> list[Fault]:
    return [
        Fault("no fault", lambda camp: None),
        Fault("a load balancer's interface", interface("ELB app/theirs/0123"), foreign=True),
        Fault("a CNI interface", interface("aws-K8S-i-0123456789abcdef0"), foreign=True),
        Fault(
            "a CNI interface, and no place recorded",
            interface("aws-K8S-i-0123456789abcdef0"),
            foreign=True,
            swept=True,
            after=ADD_ON_FAILS,
        ),
        Fault("another group names ours", referring_group, foreign=True),
        Fault("AWS throttles", throttled(service="[!s]*", share=0.4, times=60)),
        Fault("answers of deletions are lost", rule("faults", action="Delete*", effect="drop-after", times=4, skip=5)),
        Fault("5xx on deletions", rule("faults", action="Delete*", status=500, share=0.5, times=25)),
        Fault("the cluster was deleted by hand", cluster_by_hand),
        Fault("the control plane is frozen", frozen_plane),
        Fault("a node group hangs", rule("troubles", kind="node-group", name="*-gpu")),
        Fault("a node group fails to go", rule("troubles", kind="node-group", outcome="fail", message="stuck")),
        Fault("the file system is slow", rule("troubles", kind="file-system", seconds=8)),
        Fault("the file system fails to go", rule("troubles", kind="file-system", outcome="fail", message="stuck")),
        Fault("a delete is denied", rule("faults", action="DeleteRole", code="AccessDenied", status=403, times=1)),
        Fault("credentials expire", expired_midway),
        Fault("the state is gone", state_gone),
        Fault("an instance does not terminate", rule("troubles", kind="instance")),
    ]
