"""The names of a job's secrets, and where their values lie. No value is ever in a spec."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from infra.spec.section import Section
from trainer.contract.frozen import Frozen

MOST = 40
"""Secrets of one job: their ARNs stand in one inline policy, which IAM limits to 10240 characters."""
_ARN = re.compile(r"^arn:aws:secretsmanager:([a-z0-9-]+):([0-9]{12}):secret:(.+)-[A-Za-z0-9]{6}$")
_NAME = re.compile(r"^[A-Za-z0-9/_+=.@-]{1,512}$")
_PARAMETER = re.compile(r"^(/[A-Za-z0-9_.-]+)+$|^[A-Za-z0-9_.-]+$")
_OF_AWS = ("/aws/", "/ssm/", "aws", "ssm")


def _names_a_secret(text: str) -> str:
    arn = _ARN.match(text)
    if not _NAME.match(arn.group(3) if arn else text):
        raise ValueError("is neither a secret's name nor its whole ARN, with the six characters at its end")
    return text


def _names_a_parameter(text: str) -> str:
    if not _PARAMETER.match(text) or text.lower().startswith(_OF_AWS):
        raise ValueError("is no name of a parameter of your own, such as /team/token")
    return text


class SecretSource(Section):
    """Give either `secret` or `parameter`. Its name says who may read it: that of a job's secret begins with
    `bivouac_job`, of a webhook's address with `bivouac_webhook`, of a registry's login with `bivouac_pull`."""

    secret: Annotated[str, AfterValidator(_names_a_secret)] | None = None
    """Name or whole ARN of a secret in Secrets Manager, in the campaign's account and region. Of a job in an existing
    cluster: the name of a Secret in its namespace."""
    key: str | None = Field(default=None, min_length=1)
    """Member of the secret's JSON, None: the whole text is the value. In an existing cluster the key of the Secret,
    None: the variable's name."""
    parameter: Annotated[str, AfterValidator(_names_a_parameter)] | None = None
    """Name of a parameter of Systems Manager, in the campaign's account and region."""

    @model_validator(mode="after")
    def _lies_in_one_place(self) -> Self:
        if (self.secret is None) == (self.parameter is None):
            raise ValueError("give either `secret` or `parameter`")
        if self.key is not None and self.secret is None:
            raise ValueError("`key` belongs to `secret`")
        return self

    @property
    def place(self) -> str:
        """Return the kind and name, for people."""
        return f"secret {self.secret}" if self.secret is not None else f"parameter {self.parameter}"

    @property
    def owner(self) -> tuple[str, str] | None:
        """Return the region and the account of an ARN; None for a name."""
        arn = _ARN.match(self.secret or "")
        return (arn.group(1), arn.group(2)) if arn else None

    def begins(self, beginning: str) -> bool:
        """Return True if its name, of a parameter without the first slash, begins so."""
        return (self.by_name().secret or (self.parameter or "").lstrip("/")).startswith(beginning)

    def by_name(self) -> Self:
        """Return the source without account and region."""
        arn = _ARN.match(self.secret or "")
        return self.model_copy(update={"secret": arn.group(3)}) if arn else self


class SecretSources(Frozen):
    """The file in a pod that says where its secrets lie."""

    region: str
    secrets: dict[str, SecretSource]
    """Name of the job's variable -> where its value lies."""
