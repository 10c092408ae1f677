"""One definition per kind of AWS resource: all that Bivouac knows of a kind stands in it."""

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
"""As the program gave them and the plugin completed them; what the program leaves to AWS is not among them."""
Find = Callable[[Account, Inputs], list[str]]
"""Ids, as the provider writes them, of what has these inputs; the newest attempt's is not told from older ones."""
Ask = Callable[[Account, Sequence[str]], set[str]]
"""Those of several ARNs that still are. Raises what AWS answers otherwise."""
Status = Callable[[Account, str], str]
"""AWS's word for how far what has this id is; empty where it is not."""
Price = Callable[[Mapping[str, Any]], Decimal | None]
"""USD by the hour, from an item of a listing; None where it bills and the catalogue has no price."""


def unpriced(item: Mapping[str, Any]) -> None:
    """The price of what bills, by the GB and month mostly, and has none in the catalogue."""


class Step(IntEnum):
    """The order of removal: what starts, holds or uses other things goes before them."""

    STARTERS = auto()
    SCALERS = auto()
    CLUSTERS = auto()
    MACHINES = auto()
    SERVICES = auto()
    """They make network interfaces of their own."""
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
    """What a kind means to checkpoints that lie in a campaign."""

    HOLDS = auto()
    """They may lie in it."""
    READS = auto()
    """They may not be read any more without it."""
    FREE = auto()
    """None outlives its campaign in it, and a file system can be read without it; such kinds bill most."""


@dataclass(frozen=True)
class Remain:
    """One thing that is left, why, and what to do about it."""

    what: str
    why: str
    do: str
    ours: bool = False
    """Provably the campaign's."""
    waits: bool = False
    """It only waits for something else to go."""

    def __str__(self) -> str:
        return f"{self.what} is left: {self.why}; {self.do}"


@dataclass(frozen=True)
class ResourceKind:
    """A kind of AWS resource. What a field leaves empty is not known of the kind, or does not apply to it."""

    name: str
    """As the certificate and all messages call it."""
    service: str = ""
    arn: re.Pattern[str] | None = None
    """Found in the ARN of each, as the tagging service shows it."""

    # What exists, and whose it is.
    list: Callable[[Account], Iterator[Thing]] | None = None
    """Each of the account and region that is there, by AWS's word alone."""
    ask: Ask | None = None
    """For kinds whose tags the tagging service alone shows: it also shows what was deleted."""
    batch: int = 1
    """How many ARNs one `ask` takes."""
    attributable: bool = True
    """Something new and untagged of this kind is worth a human's look."""
    account_wide: bool = False
    """Every region lists it alike, so its region's tag has to tell whose it is."""
    network: bool = False
    """What lies in it is its owner's."""
    eks_names: tuple[str, str, str] = ("", "", "")
    """Of which kind's names EKS makes its own, what it puts before them, and the fixed form of what it puts after, so
    that where the campaign's name ends is never in doubt."""
    remade_by_eks: bool = False
    """EKS makes it again, without tags, when its cluster ends: its name alone proves whose it is."""

    # How it ends.
    remove: Callable[[Account, Thing], None] | None = None
    step: Step = Step.STORES
    checkpoints: Checkpoints = Checkpoints.READS
    price: Price = lambda item: Decimal(0)
    remains: Callable[[Account, Names], Iterator[Remain]] | None = None
    """What of this kind keeps a teardown from its end."""
    held_by: tuple[str, ...] = ()
    """Kinds that most likely keep it from going."""

    # How a stack makes it, and what becomes of a creation whose end nobody saw: exactly one of three.
    type: str = ""
    """Pulumi's: `aws:ec2/vpc:Vpc`."""
    find: Find | None = None
    """It is found again, and adopted."""
    remake: Callable[[Account, Inputs], bool] | None = None
    """It is removed, to be made anew; returns whether there was something to remove."""
    made_over: bool = False
    """It puts a setting: done twice is done once."""
    id_output: str = ""
    """The output by which its plugin reads it, beside the id."""
    status: Status | None = None
    """Of kinds that take their time."""
    holds_state: bool = False
    """It holds a campaign's state, or carries what does: it is never replaced while the campaign lives."""

    def things(self, account: Account) -> Iterator[Thing]:
        """Each that there is; none of a kind that nobody lists."""
        return iter(()) if self.list is None else self.list(account)
