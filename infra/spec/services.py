"""AWS's services that a campaign's network must reach. Names need them, without the models of the spec."""

from __future__ import annotations

FSX_SERVICE = "fsx"
SCHEDULER_SERVICE = "scheduler"
MONITORING_SERVICE = "monitoring"
ENDPOINT_SERVICES = (
    "autoscaling",  # the steward gives broken nodes back
    "ec2",  # the CNI, nodeadm, the steward
    "ecr.api",
    "ecr.dkr",
    "eks",  # nodeadm, the steward
    "eks-auth",  # pod identity
    FSX_SERVICE,  # the CSI driver
    "logs",
    MONITORING_SERVICE,  # the steward reads what FSx tells CloudWatch
    SCHEDULER_SERVICE,  # the steward postpones what ends the nodes without it
    "sns",  # the steward's notices
    "ssm",  # the builder
    "ssmmessages",
    "sts",
)
"""Services that nodes, add-ons and pods need without a NAT gateway. S3 has a gateway endpoint, which is free."""
SECRETS_SERVICE = "secretsmanager"
"""Needed besides by a job or webhook with a secret of Secrets Manager."""
