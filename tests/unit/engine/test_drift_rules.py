"""What counts as drift, what it means, and what is refused; pure."""

from __future__ import annotations

import json
from typing import Any

from infra.engine.consequences import consequence
from infra.engine.drift import PropertyDifference, Row, StackLook, drift_between
from infra.engine.explain import difference
from infra.engine.refusal import CampaignProgress, refusals

TRAINING = CampaignProgress(begun=True, training=True, falling=False)
IDLE = CampaignProgress(begun=True, training=False, falling=False)
GROUP = "aws:eks/nodeGroup:NodeGroup"


def urn(kind: str, name: str, component: str = "bivouac:infra:Any") -> str:
    return f"urn:pulumi:campaign-x::bivouac::{component}${kind}::{name}"


def state(kind: str, name: str, inputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {urn(kind, name): {"urn": urn(kind, name), "type": kind, "custom": True, "inputs": inputs}}


def refused(
    row: Row, where: CampaignProgress, drifted: tuple[Row, ...] = (), broken: frozenset[str] = frozenset()
) -> str:
    return " | ".join(map(str, refusals(StackLook("campaign-x", drifted, (row,), broken, 1), where, "x")))


def test_what_the_steward_and_aws_do_by_themselves_is_no_drift() -> None:
    before = {"scalingConfig": {"desiredSize": 0, "maxSize": 3}, "tags": {"a": "b"}, "none": None}
    after = {"scalingConfig": {"desiredSize": 2, "maxSize": 3}, "tags": {"a": "b", "aws:x": "y"}, "none": []}
    assert not list(drift_between(state(GROUP, "gpu-nodes", before), state(GROUP, "gpu-nodes", after)))
    policy = {"policy": json.dumps({"a": 1, "b": [2]})}
    other = {"policy": json.dumps({"b": [2], "a": 1}, indent=4)}
    kind = "aws:iam/rolePolicy:RolePolicy"
    assert not list(drift_between(state(kind, "guard", policy), state(kind, "guard", other)))


def test_a_changed_maximum_is_drift_beside_a_changed_size() -> None:
    before, after = ({"scalingConfig": {"desiredSize": n, "maxSize": 3 - n}} for n in (0, 1))
    (row,) = drift_between(state(GROUP, "gpu-nodes", before), state(GROUP, "gpu-nodes", after))
    assert [(change.path, change.before, change.after) for change in row.changes] == [("scalingConfig.maxSize", 3, 2)]


def test_a_postponement_by_driver_or_steward_is_no_drift_but_the_deadlines_is() -> None:
    kind = "aws:scheduler/schedule:Schedule"
    states = [{"scheduleExpression": "at(a)", "state": "DISABLED"}, {"scheduleExpression": "at(b)", "state": "ENABLED"}]

    def drifted(name: str, **more: str) -> list[str]:
        before, after = (state(kind, name, one) for one in (states[0], states[1] | more))
        return [change.path for row in drift_between(before, after) for change in row.changes]

    for kept in ("launch", "launch-notice", "silence", "silence-notice"):
        assert drifted(kept) == []
        assert drifted(kept, target="another") == ["target"]
    assert drifted("deadline") == ["scheduleExpression", "state"]


def test_a_replacement_of_what_holds_state_is_refused_with_the_property_that_forces_it() -> None:
    row = Row(urn("aws:fsx/lustreFileSystem:LustreFileSystem", "shared"), "replace",
              (PropertyDifference("storageCapacity", 2400, 1200, True),))  # fmt: skip
    assert "storageCapacity (2400 -> 1200)" in refused(row, IDLE)
    assert not refused(row, IDLE, broken=frozenset({row.urn})), "what never came to life may be made anew"
    assert not refused(row, CampaignProgress(begun=False, training=False, falling=False))


def test_nodes_that_train_are_not_rolled_but_may_be_resized() -> None:
    rolls = Row(urn(GROUP, "gpu-nodes"), "update", (PropertyDifference("launchTemplate.version", "1", "2"),))
    sizes = Row(urn(GROUP, "gpu-nodes"), "update", (PropertyDifference("scalingConfig.maxSize", 2, 3),))
    assert "launchTemplate.version would restart its nodes" in refused(rolls, TRAINING)
    assert not refused(rolls, IDLE) and not refused(sizes, TRAINING)


def test_a_cluster_that_was_upgraded_by_hand_is_not_taken_back() -> None:
    row = Row(urn("aws:eks/cluster:Cluster", "cluster"), "update", (PropertyDifference("version", "1.37", "1.36"),))
    assert "does not go back to 1.36" in refused(row, IDLE)


def test_a_lost_bucket_is_made_anew_but_a_lost_node_group_is_not() -> None:
    for kind, wanted in (("aws:s3/bucket:Bucket", ""), (GROUP, "deleted by hand")):
        row = Row(urn(kind, "archive"), "deleted")
        said = refused(Row(row.urn, "create"), IDLE, (row,))
        assert (wanted in said) and bool(said) == bool(wanted)
        assert not refused(Row(row.urn, "create"), IDLE), "not yet made is not lost"


def test_a_lost_file_system_is_made_anew_where_s3_has_a_copy_of_a_checkpoint() -> None:
    row = Row(urn("aws:fsx/lustreFileSystem:LustreFileSystem", "shared"), "deleted")
    other = Row(urn("aws:eks/cluster:Cluster", "cluster"), "deleted")
    copied = CampaignProgress(begun=True, training=True, falling=False, copied=40)
    assert "a new one would be empty" in refused(Row(row.urn, "create"), TRAINING, (row,))
    assert not refused(Row(row.urn, "create"), copied, (row,))
    assert refused(Row(row.urn, "replace"), copied, (row,)), "one that stands is never given up"
    assert refused(Row(other.urn, "create"), copied, (other,))


def test_two_long_documents_are_told_by_the_lines_in_which_they_differ() -> None:
    old = {"Statement": [{"Effect": "Allow", "Action": f"s3:Get{n}", "Resource": "*"} for n in range(20)]}
    new = json.loads(json.dumps(old).replace("s3:Get7", "s3:Delete7"))
    lines = difference(PropertyDifference("policy", json.dumps(old), json.dumps(new)))
    assert [line.strip() for line in lines] == ["policy:", '-   "Action": "s3:Get7",', '+   "Action": "s3:Delete7",']


def test_a_changed_tag_has_no_consequence_but_a_lost_schedule_has() -> None:
    cluster = Row(urn("aws:eks/cluster:Cluster", "cluster"), "changed", (PropertyDifference("tags.owner", "a", "b"),))
    assert consequence(cluster) == ""
    assert "nothing stops the GPU nodes" in consequence(
        Row(urn("aws:scheduler/schedule:Schedule", "deadline"), "deleted")
    )
