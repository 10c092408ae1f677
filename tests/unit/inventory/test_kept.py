"""What a certificate says stays on purpose: each with its place, and nothing that was never made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.inventory.certify import stays_on_purpose
from infra.record.events import Stage
from infra.record.payloads.training import ArchiveVerified
from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.workload import Workload

RECORD = "s3://state/campaigns/train/ (record)"
ARCHIVE = {"manifest": "s3://archive/campaigns/train/id/archive-manifest.json", "step": 40}
DATA, BAKE = {Stage.PROVISION: {"data_digest": "d1"}}, {"image": "i@sha256:1", "node_image": {"ami": "ami-1"}}


def campaign(
    archive: dict[str, Any] | None = None,
    outputs: dict[Stage, dict[str, Any]] | None = None,
    workload: Any = None,
    shared: Any = "a file system",
    newest: int = -1,
    copied: int = -1,
) -> Any:
    verified = archive and ArchiveVerified.model_validate(archive)
    return SimpleNamespace(
        state=lambda: SimpleNamespace(archive=verified, copied=copied, newest_committed=newest),
        spec=SimpleNamespace(campaign="train", runtime=workload or BuiltIn(), storage=SimpleNamespace(shared=shared)),
        identity="id",
        buckets=SimpleNamespace(state="state", data="data", archive="archive"), outputs=outputs or {},
    )  # fmt: skip


def test_the_record_alone_is_kept_of_a_campaign_that_made_nothing() -> None:
    assert stays_on_purpose(campaign()) == (RECORD,)
    assert stays_on_purpose(campaign(outputs={Stage.PROVISION: {}, Stage.BAKE: {}})) == (RECORD,)


def test_archive_record_data_and_images_are_kept_in_this_order() -> None:
    assert stays_on_purpose(campaign(ARCHIVE, {**DATA, Stage.BAKE: BAKE})) == (
        "s3://archive/campaigns/train/id/archive-manifest.json (golden checkpoint of step 40)", RECORD,
        "s3://data/datasets/d1/ (prepared data)", "i@sha256:1 (trainer image)", "ami-1 (node image)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "row"),
    [
        (DATA, "s3://data/datasets/d1/ (prepared data)"),
        ({Stage.BAKE: {"image": "i@sha256:1"}}, "i@sha256:1 (trainer image)"),
        ({Stage.BAKE: {"node_image": {"ami": "ami-1"}}}, "ami-1 (node image)"),
    ],
)
def test_each_stage_that_ended_is_told_by_itself(outputs: dict[Stage, dict[str, Any]], row: str) -> None:
    assert stays_on_purpose(campaign(outputs=outputs)) == (RECORD, row)


def test_of_a_workload_its_code_is_kept() -> None:
    job = SimpleNamespace(attached={}, data_name=Workload.data_name)
    assert stays_on_purpose(campaign(outputs=DATA, workload=job))[1] == "s3://data/datasets/d1/ (the job's code)"


def test_what_somebody_has_and_a_job_mounted_is_named_among_what_stays() -> None:
    job = SimpleNamespace(attached={"team": "fs-0123456789abcdef0:/sets"})
    told = stays_on_purpose(campaign(workload=job))
    assert told[-1] == "fs-0123456789abcdef0:/sets (somebody's, mounted at /mounts/team)"


def test_a_node_image_of_others_is_not_told_as_kept_and_one_of_ours_is() -> None:
    for ours, rows in ((False, (RECORD,)), (True, (RECORD, "ami-1 (node image)"))):
        assert stays_on_purpose(campaign(outputs={Stage.BAKE: {"node_image": {"ami": "ami-1", "ours": ours}}})) == rows


COPIES = "s3://archive/copies/train/id/ (interval copies up to step 30; {why}; they bill until they are removed)"


def test_interval_copies_are_kept_where_no_archive_stands_for_them() -> None:
    assert stays_on_purpose(campaign(copied=30)) == (RECORD, COPIES.format(why="the campaign has no archive"))
    locked = COPIES.format(why="locked, or not removed")
    for left in (2, -1):
        assert stays_on_purpose(campaign({**ARCHIVE, "copies_left": left}, copied=30))[-1] == locked
    assert stays_on_purpose(campaign({**ARCHIVE, "copies_left": 0}, copied=30))[-1] == RECORD


def test_without_a_file_system_the_checkpoints_in_s3_stay_until_they_are_archived() -> None:
    rows = stays_on_purpose(campaign(shared=None, newest=40))
    assert [row for row in rows if "copies/train/id/ (checkpoints up to step 40; the campaign has no archive" in row]
    archived = {"manifest": "s3://archive/m", "step": 40, "copies_left": 0}
    assert not [row for row in stays_on_purpose(campaign(archived, shared=None, newest=40)) if "copies/" in row]
