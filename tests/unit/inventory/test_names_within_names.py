"""No name that one campaign gives is evidence for another, however much the campaigns' own names look alike."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra.inventory import Evidence, Knowledge
from infra.kinds import Thing
from infra.spec.names import Names
from tests.tables import Table

TABLE = Table(__file__)

UUID = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
GIVEN = {
    "cluster": ["bivouac-{}"],
    "log group": ["/aws/eks/bivouac-{}/cluster"],
    "role": [
        "bivouac-{}-cluster",
        "bivouac-{}-node",
        "bivouac-{}-cni",
        "bivouac-{}-steward",
        "bivouac-{}-trainer",
        "bivouac-{}-archive",
        "bivouac-{}-guard",
        "bivouac-{}-budget",
    ],
    "topic": ["bivouac-{}-alarms"],
    "budget": ["bivouac-{}"],
    "schedule": ["bivouac-{}-deadline", "bivouac-{}-closer", "bivouac-{}-builder"],
    "launch template": ["bivouac-{}-gpu", "bivouac-{}-system"],
    "Auto Scaling group": ["eks-bivouac-{}-gpu-" + UUID, "eks-bivouac-{}-system-" + UUID],
    "placement group": ["bivouac-{}-gpu"],
    "instance": ["bivouac-{}-gpu", "bivouac-{}-system", "bivouac-{}-builder"],
    "volume": ["bivouac-{}-gpu", "bivouac-{}-system", "bivouac-{}-builder"],
    "network interface": ["bivouac-{}-gpu", "bivouac-{}-system", "bivouac-{}-builder"],
    "file system": ["bivouac-{}-shared"],
    "VPC": ["bivouac-{}"],
    "VPC peering": ["bivouac-{}-driver"],
    "subnet": [
        "bivouac-{}-control-plane-a",
        "bivouac-{}-control-plane-b",
        "bivouac-{}-gpu",
        "bivouac-{}-public",
    ],
    "route table": ["bivouac-{}-private", "bivouac-{}-public"],
    "internet gateway": ["bivouac-{}"],
    "elastic address": ["bivouac-{}"],
    "NAT gateway": ["bivouac-{}"],
    "VPC endpoint": [
        "bivouac-{}-s3",
        "bivouac-{}-autoscaling",
        "bivouac-{}-ec2",
        "bivouac-{}-ecr.api",
        "bivouac-{}-ecr.dkr",
        "bivouac-{}-eks",
        "bivouac-{}-eks-auth",
        "bivouac-{}-fsx",
        "bivouac-{}-logs",
        "bivouac-{}-ssm",
        "bivouac-{}-ssmmessages",
        "bivouac-{}-sts",
    ],
    "security group": [
        "bivouac-{}-nodes",
        "bivouac-{}-lustre",
        "bivouac-{}-endpoints",
        "eks-cluster-sg-bivouac-{}-872956830",
    ],
}
"""Kind -> the names that a campaign's things of that kind have: as name, or as tag `Name` where AWS knows no names."""
BY_TAG = frozenset(
    {
        "instance", "volume", "network interface", "file system", "VPC", "VPC peering", "subnet", "route table",
        "internet gateway", "elastic address", "NAT gateway", "VPC endpoint",
    }
)  # fmt: skip
WORDS = (
    "train", "gpu", "system", "node", "nodes", "cluster", "archive", "builder", "shared", "bivouac", "eks", "sg", "2",
    "auth", "control", "plane", "a", "public", "eks-auth", "control-plane", "preview", "deadline", "s3", "ec2",
    "872956830", "3fa85f64", "cni",
)  # fmt: skip


def things(campaign: str) -> dict[str, list[Thing]]:
    return {
        kind: [Thing("id", tags={"Name": name}) if kind in BY_TAG else Thing("id", name) for name in names]
        for kind, names in ((kind, [form.format(campaign) for form in forms]) for kind, forms in GIVEN.items())
    }


def campaign_names() -> st.SearchStrategy[str]:
    joined = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("-".join)
    return joined.filter(lambda name: name[0].isalpha() and len(name) <= 20)


def taken(campaign: str, seen: dict[str, list[Thing]]) -> set[tuple[str, str, Evidence]]:
    """Kind, name and evidence of what is taken for the campaign's."""
    found = Knowledge(Names(campaign)).judge(seen)
    return {(kind, one.name or one.tags["Name"], why) for kind, rows in found.items() for one, why in rows}


@settings(max_examples=40, deadline=None)
@given(campaign_names(), st.lists(st.sampled_from(WORDS), min_size=1, max_size=2), campaign_names())
@example("train", ["gpu"], "train-gpu")
@example("train", ["2"], "train-node-2")
@example("eks", ["auth"], "eks-auth")
def test_nothing_that_one_campaign_makes_is_evidence_for_another(first: str, tail: list[str], other: str) -> None:
    longer = "-".join([first, *tail])
    for one, two in ((first, longer), (first, other), (longer, other)):
        if one == two:
            continue
        for of, to in ((one, two), (two, one)):
            mistaken = taken(to, things(of))
            assert not mistaken, f"of {of}, taken for {to}'s: {mistaken}"


@settings(max_examples=15, deadline=None)
@given(campaign_names())
def test_every_name_that_a_campaign_gives_is_evidence_for_it(campaign: str) -> None:
    own = {(kind, form.format(campaign), Evidence.NAME) for kind, forms in GIVEN.items() for form in forms}
    assert taken(campaign, things(campaign)) == own


@pytest.mark.parametrize("kind", GIVEN)
def test_no_two_campaigns_can_give_one_name_to_one_kind(kind: str) -> None:
    """They could where one part were the end of another: `a-b` of campaign `x` is `b` of campaign `x-a`."""
    parts = {name.removeprefix("bivouac-x").removeprefix("-") for name in Names("x").given(kind)}
    assert not [(part, two) for part in parts for two in parts - {part} if not part or two.endswith(f"-{part}")]


@TABLE.cases
def test_a_name_that_only_contains_ours_or_is_another_kinds_says_nothing(kind: str, name: str) -> None:
    assert not taken("train", {kind: [Thing("id", name), Thing("id", tags={"Name": name})]})
