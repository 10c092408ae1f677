"""The specs that rules refuse, as `refused_*.yaml` has them: changes of the base spec and of what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from infra.plan.catalogue.quotas import Quota
from infra.plan.checks import Level
from infra.plan.facts import BaseImage, Facts, QuotaRoom, Unsuitable, Zone
from tests import tables
from tests.root import ROOT
from tests.unit.plan.checks.existing_network import BUILDERS, EXISTING_VPC, existing, place

Changes = dict[str, Any]
Bend = Callable[[Facts], Facts]
FRESH = date(2026, 8, 1)
HERE = Path(__file__).parent
P5EN_BLOCK = {
    "nodes.instance_type": "p5en.48xlarge",
    "nodes.capacity": "capacity-block",
    "nodes.reservation_id": "cr-0123456789abcdef0",
    "nodes.usd_per_hour": "41.61",
    "nodes.block_fee_usd": "1997.28",
    "training.global_batch": 64,
    "money.budget_usd": 5000,
}
PERSISTENT_EFA = {"storage.shared.efa": True, "storage.shared.throughput_mbs_per_tib": 1000, "money.budget_usd": 500}
ON_AWS = {"target": "aws", "rehearsal": None}
PRIVATE = {"network.api_endpoint": "private", "network.api_allowed_cidrs": []}
DRIVER = {"vpc_id": "vpc-0123456789abcdef0", "cidr": "10.7.0.0/16", "route_table_ids": ["rtb-0123456789abcdef0"]}
HUGE = {"layers": 96, "width": 12288, "heads": 96, "context": 2048, "vocabulary": 50304}
BASES: dict[str, Changes] = {
    "builders": BUILDERS,
    "driver": {"network.driver_vpc": DRIVER},
    "existing-vpc": EXISTING_VPC,
    "huge-model": {"training.model": HUGE},
    "no-way-out": {**ON_AWS, "network.egress": "endpoints"},
    "on-aws": ON_AWS,
    "p5en-block": P5EN_BLOCK,
    "persistent-efa": PERSISTENT_EFA,
    "private": PRIVATE,
}
"""Changes that several rows begin with: a row names them under `base`, and under `without` what it leaves out."""


@dataclass(frozen=True)
class Refusal:
    """What a rule refuses, at which level and field, and what the cure must mention."""

    rule: str
    level: Level
    field: str
    changes: Changes
    facts: Bend | None
    today: date
    cure: str

    def __str__(self) -> str:
        return f"{self.rule}-{'-'.join(str(value)[:20] for value in self.changes.values()) or 'facts'}"


def refusals() -> Iterator[Refusal]:
    """Yield every row of the tables beside this module. Raise `TypeError` for a key that no row has."""
    for path in sorted(HERE.glob("refused_*.yaml")):
        for rule, rows in tables.read(path).items():
            for row in rows:
                (level,) = set(row) & set(Level)
                yield refusal(rule, Level(level), row.pop(level), **row)


def refusal(
    rule: str, level: Level, field: str, *, facts: Any = None, today: date = FRESH, cure: str = "", **changed: Any
) -> Refusal:
    """Return one row as it is written: `facts` is a name of `FACTS`, or such a name -> its arguments."""
    if isinstance(facts, dict):
        ((name, arguments),) = facts.items()
        bend = FACTS[name](**arguments) if isinstance(arguments, dict) else FACTS[name](*arguments)
    else:
        bend = FACTS[facts] if facts else None
    return Refusal(rule, level, field, changes_of(**changed), bend, today, cure)


def changes_of(base: str | Sequence[str] = (), without: Sequence[str] = (), changes: Changes | None = None) -> Changes:
    """Return changes of the base spec: those of `BASES`, less some of them, and those of the row."""
    whole: Changes = {}
    for name in [base] if isinstance(base, str) else base:
        whole |= BASES[name]
    return {key: value for key, value in whole.items() if key not in without} | _in_clone(changes or {})


def _in_clone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_clone(inner) for key, inner in value.items()}
    return value.replace("{clone}", str(ROOT)) if isinstance(value, str) else value


def quota(vcpus: int) -> Bend:
    def bend(facts: Facts) -> Facts:
        offers = tuple(offer.model_copy(update={"quota_vcpus": vcpus}) for offer in facts.offers)
        return facts.model_copy(update={"offers": offers})

    return bend


def full(code: str, field: str) -> Bend:
    """One quota of the account, of which one place is left where two are wanted."""
    room = QuotaRoom(quota=Quota(code=code, name="a quota"), field=field, allowed=5, used=4, wanted=2)
    return lambda facts: facts.model_copy(update={"quotas": (room,)})


def zones(*known: str) -> Bend:
    """The account's zones, each as `name=id`."""
    listed = tuple(Zone(name=name, id=zone_id) for name, _, zone_id in (zone.partition("=") for zone in known))
    return lambda facts: facts.model_copy(update={"zones": listed})


def tokens(count: int | None) -> Bend:
    """So many tokens to train on, as prepared; the base spec trains 102,400: 100 steps x 8 samples x 128."""
    return lambda facts: facts.model_copy(
        update={"data": facts.data.model_copy(update={"tokens": count, "prepared": True})}
    )


def unsuitable(field: str, what: str, seen: str, cure: str) -> Bend:
    """A look-up that ended in a refusal."""
    return lambda facts: facts.model_copy(update={field: Unsuitable(what=what, seen=seen, cure=cure)})


def unlinkable(name: str, cure: str) -> Bend:
    """A mount whose bucket FSx would not link."""
    refusal = Unsuitable(what="FSx links a bucket only for who may read it", seen="refused", cure=cure)
    return lambda facts: facts.model_copy(update={"links": {name: refusal}})


def base(published: date, *newer: str) -> Bend:
    """The base of the node image, and what AWS has published since."""
    image = BaseImage(ami="ami-1", name=f"eks-v{published:%Y%m%d}", published=published, newer=newer)
    return lambda facts: facts.model_copy(update={"node_base": image})


def sold(**types: str) -> Bend:
    """Type, with _ for its dot -> zones that sell it."""
    by_type = {name.replace("_", "."): tuple(zones.split()) for name, zones in types.items()}
    return lambda facts: facts.model_copy(update={"sold": by_type})


def undated(facts: Facts) -> Facts:
    """EKS has not told until when it supports its newest version."""
    support = facts.kubernetes
    until = {**support.standard_until, "1.36": None}
    return facts.model_copy(update={"kubernetes": support.model_copy(update={"standard_until": until})})


def account(account: str) -> Bend:
    return lambda facts: facts.model_copy(update={"account": account})


FACTS: dict[str, Callable[..., Any]] = {
    "account": account,
    "base": base,
    "existing": existing,
    "first_token": lambda token: lambda facts: facts.model_copy(update={"first_token": token}),
    "full": full,
    "no_base": unsuitable("base", "the registry lacks the base image", "bivouac/base:host", "docker push"),
    "no_node_image": unsuitable("node_image", "the account sees no such AMI", "ami-1 in us-east-1", "write nodes: eks"),
    "no_place": unsuitable(
        "reservation", "the reservation will never be active", "cr-1 is cancelled", "make another one"
    ),
    "place": place,
    "quota": quota,
    "sold": sold,
    "tokens": tokens,
    "undated": undated,
    "unlinkable": unlinkable,
    "zones": zones,
}
REFUSED = tuple(refusals())
PASSED = tuple(changes_of(**row) for row in tables.read(HERE / "passed.yaml")["passed"])
