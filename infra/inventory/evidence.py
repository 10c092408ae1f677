"""What makes a thing the campaign's: its tag, its name, its place; or what makes it suspect: only its time.

A tag, or a place in the campaign's own network, proves it, and so does the one name that EKS gives to a cluster's log
group. Kinship (made from, attached to, using or speaking of something of the campaign's) and a name that only we would
give speak for it. What is new, lies elsewhere and has no tag that names an
owner may be anybody's: a human is told, and nothing is removed.

Roles, policies and whatever else is the account's and no region's may be those of a campaign of the same name in
another region, which lives: there the campaign's tag proves only beside the tag of our region.
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
    """Why a thing is the campaign's; in the order of their weight."""

    TAG = "campaign tag"
    CLUSTER = "cluster tag"
    PLACE = "in its network"
    LOGS = "its cluster's log group"
    UNPLACED = "its tag, of no known region"
    """On what all regions share: a campaign tag by a version that did not tag the region, or a cluster's."""
    KIN = "made from or tied to what is its own"
    NAME = "name"


PROVES = frozenset({Evidence.TAG, Evidence.CLUSTER, Evidence.PLACE, Evidence.LOGS, Evidence.UNPLACED})
"""Enough to remove a thing after a yes; kinship or a name alone is not."""
_OWNERS = frozenset({CAMPAIGN_TAG, FOUNDATION_TAG, "eks:cluster-name", "aws:cloudformation:stack-id"})
_WEAK = frozenset({Evidence.UNPLACED, Evidence.NAME})
"""What carries no more than these makes nothing else the campaign's."""
_SKEW = timedelta(minutes=1)
_SHOWN = 5


@dataclass(frozen=True)
class Suspicion:
    """A thing that nobody can attribute but a human, and why it is shown."""

    kind: str
    thing: Thing
    why: str

    def __str__(self) -> str:
        return f"{self.kind} {self.thing.label}: {self.why}"


