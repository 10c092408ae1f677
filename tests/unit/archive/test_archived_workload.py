"""The archive of a workload: checkpoint and code as they are, read back; nothing is evaluated that only it can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.archive.manifest import MANIFEST_NAME, EvaluationProof
from infra.errors import PermanentError
from tests.unit.archive.archive_story import PREFIX, archiver, commit, site_at
from trainer.contract import step_folder
from trainer.contract.workload import SealedCheckpoints, WorkloadConfig


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = site_at(tmp_path)
    config = WorkloadConfig(
        identity="i", launcher="none", command=("a",), env={}, folder="/", source="/data/source-12.tar", steps=30,
        checkpoints=SealedCheckpoints(format="marker", folder="/own", keep=2), save_every=10, grace_s=60,
        config_digest="c",
    )  # fmt: skip
    (made.root / "workload.json").write_text(config.model_dump_json())
    (made.data / "source-12.tar").write_bytes(b"code")
    (made.data / "source-34.tar").write_bytes(b"code of an earlier attempt")
    return made


def of_workload(site: Any) -> Any:
    made = archiver(site, here=PermanentError("evaluated"))
    made.config = made.config.model_copy(update={"workload": True})
    return made


def test_checkpoint_code_and_record_come_back_byte_for_byte_and_nothing_is_evaluated(site: Any) -> None:
    commit(site, 20, loss=None)
    commit(site, 30, loss=None)
    manifest = of_workload(site).run()
    assert (manifest.step, manifest.proof) == (30, EvaluationProof.READ_BACK)
    assert manifest.reference_evaluation_loss is manifest.restored_evaluation_loss is None
    names = {item.key.removeprefix(f"{PREFIX}/") for item in manifest.objects}
    golden = {f"golden/{step_folder(30)}/{name}" for name in ("attempt-0001/a.pt", "manifest.json")}
    assert golden | {"workload.json", "source/source.tar", "record/spec.json"} <= names
    assert not any(name.startswith(("huggingface/", "data/")) for name in names)
    calls = site.s3.calls
    published = calls.index(f"put {MANIFEST_NAME}")
    assert all(f"get {name}" in calls[calls.index(f"put {name}") : published] for name in names)


def test_a_damaged_newest_step_falls_back_to_the_one_before(site: Any) -> None:
    commit(site, 20, loss=None)
    shard = commit(site, 30, loss=None)
    shard.write_bytes(b"?" * shard.stat().st_size)
    manifest = of_workload(site).run()
    assert manifest.step == 20 and manifest.names(30)
