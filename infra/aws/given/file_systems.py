"""The existing file systems that a job mounts, as AWS describes them. Read-only: none is ever made or deleted."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.plan.facts import Admission, GivenFileSystem
from infra.spec.campaign import Spec


def given_file_systems(account: Account, spec: Spec) -> tuple[GivenFileSystem, ...]:
    """Return what AWS says of each file system that the spec's mounts name and that exists."""
    return tuple(system for id in spec.runtime.given_file_systems for system in _described(account, id))


def _described(account: Account, id: str) -> Iterator[GivenFileSystem]:
    try:
        (system,) = account.client("fsx").describe_file_systems(FileSystemIds=[id])["FileSystems"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "FileSystemNotFound":
            raise
        return
    groups = _groups(account, system.get("NetworkInterfaceIds") or [])
    yield GivenFileSystem(
        id=id,
        kind=system["FileSystemType"],
        lifecycle=system["Lifecycle"],
        vpc_id=system.get("VpcId", ""),
        mount_name=(system.get("LustreConfiguration") or {}).get("MountName", ""),
        groups=groups,
        admits=tuple(_admissions(account, groups)),
    )


def _groups(account: Account, interfaces: list[str]) -> tuple[str, ...]:
    """Return the servers' security groups. FSx gives all interfaces of a file system the same groups."""
    if not interfaces:
        return ()
    ec2 = account.client("ec2")
    (interface,) = ec2.describe_network_interfaces(NetworkInterfaceIds=interfaces[:1])["NetworkInterfaces"]
    return tuple(sorted(group["GroupId"] for group in interface["Groups"]))


def _admissions(account: Account, groups: tuple[str, ...]) -> Iterator[Admission]:
    """Yield what the security groups let in by TCP."""
    ec2 = account.client("ec2")
    for group in ec2.describe_security_groups(GroupIds=list(groups))["SecurityGroups"] if groups else ():
        for rule in group.get("IpPermissions", ()):
            if str(rule["IpProtocol"]) in ("-1", "tcp", "6"):
                ports = {"first": rule.get("FromPort", 0), "last": rule.get("ToPort", 65535)}
                for member, key in (("IpRanges", "CidrIp"), ("PrefixListIds", "PrefixListId")):
                    yield from (Admission(**ports, source=entry[key]) for entry in rule.get(member, ()))
