"""Evidence that a resource is the campaign's: tag, name or place; or only its age, which makes it a suspect.

A tag, a place in the campaign's network and the log group's name that EKS derives from the cluster prove it. Kinship
(made from, attached to, using or mentioning something of the campaign) and a name that only we give are hints. A new
resource elsewhere, without a tag that names an owner, may be anybody's: a human is told, and nothing is removed.

Roles, policies and other account-wide resources may be those of a living campaign of the same name in another region:
the campaign's tag proves them only together with our region's tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from infra.kinds import CLUSTER_TAG, KINDS, OWNED, Thing, kind_named
from infra.spec.names import CAMPAIGN_TAG, FOUNDATION_TAG, REGION_TAG, Names


class Evidence(StrEnum):
    """Evidence that a resource is the campaign's, strongest first."""

    TAG = "campaign tag"
    CLUSTER = "cluster tag"
    PLACE = "in its network"
    LOGS = "its cluster's log group"
    UNPLACED = "its tag, of no known region"
    """A campaign tag without region (by an older version) or a cluster's tag, on an account-wide resource."""
    KIN = "made from or tied to what is its own"
    NAME = "name"


PROVES = frozenset({Evidence.TAG, Evidence.CLUSTER, Evidence.PLACE, Evidence.LOGS, Evidence.UNPLACED})
"""Enough to remove a resource after a yes; kinship or a name alone is not."""
_OWNERS = frozenset({CAMPAIGN_TAG, FOUNDATION_TAG, "eks:cluster-name", "aws:cloudformation:stack-id"})
_WEAK = frozenset({Evidence.UNPLACED, Evidence.NAME})
"""A resource with only this evidence makes no other one the campaign's."""
_SKEW = timedelta(minutes=1)
_SHOWN = 5


@dataclass(frozen=True)
class Suspicion:
    """A resource that only a human can attribute, and why it is shown."""

    kind: str
    thing: Thing
    why: str

    def __str__(self) -> str:
        return f"{self.kind} {self.thing.label}: {self.why}"


