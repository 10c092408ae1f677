"""Outputs of the stacks: written by the programs, read by the driver. No Pulumi here."""

from __future__ import annotations

from trainer.contract.frozen import Frozen


class FoundationOutputs(Frozen, extra="ignore"):
    state_bucket: str
    archive_bucket: str
    repository_url: str
    """Repository of the trainer's images, without tag or digest."""
    build_network_subnet_id: str | None
    """Subnet of the builders; egress only. None: every campaign so far named a place of its own."""
    build_network_security_group_id: str | None
    build_network_instance_profile: str
    build_network_guard_arn: str
    """Role of the schedule that ends a builder."""
    key_arn: str | None = None
    """Key that encrypts the buckets; None: S3's own."""


class CampaignOutputs(Frozen, extra="ignore"):
    cluster_name: str
    cluster_endpoint: str
    kubeconfig: str
    """JSON; it holds no secret: credentials come from `bivouac token`."""
    vpc_id: str
    gpu_subnet_id: str
    system_subnet_id: str
    network_made: bool = True
    """VPC and subnets are the campaign's; else they existed before, and what else is in them is other people's."""
    node_security_group_id: str
    gpu_group: str
    system_group: str
    file_system_id: str | None = None
    """None: the campaign has no shared file system."""
    mount_name: str | None = None
    node_role_arn: str
    steward_role_arn: str
    trainer_role_arn: str
    archive_role_arn: str
    repository_url: str
    state_bucket: str
    archive_bucket: str
    deadline: str
    """ISO 8601, UTC."""
