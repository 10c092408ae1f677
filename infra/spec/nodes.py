"""The sections `nodes` and `money` of the spec: how many machines, how they are bought, and for how much."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from infra.spec.duration import Duration
from infra.spec.section import Section
from infra.spec.sections import Capacity


class Money(Section):
    budget_usd: Decimal = Field(gt=0)
    """Most that the campaign may cost. The steward stops while the rest still pays for the archive."""
    deadline: Duration = timedelta(days=7)
    """Longest time from the first `bivouac run`; in a capacity block, from an hour before it at most. Then AWS sets the
    GPU node group to zero."""
    alarm_email: str | None = None
    """Address that AWS Budgets writes to."""
    alarm_topic_arn: Annotated[str, Field(pattern=r"^arn:aws:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+$")] | None = None
    """An SNS topic for alarms instead of the campaign's own. Its policy must let AWS Budgets publish."""
    freeze_roles: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_+=,.@-]{1,64}$")], ...] = ()
    """Names (without path) of IAM roles, such as a CI's role, that may buy nothing more once AWS counts the budget as
    spent. They may still tear down. A person, or the campaign's own teardown, lifts the freeze."""


class Nodes(Section):
    count: int = Field(ge=1)
    """Number of GPU nodes; all of them train."""
    instance_type: str
    """EC2 instance type of the GPU nodes; `bivouac catalogue` lists the known ones. In an existing cluster the type
    with the same accelerators."""
    capacity: Capacity = Capacity.ON_DEMAND
    """Purchase option of the GPU nodes."""
    reservation_id: str | None = None
    """Capacity bought beforehand: `cr-...`, a reservation or a capacity block. For reservations also the ARN of a
    resource group that holds several, or `open`: any open reservation that matches, and no other capacity."""
    block_end: AwareDatetime | None = None
    """End of the capacity block, as `bivouac block buy` prints it. Check and plan use it because they make no requests;
    a run uses the time that AWS reports."""
    placement_group: bool | None = None
    """Put the nodes into a cluster placement group. None: if AWS allows and advises it."""
    ranks_per_node: int | None = Field(default=None, ge=1)
    """Training processes on each node. None: one per accelerator."""
    block_fee_usd: Decimal | None = Field(default=None, gt=0)
    """Price of the whole capacity block, paid at once. Its unused hours count too."""
    usd_per_hour: Decimal | None = Field(default=None, ge=0)
    """Price of one node if the catalogue has none: a capacity block's fee / (nodes x hours), or a private price."""
    system_instance_type: str = "m7i.large"
    """EC2 instance type of the system nodes, which run the steward and the cluster's own pods."""
    system_count: Literal[1, 2] = 1
    """Number of system nodes. With 2, a second steward stands by on the other node and takes over within half a minute
    when the first one's node dies. With 1, the steward returns minutes later, on a new node of the node group."""