@dataclass(frozen=True)
class Knowledge:
    """Facts of the record, independent of Pulumi's state: the campaign's places, its time, and what was older."""

    names: Names
    places: frozenset[str] = frozenset()
    """The campaign's ids and role ARNs: VPC, subnets, groups, instances, file system."""
    began: datetime | None = None
    before: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Kind -> ids older than the campaign; a kind without entry was not listed then."""
    region: str = ""
    """Region of the record."""

    def evidence(self, kind: str, thing: Thing, places: frozenset[str], network: frozenset[str]) -> Evidence | None:
        """Return the strongest evidence that it is the campaign's. `places`: the known ones and findings so far;
        `network`: proven VPC and subnets."""
        names, tags = self.names, thing.tags
        if CAMPAIGN_TAG in tags:
            return self._by_tag(kind, thing)
        if FOUNDATION_TAG in tags:
            return None
        if kind_named(kind).remade_by_eks and thing.id == names.log_group and not self._made_earlier(kind, thing):
            return Evidence.LOGS
        # A resource older than the campaign may point at it and still be somebody else's.
        if self._is_older(kind, thing):
            return None
        if tags.get(f"{CLUSTER_TAG}{names.cluster}") == OWNED or tags.get("eks:cluster-name") == names.cluster:
            # A cluster's name is unique in its region only.
            return Evidence.UNPLACED if is_account_wide(kind, thing) else Evidence.CLUSTER
        if thing.id in self.places or thing.inside & network:
            return Evidence.PLACE
        if thing.mentions & places:
            return Evidence.KIN
        if any(is_ours(kind, text, names) for text in (thing.name, tags.get("Name", ""))):
            return Evidence.NAME
        return None

    def _by_tag(self, kind: str, thing: Thing) -> Evidence | None:
        if thing.tags[CAMPAIGN_TAG] != self.names.campaign:
            return None
        if not is_account_wide(kind, thing):
            return Evidence.TAG
        if self._is_older(kind, thing):
            return None
        if REGION_TAG not in thing.tags:
            return Evidence.UNPLACED
        return Evidence.TAG if thing.tags[REGION_TAG] == self.region else None

    def _made_earlier(self, kind: str, thing: Thing) -> bool:
        """Return whether this resource is older: one known by name alone may have been made again since."""
        if not self._is_older(kind, thing):
            return False
        return thing.created is None or self.began is None or thing.created < self.began

    def network(self, survey: Mapping[str, Iterable[Thing]]) -> frozenset[str]:
        """Return ids of the campaign's VPC and subnets: by its record, or by tag if provision never finished."""
        if any(id.startswith("vpc-") for id in self.places):
            return self.places
        networks = [kind.name for kind in KINDS if kind.network]
        new = (thing for kind in networks for thing in survey.get(kind, ()) if not self._is_older(kind, thing))
        return self.places | {thing.id for thing in new if thing.tags.get(CAMPAIGN_TAG) == self.names.campaign}

    def judge(self, survey: Mapping[str, Iterable[Thing]]) -> dict[str, list[tuple[Thing, Evidence]]]:
        """Return kind -> what is the campaign's, including chains of what was made from findings."""
        places, network = self.places, self.network(survey)
        while True:
            findings = {
                kind: [
                    (thing, proof)
                    for thing in things
                    if (proof := self.evidence(kind, thing, places, network)) is not None
                ]
                for kind, things in survey.items()
            }
            strong = {thing.id for rows in findings.values() for thing, proof in rows if proof not in _WEAK}
            if strong <= places:
                return findings
            places = places | strong

    def suspects(self, survey: Mapping[str, Iterable[Thing]]) -> list[Suspicion]:
        """Return what is new since the campaign began, is not proven the campaign's, and names no other owner, which
        may be a service of AWS. Parts of a foundation resource, such as the default group of its network, are the
        foundation's."""
        durable = {thing.id for things in survey.values() for thing in things if FOUNDATION_TAG in thing.tags}
        own_ids = {(kind, thing.id) for kind, rows in self.judge(survey).items() for thing, _ in rows}
        suspicions = []
        for kind, things in survey.items():
            for thing in things:
                has_owner = _names_owner(thing.tags) or bool(thing.mentions & durable) or bool(thing.maker)
                reason = None if (kind, thing.id) in own_ids or has_owner else self._suspicious(kind, thing)
                if reason is not None:
                    suspicions.append(Suspicion(kind, thing, reason))
        return suspicions

    def unread(self, survey: Mapping[str, Iterable[Thing]]) -> dict[str, str]:
        """Return kind -> new resources whose tags could not be read, which may be the campaign's, and why."""
        new_things = {
            kind: [thing for thing in things if not self._is_older(kind, thing)] for kind, things in survey.items()
        }
        return {kind: words for kind, things in new_things.items() if (words := unread_of(things))}

    def unread_before(self, kind: str, things: Iterable[Thing]) -> tuple[str, ...]:
        """Return resources with unreadable tags that are older than the campaign."""
        return tuple(thing.label for thing in things if thing.unread and self._is_older(kind, thing))

    def _is_older(self, kind: str, thing: Thing) -> bool:
        return thing.id in self.before.get(kind, frozenset())

    def _suspicious(self, kind: str, thing: Thing) -> str | None:
        """Return why it is a suspect. The baseline decides where there is one, not clocks: the driver's may have
        jumped."""
        if self._is_older(kind, thing):
            return None
        birth = "" if thing.created is None else f"made {thing.created:%Y-%m-%d %H:%M} UTC, "
        if kind not in self.before and (
            thing.created is None or self.began is None or thing.created < self.began - _SKEW
        ):
            return None
        tag_text = f"its tags could not be read ({thing.unread})" if thing.unread else _marks(thing.tags)
        return f"{birth or 'new '}since the campaign began, {tag_text}"


def is_account_wide(kind: str, thing: Thing) -> bool:
    """Return whether every region lists it: then its region's tag has to tell whose it is."""
    return kind_named(kind).account_wide or (thing.id.startswith("arn:") and thing.id.split(":")[3] == "")


def is_ours(kind: str, text: str, names: Names) -> bool:
    """Return whether the text is a name that the campaign gives to this kind, or that EKS derives from one."""
    if text in names.given(kind) or text == names.log_group:
        return True
    base_kind, prefix, suffix = kind_named(kind).eks_names
    return any(re.fullmatch(re.escape(prefix + name) + suffix, text) for name in names.given(base_kind))


def unread_of(things: Iterable[Thing]) -> str:
    """Return which resources have unreadable tags, and why; empty if none."""
    unreadable = [thing for thing in things if thing.unread]
    if not unreadable:
        return ""
    labels = ", ".join(thing.label for thing in unreadable[:_SHOWN]) + (
        f" and {len(unreadable) - _SHOWN} more" if len(unreadable) > _SHOWN else ""
    )
    return f"{', '.join(sorted({thing.unread for thing in unreadable}))}: the tags of {labels}"


def _names_owner(tags: Mapping[str, str]) -> bool:
    """Return whether the tags name an owner: a campaign, the foundation, a cluster or a CloudFormation stack."""
    return any(key in _OWNERS or (key.startswith(CLUSTER_TAG) and value == OWNED) for key, value in tags.items())


def _marks(tags: Mapping[str, str]) -> str:
    if not tags:
        return "without a tag"
    return "with no tag that names an owner: " + ", ".join(f"{key}={value}" for key, value in sorted(tags.items()))