@dataclass(frozen=True)
class Knowledge:
    """What the record tells of the campaign, independent of Pulumi's state: where it was, when, and what was before."""

    names: Names
    places: frozenset[str] = frozenset()
    """Ids and role ARNs that were the campaign's: VPC, subnets, groups, instances, file system."""
    began: datetime | None = None
    before: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Kind -> ids that were there before the campaign began; a kind without entry was not looked at then."""
    region: str = ""
    """Where the record lies."""

    def evidence(self, kind: str, thing: Thing, places: frozenset[str], network: frozenset[str]) -> Evidence | None:
        """The weightiest evidence that it is the campaign's.

        `places` are the known ones and what was found so far; `network`: VPC and subnets that are proven.
        """
        names, tags = self.names, thing.tags
        if CAMPAIGN_TAG in tags:
            return self._by_tag(kind, thing)
        if FOUNDATION_TAG in tags:
            return None
        if kind_named(kind).remade_by_eks and thing.id == names.log_group and not self._older(kind, thing):
            return Evidence.LOGS
        # What was there before the campaign began may point at it, and is somebody else's all the same.
        if self._known(kind, thing):
            return None
        if tags.get(f"{CLUSTER_TAG}{names.cluster}") == OWNED or tags.get("eks:cluster-name") == names.cluster:
            # A cluster has its name in its region only.
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
        if self._known(kind, thing):
            return None
        if REGION_TAG not in thing.tags:
            return Evidence.UNPLACED
        return Evidence.TAG if thing.tags[REGION_TAG] == self.region else None

    def _older(self, kind: str, thing: Thing) -> bool:
        """Whether the very same was there before: what is known by its name alone may have been made again since."""
        if not self._known(kind, thing):
            return False
        return thing.created is None or self.began is None or thing.created < self.began

    def network(self, seen: Mapping[str, Iterable[Thing]]) -> frozenset[str]:
        """Ids of VPC and subnets that are the campaign's: those of its record; where provision never finished and so
        recorded none, those with its tag that were not there before."""
        if any(id.startswith("vpc-") for id in self.places):
            return self.places
        networks = [kind.name for kind in KINDS if kind.network]
        new = (one for kind in networks for one in seen.get(kind, ()) if not self._known(kind, one))
        return self.places | {one.id for one in new if one.tags.get(CAMPAIGN_TAG) == self.names.campaign}

    def judge(self, seen: Mapping[str, Iterable[Thing]]) -> dict[str, list[tuple[Thing, Evidence]]]:
        """Kind -> what is the campaign's. What was made from a found thing is found too, however long the chain."""
        places, network = self.places, self.network(seen)
        while True:
            found = {
                kind: [(one, why) for one in things if (why := self.evidence(kind, one, places, network)) is not None]
                for kind, things in seen.items()
            }
            strong = {one.id for rows in found.values() for one, why in rows if why not in _WEAK}
            if strong <= places:
                return found
            places = places | strong

    def suspects(self, seen: Mapping[str, Iterable[Thing]]) -> list[Suspicion]:
        """What is new since the campaign began, is not the campaign's by any evidence, and names no other owner.

        What belongs to a thing of the foundation, as the default group of its network does, is the foundation's.
        """
        durable = {one.id for things in seen.values() for one in things if FOUNDATION_TAG in one.tags}
        found = {(kind, one.id) for kind, rows in self.judge(seen).items() for one, _ in rows}
        suspicions = []
        for kind, things in seen.items():
            for one in things:
                theirs = _owned(one.tags) or bool(one.mentions & durable)
                why = None if (kind, one.id) in found or theirs else self._suspicious(kind, one)
                if why is not None:
                    suspicions.append(Suspicion(kind, one, why))
        return suspicions

    def unread(self, seen: Mapping[str, Iterable[Thing]]) -> dict[str, str]:
        """Kind -> of which new things, which may be the campaign's, the tags could not be read, and why."""
        several = {kind: [one for one in things if not self._known(kind, one)] for kind, things in seen.items()}
        return {kind: words for kind, things in several.items() if (words := unread_of(things))}

    def unread_before(self, kind: str, things: Iterable[Thing]) -> tuple[str, ...]:
        """Whose tags could not be read, and need not be: it was there before the campaign made anything."""
        return tuple(one.label for one in things if one.unread and self._known(kind, one))

    def _known(self, kind: str, one: Thing) -> bool:
        return one.id in self.before.get(kind, frozenset())

    def _suspicious(self, kind: str, one: Thing) -> str | None:
        """Where it was looked at before, what was seen then decides, and no clock: the driver's may have jumped."""
        if self._known(kind, one):
            return None
        made = "" if one.created is None else f"made {one.created:%Y-%m-%d %H:%M} UTC, "
        if kind not in self.before and (one.created is None or self.began is None or one.created < self.began - _SKEW):
            return None
        said = f"its tags could not be read ({one.unread})" if one.unread else _marks(one.tags)
        return f"{made or 'new '}since the campaign began, {said}"


def is_account_wide(kind: str, one: Thing) -> bool:
    """Whether every region lists it alike: then its region's tag has to tell whose it is."""
    return kind_named(kind).account_wide or (one.id.startswith("arn:") and one.id.split(":")[3] == "")


def is_ours(kind: str, text: str, names: Names) -> bool:
    """Whether the whole text is a name that the campaign gives to this kind, or that EKS makes of one of its names."""
    if text in names.given(kind) or text == names.log_group:
        return True
    of, before, after = kind_named(kind).eks_names
    return any(re.fullmatch(re.escape(before + one) + after, text) for one in names.given(of))


def unread_of(things: Iterable[Thing]) -> str:
    """Of which things the tags could not be read, and why; empty where all were."""
    locked = [one for one in things if one.unread]
    if not locked:
        return ""
    shown = ", ".join(one.label for one in locked[:_SHOWN]) + (
        f" and {len(locked) - _SHOWN} more" if len(locked) > _SHOWN else ""
    )
    return f"{', '.join(sorted({one.unread for one in locked}))}: the tags of {shown}"


def _owned(tags: Mapping[str, str]) -> bool:
    """Whether the tags say whose it is: another campaign's, the foundation's, a cluster's, a CloudFormation stack's.

    Any other tag says nothing of that, least of all a mere name.
    """
    return any(key in _OWNERS or (key.startswith(CLUSTER_TAG) and value == OWNED) for key, value in tags.items())


def _marks(tags: Mapping[str, str]) -> str:
    if not tags:
        return "without a tag"
    return "with no tag that names an owner: " + ", ".join(f"{key}={value}" for key, value in sorted(tags.items()))
