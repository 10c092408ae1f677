"""One definition per kind of AWS resource, in the module of its service."""

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
"""Order of removal within a step."""
BY_NAME = {kind.name: kind for kind in KINDS}
BY_TYPE = {kind.type: kind for kind in KINDS if kind.type}


def kind_named(name: str) -> ResourceKind:
    """Return the definition of that name, or an empty definition if there is none."""
    return BY_NAME.get(name) or ResourceKind(name)


def kind_of_type(type: str) -> ResourceKind:
    """Return the definition of a Pulumi type, or an empty definition if there is none."""
    return BY_TYPE.get(type) or ResourceKind(type)


__all__ = [
    "BY_NAME", "BY_TYPE", "CLUSTER_TAG", "KINDS", "OWNED", "Checkpoints", "Remain", "ResourceKind", "Thing",
    "kind_named", "kind_of_type", "tags_of", "thing",
]  # fmt: skip
