"""The foundation's limiting policies: the boundaries of the campaigns' and of its own roles, and the freeze."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws
from pulumi import ResourceOptions

from infra.spec.names import boundary, foundation_boundary, freeze_policy
from infra.stack.access.ceiling import ceiling, foundation_ceiling
from infra.stack.access.freeze import no_purchases
from infra.stack.access.policies import AccountPlace, document


class Limits(pulumi.ComponentResource):
    """`boundary` of campaigns' roles, `own` of the foundation's, and `freeze`, which a spent budget attaches to roles.
    Operators cannot write its content: a policy that is attached to somebody's role must not be able to grant
    anything."""

    def __init__(self, where: AccountPlace, opts: ResourceOptions | None = None) -> None:
        super().__init__("bivouac:infra:Limits", "limits", None, opts)
        child = ResourceOptions(parent=self)
        self.boundary = aws.iam.Policy(
            "boundary",
            name=boundary(where.region),
            description="The most that a role of Bivouac's campaigns may do; grants nothing",
            policy=document(ceiling(where)),
            opts=child,
        )
        self.own = aws.iam.Policy(
            "foundation-boundary",
            name=foundation_boundary(where.region),
            description="The most that Bivouac's builders and closer may do; grants nothing",
            policy=document(foundation_ceiling(where)),
            opts=child,
        )
        self.freeze = aws.iam.Policy(
            "freeze",
            name=freeze_policy(where.region),
            description="A campaign has spent its budget: nothing new is bought",
            policy=document(no_purchases()),
            opts=child,
        )
        self.register_outputs({"boundary": self.boundary.arn})
