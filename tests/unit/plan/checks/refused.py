"""A row of what a rule refuses, and the shapes that rows are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from infra.plan.catalogue.quotas import Quota
from infra.plan.checks import Level
from infra.plan.facts import BaseImage, Facts, QuotaRoom, Unsuitable, Zone

FRESH = date(2026, 8, 1)
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
NO_WAY_OUT = {**ON_AWS, "network.egress": "endpoints"}
PRIVATE = {"network.api_endpoint": "private", "network.api_allowed_cidrs": []}
DRIVER = {"vpc_id": "vpc-0123456789abcdef0", "cidr": "10.7.0.0/16", "route_table_ids": ["rtb-0123456789abcdef0"]}
HUGE = {"layers": 96, "width": 12288, "heads": 96, "context": 2048, "vocabulary": 50304}


@dataclass(frozen=True)
class Row:
    rule: str
    level: Level
    field: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    facts: Callable[[Facts], Facts] | None = None
    today: date = FRESH
    cure: str = ""
    """What the cure must mention."""

    def __str__(self) -> str:
        return f"{self.rule}-{'-'.join(str(value)[:20] for value in self.changes.values()) or 'facts'}"


def quota(vcpus: int) -> Callable[[Facts], Facts]:
    def bend(facts: Facts) -> Facts:
        offers = tuple(offer.model_copy(update={"quota_vcpus": vcpus}) for offer in facts.offers)
        return facts.model_copy(update={"offers": offers})

    return bend


def full(code: str, field: str) -> Callable[[Facts], Facts]:
    """One quota of the account, of which one place is left where two are wanted."""
    room = QuotaRoom(quota=Quota(code=code, name="a quota"), field=field, allowed=5, used=4, wanted=2)
    return lambda facts: facts.model_copy(update={"quotas": (room,)})


def zones(*known: str) -> Callable[[Facts], Facts]:
    """The account's zones, each as `name=id`."""
    found = tuple(Zone(name=name, id=zone_id) for name, _, zone_id in (one.partition("=") for one in known))
    return lambda facts: facts.model_copy(update={"zones": found})


def tokens(count: int | None) -> Callable[[Facts], Facts]:
    """So many tokens to train on, as prepared; the base spec trains 102,400: 100 steps x 8 samples x 128."""
    return lambda facts: facts.model_copy(
        update={"data": facts.data.model_copy(update={"tokens": count, "prepared": True})}
    )


def no_base(facts: Facts) -> Facts:
    refused = Unsuitable(what="the registry lacks the base image", seen="bivouac/base:host", cure="docker push")
    return facts.model_copy(update={"base": refused})


def no_node_image(facts: Facts) -> Facts:
    refused = Unsuitable(what="the account sees no such AMI", seen="ami-1 in us-east-1", cure="write nodes: eks")
    return facts.model_copy(update={"node_image": refused})


def base(published: date, *newer: str) -> Callable[[Facts], Facts]:
    """The base of the node image, and what AWS has published since."""
    image = BaseImage(ami="ami-1", name=f"eks-v{published:%Y%m%d}", published=published, newer=newer)
    return lambda facts: facts.model_copy(update={"node_base": image})


def sold(**types: str) -> Callable[[Facts], Facts]:
    """Type, with _ for its dot -> zones that sell it."""
    found = {name.replace("_", "."): tuple(zones.split()) for name, zones in types.items()}
    return lambda facts: facts.model_copy(update={"sold": found})


def no_place(facts: Facts) -> Facts:
    refused = Unsuitable(what="the reservation will never be active", seen="cr-1 is cancelled", cure="make another one")
    return facts.model_copy(update={"reservation": refused})


def undated(facts: Facts) -> Facts:
    """EKS has not told until when it supports its newest version."""
    support = facts.kubernetes
    until = {**support.standard_until, "1.36": None}
    return facts.model_copy(update={"kubernetes": support.model_copy(update={"standard_until": until})})


def account(account: str) -> Callable[[Facts], Facts]:
    return lambda facts: facts.model_copy(update={"account": account})


E, W, I = Level.ERROR, Level.WARNING, Level.INFO  # noqa: E741
