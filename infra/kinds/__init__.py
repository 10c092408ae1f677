"""All that Bivouac knows of each kind of AWS resource: one definition per kind, in the module of its service."""

from infra.kinds import (
    balancing,
    budgets,
    compute,
    eks,
    foundation,
    fsx,
    iam,
    monitoring,
    network,
    s3,
    schedules,
    security_groups,
)
from infra.kinds.kind import Checkpoints, Remain, ResourceKind
from infra.kinds.thing import CLUSTER_TAG, OWNED, Thing, tags_of, thing

_SERVICES = (
    schedules, compute, eks, balancing, fsx, network, security_groups, iam, budgets, monitoring, s3, foundation,
)  # fmt: skip
KINDS: tuple[ResourceKind, ...] = tuple(kind for service in _SERVICES for kind in service.KINDS)
"""What is removed in the same step goes in this order."""
BY_NAME = {kind.name: kind for kind in KINDS}
BY_TYPE = {kind.type: kind for kind in KINDS if kind.type}


def kind_named(name: str) -> ResourceKind:
    """The definition of that name; one that knows nothing where there is none."""
    return BY_NAME.get(name) or ResourceKind(name)


def kind_of_type(type: str) -> ResourceKind:
    """The definition of Pulumi's type; one that knows nothing where there is none."""
    return BY_TYPE.get(type) or ResourceKind(type)


__all__ = [
    "BY_NAME", "BY_TYPE", "CLUSTER_TAG", "KINDS", "OWNED", "Checkpoints", "Remain", "ResourceKind", "Thing",
    "kind_named", "kind_of_type", "tags_of", "thing",
]  # fmt: skip
