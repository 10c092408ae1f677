"""The spec's section `access`: people who may enter a campaign's cluster, and their rights there."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from infra.spec.section import Section


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"


class Access(Section):
    principal: Annotated[
        str,
        Field(
            pattern=r"^arn:aws:iam::[0-9]{12}:(role|user)/[A-Za-z0-9_+=,.@/-]+$",
            description="the ARN of an IAM role or user, with its path; not of a session, a group or the root",
        ),
    ]
    """ARN of an IAM role or user of the campaign's account. Of a role of IAM Identity Center the whole one, with
    `aws-reserved/sso.amazonaws.com/`."""
    role: Role
    """`viewer` sees the campaign's pods, logs and objects, no Kubernetes secret. `operator` also enters its containers
    (`exec`, `cp`) and changes its objects. `admin` may do all in the cluster, as whoever drives must."""
