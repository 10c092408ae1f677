"""What the stacks export: written by the programs, read by the driver. No Pulumi here."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Outputs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FoundationOutputs(_Outputs):
    state_bucket: str
    data_bucket: str
    archive_bucket: str
    repository_url: str
    """Of the trainer's images, without tag or digest."""
    repository_arn: str
    key_arn: str | None = None
    """Of the key that encrypts the buckets; None: S3's own."""


class CampaignOutputs(_Outputs):
    cluster_name: str
    cluster_endpoint: str
    cluster_ca: str
    """Base64, as in a kubeconfig."""
    kubeconfig: str
    """JSON; it holds no secret: credentials come from `bivouac token`."""
    vpc_id: str
    gpu_subnet_id: str
    system_subnet_id: str
    """Private, with a way out: the builder goes here."""
    node_security_group_id: str
    builder_security_group_id: str
    builder_instance_profile: str
    gpu_group: str
    system_group: str
    file_system_id: str
    file_system_dns: str
    mount_name: str
    node_role_arn: str
    steward_role_arn: str
    trainer_role_arn: str
    archive_role_arn: str
    repository_url: str
    state_bucket: str
    data_bucket: str
    archive_bucket: str
    deadline: str
    """ISO 8601, UTC."""
