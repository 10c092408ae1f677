"""What AWS's services make of their own accord is recognised by what AWS documents, in the campaign's network only
removed, and elsewhere nobody's suspect."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from infra.inventory.evidence import Evidence, Knowledge
from infra.inventory.sweep import Leftover, beyond_doubt, made_by_aws
from infra.kinds.thing import Thing, thing
from infra.spec.names import Names
from tests.tables import Table

TABLE = Table(__file__)

VPC, OTHER = "vpc-0aaaaaaaa", "vpc-0bbbbbbbb"
MARK = [{"Key": "GuardDutyManaged", "Value": "true"}]
ENDPOINT = {"VpcId": VPC, "ServiceName": "com.amazonaws.us-east-1.guardduty-data", "Tags": MARK}
GROUP = {"VpcId": VPC, "GroupName": f"GuardDutyManagedSecurityGroup-{VPC}", "Tags": MARK}
KNOWN = Knowledge(
    Names("train"), frozenset({VPC}), began=datetime(2026, 11, 1, tzinfo=UTC), before={"rule": frozenset()}
)


@TABLE.cases
def test_a_maker_is_known_by_its_documented_marks_together(item: dict[str, Any], maker: str) -> None:
    one = thing(item, "id-1", "web")
    assert one.maker == maker and one.label == ("web, made by " + maker if maker else "web")


@pytest.mark.parametrize(
    ("item", "evidence", "goes"),
    [
        (ENDPOINT, Evidence.PLACE, True),
        (GROUP, Evidence.PLACE, True),
        ({**GROUP, "Tags": []}, Evidence.PLACE, False),
        ({**ENDPOINT, "VpcId": OTHER}, None, False),
    ],
)
def test_it_goes_without_a_question_in_the_campaigns_network_alone(
    item: dict[str, Any], evidence: Evidence | None, goes: bool
) -> None:
    kind, one = "VPC endpoint" if "ServiceName" in item else "security group", thing(item, "id-1")
    assert KNOWN.evidence(kind, one, KNOWN.places, KNOWN.places) is evidence
    leftover = Leftover(kind, one, evidence or Evidence.KIN)
    assert made_by_aws(leftover) is goes and not beyond_doubt(leftover)
    assert not made_by_aws(Leftover("network interface", Thing("eni-1"), Evidence.PLACE))
    assert made_by_aws(Leftover("security group", Thing("sg-1", "eks-cluster-sg-x"), Evidence.CLUSTER))
    assert not made_by_aws(Leftover("volume", Thing("vol-1"), Evidence.CLUSTER)), "it holds no network"
    assert not made_by_aws(Leftover(kind, one, Evidence.PLACE, foreign="id-0"))


def test_a_new_rule_of_a_service_is_no_suspect_and_a_persons_is() -> None:
    made = datetime(2026, 11, 2, tzinfo=UTC)
    rules = [Thing("s3-files", created=made, maker="elasticfilesystem.amazonaws.com"), Thing("theirs", created=made)]
    assert [suspect.thing.id for suspect in KNOWN.suspects({"rule": rules})] == ["theirs"]
