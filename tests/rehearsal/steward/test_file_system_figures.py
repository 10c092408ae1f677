"""What the steward reads of a file system from the emulated CloudWatch, with the right to read metrics and without."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.clock import Clock
from infra.record.state import CampaignState
from infra.rehearsal.aws.world import World
from infra.spec.names import CAMPAIGN_TAG
from infra.steward.monitoring.file_system import FIGURES, FileSystemFigures, _query
from tests.rehearsal.aws_account import Account, make_user
from tests.worlds.s3 import Time

pytestmark = pytest.mark.usefixtures("answers_as_modelled")
CAPACITY_GIB, TARGETS = 2400, 2
FILE_BYTES = 2**20


def figures_of(client: object, id: str | None) -> FileSystemFigures:
    account: object = SimpleNamespace(client=lambda service: {"cloudwatch": client}[service])
    state = CampaignState(file_system=id)
    return FileSystemFigures(account, lambda: None, lambda: state, Clock(Time(), now))  # type: ignore[arg-type]


def now() -> datetime:
    return datetime.now(UTC)


def reader_of(world: World, action: str) -> object:
    """Return the CloudWatch of a user who may do one thing."""
    allowed = {"Effect": "Allow", "Action": action, "Resource": "*"}
    return Account(world, *make_user(world, action.partition(":")[2], allowed)).cloudwatch


def test_the_steward_reads_room_and_growth_and_of_another_file_system_nothing(
    world: World, aws: Account, network: SimpleNamespace
) -> None:
    made = aws.fsx.create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=CAPACITY_GIB, SubnetIds=[network.subnet],
        SecurityGroupIds=[network.group], LustreConfiguration={"DeploymentType": "SCRATCH_2"},
        Tags=[{"Key": CAMPAIGN_TAG, "Value": "two"}],
    )["FileSystem"]  # fmt: skip
    id, reader = made["FileSystemId"], reader_of(world, "cloudwatch:GetMetricData")
    figures = figures_of(reader, id)
    figures.look()
    empty = figures.facts()
    assert empty.keys() == FIGURES.keys() and empty["written_bytes_s"] == 0
    assert empty["free_bytes"] == TARGETS * empty["target_free_bytes"] == CAPACITY_GIB * 2**30
    Path(world.fsx_root, id, "file").write_bytes(b"1" * FILE_BYTES)
    figures.look()
    fuller = figures.facts()
    assert empty["free_bytes"] - fuller["free_bytes"] >= FILE_BYTES and fuller["written_bytes_s"] > 0
    fill = world.routes["/_site/full-target"]
    for query, target_bytes in (
        ("campaign=two&free=34359738368", 2**35),
        ("campaign=two", fuller["target_free_bytes"]),
    ):
        assert fill(query, b"") == (200, {"file_systems": [id]})
        figures.look()
        assert figures.facts()["target_free_bytes"] == target_bytes
        assert figures.facts()["free_bytes"] == fuller["free_bytes"], "others have room"
    assert fill("campaign=other&free=1", b"")[0] == 404
    for other in ("fs-0123456789abcdef0", None):
        unknown = figures_of(reader, other)
        unknown.look()
        assert unknown.facts() == {}
    early = reader.get_metric_data(  # type: ignore[attr-defined]
        MetricDataQueries=[_query("room", FIGURES["free_bytes"], id)],
        StartTime=now() - timedelta(minutes=1), EndTime=now() + timedelta(minutes=1),
    )["MetricDataResults"]  # fmt: skip
    assert early[0]["Values"][0] < fuller["free_bytes"], "of the minute that is not over, targets are missing"
    denied = figures_of(reader_of(world, "cloudwatch:ListMetrics"), id)
    denied.look()
    assert denied.facts() == {}, "and it goes on"
    aws.fsx.delete_file_system(FileSystemId=id)
