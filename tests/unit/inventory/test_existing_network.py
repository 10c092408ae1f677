"""What lies in a network that existed before the campaign is its owners', whatever the record says of that network."""

from __future__ import annotations

from typing import Any

import pytest

from infra.inventory import certify
from infra.kinds import thing
from infra.record.payloads.stages import StageFinished
from infra.record.store import CampaignStore
from infra.spec.names import Names
from tests.unit.inventory.test_evidence import LIES, SUBNET, VPC
from tests.worlds.s3 import FakeS3, Time

GROUP = "sg-0aaaaaaaaaaaaaaa1"


def known(**more: Any) -> Any:
    """Knowledge from a record whose provision stood in the VPC."""
    outputs = dict.fromkeys(certify.CampaignOutputs.model_fields, "x")
    outputs |= {"vpc_id": VPC, "gpu_subnet_id": SUBNET, "system_subnet_id": SUBNET, "node_security_group_id": GROUP}
    outputs = {key: value for key, value in outputs.items() if key != "network_made"} | more
    record = CampaignStore(FakeS3(Time()), "state", "train", "w")
    record.append(StageFinished(stage="provision", seconds=1.0, outputs={"outputs": outputs}))
    return certify.knowledge(record, Names("train"))


@pytest.mark.parametrize(("kind", "item"), LIES, ids=[kind for kind, _ in LIES])
def test_what_lies_there_is_the_campaigns_only_in_a_network_that_it_made(kind: str, item: dict[str, Any]) -> None:
    seen = {kind: [thing(item, "one-of-theirs")]}
    assert known(network_made=False).judge(seen)[kind] == []
    for made in (known(), known(network_made=True)):
        assert len(made.judge(seen)[kind]) == 1, "as in every record that was written before"


def test_the_network_itself_is_no_finding_and_what_holds_the_campaigns_group_is_named() -> None:
    card = thing({"SubnetId": SUBNET, "VpcId": VPC, "Groups": [{"GroupId": GROUP}]}, "eni-0bbbbbbbbbbbbbbb2")
    seen = {"VPC": [thing({"VpcId": VPC}, VPC)], "subnet": [thing({"SubnetId": SUBNET, "VpcId": VPC}, SUBNET)],
            "network interface": [card]}  # fmt: skip
    found = known(network_made=False).judge(seen)
    assert found["VPC"] == found["subnet"] == []
    ((named, evidence),) = found["network interface"]
    assert named.id == card.id and str(evidence) == "made from or tied to what is its own"
