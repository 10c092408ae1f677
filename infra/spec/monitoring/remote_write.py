"""The spec's `addons.remote_write`: a place outside of the cluster that also gets the series, as they are scraped."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, model_validator

from infra.spec.section import Section

_AMP = re.compile(
    r"^https://aps-workspaces\.(?P<region>[a-z0-9-]+)\.amazonaws\.com/workspaces/[^/]+/api/v1/remote_write$"
)


class RemoteWrite(Section):
    """A place outside of the cluster that also gets the series. A rehearsal writes nowhere: its series are no
    measurement of anybody's cluster."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")]
    """Where Prometheus writes to, such as https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write
    of Amazon Managed Prometheus, or an endpoint of your network. A login in it is refused: a spec holds no secret."""
    role: Annotated[str, Field(pattern=r"^arn:aws:iam::[0-9]{12}:role/bivouac-[A-Za-z0-9+=,.@_-]+$")] | None = None
    """Role with `aps:RemoteWrite` on the workspace, which trusts `pods.eks.amazonaws.com` for `sts:AssumeRole` and
    `sts:TagSession`. The cluster lends it to Prometheus, and each request is signed (SigV4). Its name begins with
    `bivouac-`: the operator may lend no other. Amazon Managed Prometheus needs it."""
    all_series: bool = False
    """Write all series of all exporters. By default those that dashboards and alerts read: each sample is billed."""

    @property
    def region(self) -> str | None:
        """Return the region of a workspace of Amazon Managed Prometheus; None of another endpoint."""
        workspace = _AMP.match(self.url)
        return workspace["region"] if workspace else None

    @model_validator(mode="after")
    def _signs_for_amazon_alone(self) -> Self:
        if (self.region is None) != (self.role is None):
            raise ValueError("`role` and the address of a workspace of Amazon Managed Prometheus belong together")
        return self
