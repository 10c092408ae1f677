"""The permissions boundaries: the most that our roles may do, whatever policies they have.

They grant nothing: a role may do what both its own policies and its boundary allow. Operators may make roles only under
the campaigns' boundary, and can neither change nor remove it (`infra/ci/operator/rights.json`). IAM has no condition on
a role's trust or on the content of its policies, so an operator can make a role of any name, trust itself, and assume
it: whatever the boundary allows is the operator's. What is other people's must therefore opt in, by a name or a tag
that no operator can give (decision 0029). Besides our own statements the boundaries hold those of AWS's policies for
clusters, nodes, the CNI and SSM's agent, as of November 2026:
https://docs.aws.amazon.com/aws-managed-policy/latest/reference/policy-list.html
No Pulumi here.
"""

from __future__ import annotations

from infra.spec.names import boundary
from infra.stack.access.policies import AccountPlace, Statement
from infra.stack.access.rights import rights


def ceiling(place: AccountPlace) -> list[Statement]:
    """Return all that a campaign's role may be allowed."""
    return rights("ceiling", place)


def foundation_ceiling(place: AccountPlace) -> list[Statement]:
    """Return all that the foundation's own roles may be allowed: its builders, who ends them, and the closer, which
    also ends instances."""
    return [*rights("foundation_ceiling", place), *rights("closers_ceiling", place)]


def boundary_arn(place: AccountPlace) -> str:
    return f"arn:aws:iam::{place.account}:policy/{boundary(place.region)}"
