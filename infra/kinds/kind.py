"""Types of the definition of a kind of AWS resource."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum, auto
from typing import Any

from infra.aws.account import Account
from infra.kinds.thing import Thing
from infra.spec.names import Names

Inputs = Mapping[str, Any]
"""Inputs from the program, completed by the plugin; values that the program leaves to AWS are absent."""
Find = Callable[[Account, Inputs], list[str]]
"""Returns provider ids of resources with these inputs; resources of older attempts are included."""
Ask = Callable[[Account, Sequence[str]], set[str]]
"""Returns those of several ARNs that exist; raises AWS's other errors."""
Status = Callable[[Account, str], str]
"""Returns AWS's status of the resource with this id; empty if it does not exist."""
Price = Callable[[Mapping[str, Any]], Decimal | None]
"""Returns USD per hour of a listed item; None if it bills but the catalogue has no price."""


def no_price(item: Mapping[str, Any]) -> None:
    """Price of a kind that bills, mostly by GB and month, and is not in the catalogue."""


class Step(IntEnum):
    """Order of removal: resources that start, hold or use others are removed before them."""

    STARTERS = auto()
    SCALERS = auto()
    CLUSTERS = auto()
    MACHINES = auto()
    SERVICES = auto()
    """Resources that create network interfaces."""
    INTERFACES = auto()
    ADDRESSES = auto()
    IMAGES = auto()
    SNAPSHOTS = auto()
    VOLUMES = auto()
    LAUNCH_SETTINGS = auto()
    FIREWALLS = auto()
    ROUTES = auto()
    SUBNETS = auto()
    NETWORKS = auto()
    PROFILES = auto()
    ROLES = auto()
    POLICIES = auto()
    RECORDS = auto()
    STORES = auto()


class Checkpoints(Enum):
    """Role of a kind for a campaign's checkpoints."""

    HOLDS = auto()
    """Checkpoints may be stored in it."""
    READS = auto()
    """Checkpoints may be unreadable without it."""
    FREE = auto()
    """It stores none that outlive the campaign, and file systems can be read without it. These kinds bill most."""


@dataclass(frozen=True)
class Remain:
    """A resource that is left, with the reason and the cure."""

    what: str
    why: str
    do: str
    ours: bool = False
    """It provably belongs to the campaign."""
    waits: bool = False
    """It only waits for the deletion of something else."""

    def __str__(self) -> str:
        return f"{self.what} is left: {self.why}; {self.do}"


@dataclass(frozen=True)
class ResourceKind:
    """A kind of AWS resource. An empty field is unknown or does not apply."""

    name: str
    """Name in the certificate and in all messages."""
    service: str = ""
    arn: re.Pattern[str] | None = None
    """Pattern in each resource's ARN, as the tagging service returns it."""

    # Existence and ownership.
    list: Callable[[Account], Iterator[Thing]] | None = None
    """Yields all existing resources of account and region, from AWS alone."""
    ask: Ask | None = None
    """For kinds whose tags only the tagging service lists; it also lists deleted resources."""
    batch: int = 1
    """Number of ARNs in one `ask`."""
    attributable: bool = True
    """A person should look at a new, untagged resource of this kind."""
    account_wide: bool = False
    """Listed alike in every region, so the region's tag tells the owner."""
    network: bool = False
    """Resources inside it belong to its owner."""
    eks_names: tuple[str, str, str] = ("", "", "")
    """(kind whose names EKS uses, EKS's prefix, pattern of EKS's suffix); the fixed form of the suffix shows where the
    campaign's name ends."""
    remade_by_eks: bool = False
    """EKS creates it again without tags when its cluster is deleted: its name alone proves the owner."""

    # Removal.
    remove: Callable[[Account, Thing], None] | None = None
    step: Step = Step.STORES
    checkpoints: Checkpoints = Checkpoints.READS
    price: Price = lambda item: Decimal(0)
    remains: Callable[[Account, Names], Iterator[Remain]] | None = None
    """Yields resources of this kind that prevent the end of a teardown."""
    held_by: tuple[str, ...] = ()
    """Kinds that most likely prevent its deletion."""

    # Creation by a stack. Exactly one of `find`, `remake` and `made_over` handles an interrupted creation.
    type: str = ""
    """Pulumi's type, such as `aws:ec2/vpc:Vpc`."""
    find: Find | None = None
    """Finds it, so that it is adopted."""
    remake: Callable[[Account, Inputs], bool] | None = None
    """Removes it, so that it is created again; returns True if there was something to remove."""
    made_over: bool = False
    """It sets a value, so creating it again has no further effect."""
    id_output: str = ""
    """Output by which its plugin reads it, besides the id."""
    status: Status | None = None
    """For kinds with slow operations."""
    holds_state: bool = False
    """It holds a campaign's state or what does: it is never replaced while the campaign exists."""

    def things(self, account: Account) -> Iterator[Thing]:
        """Yield existing resources; none for a kind without a listing."""
        return iter(()) if self.list is None else self.list(account)
