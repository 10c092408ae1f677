"""The archive of a workload: checkpoint and code as they are, read back, and what its own evaluation came to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from infra.archive.judged import Unproven
from infra.archive.manifest import MANIFEST_NAME, EvaluationProof
from infra.errors import PermanentError
from tests.unit.archive.archive_story import CAMPAIGN, PREFIX, archiver, commit, site_at
from trainer.contract import step_folder
from trainer.contract.workload import (
    ExportedFile,
    Judgement,
    JudgingConfig,
    SealedCheckpoints,
    WorkloadConfig,
)


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = site_at(tmp_path)
    config = WorkloadConfig(
        identity="i", launcher="none", command=("a",), env={}, folder="/", source="/data/source-12.tar", steps=30,
        requirements="/data/requirements-56.tar",
        checkpoints=SealedCheckpoints(format="marker", folder="/own", keep=2), save_every=10, grace_s=60,
        config_digest="c", judging=JudgingConfig(tolerance=0.01),
    )  # fmt: skip
    (made.root / "workload.json").write_text(config.model_dump_json())
    (made.data / "source-12.tar").write_bytes(b"code")
    (made.data / "requirements-56.tar").write_bytes(b"packages")
    (made.data / "source-34.tar").write_bytes(b"code of an earlier attempt")
    return made


def of_workload(site: Any, **judged: str) -> Any:
    made = archiver(site, here=PermanentError("evaluated"))
    made.config = made.config.model_copy(update={"workload": True, **judged})
    return made


def judged(site: Any, files: tuple[str, ...] = ("deep/weights",), **changes: Any) -> str:
    """What the job's pod has left beside the checkpoints, and the digest that it told."""
    folder = site.root / "shared" / CAMPAIGN / "export"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in files:
        path = folder / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        rows.append(ExportedFile(name=name, size_bytes=len(name), sha256=digest))
    told: dict[str, Any] = {"step": 30, "metrics": {"loss": 2.13}, "exported": {"loss": 2.14}, "files": tuple(rows)}
    body = Judgement(**told | changes).model_dump_json().encode()
    (folder / "judgement.json").write_bytes(body)
    return hashlib.sha256(body).hexdigest()


def stored(site: Any) -> set[str]:
    return {key.removeprefix(f"{PREFIX}/") for key in site.s3.held if key.startswith(f"{PREFIX}/")}


def test_checkpoint_code_and_record_come_back_byte_for_byte_and_nothing_is_evaluated(site: Any) -> None:
    commit(site, 20, loss=None)
    commit(site, 30, loss=None)
    manifest = of_workload(site).run()
    assert (manifest.step, manifest.proof) == (30, EvaluationProof.READ_BACK)
    assert manifest.reference_evaluation_loss is manifest.restored_evaluation_loss is None
    names = {item.key.removeprefix(f"{PREFIX}/") for item in manifest.objects}
    golden = {f"golden/{step_folder(30)}/{name}" for name in ("attempt-0001/a.pt", "manifest.json")}
    assert golden | {"workload.json", "source/source.tar", "source/requirements.tar", "record/spec.json"} <= names
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


def test_metrics_and_export_are_archived_with_a_card_that_tells_them(site: Any) -> None:
    commit(site, 30, loss=None)
    digest = judged(site)
    manifest = of_workload(site, judgement=digest).run()
    assert manifest.proof is EvaluationProof.BY_THE_JOB_TWICE
    assert (manifest.metrics, manifest.export_metrics, manifest.tolerance) == ({"loss": 2.13}, {"loss": 2.14}, 0.01)
    assert manifest.export == f"export/{digest[:12]}"
    names = {item.key.removeprefix(f"{PREFIX}/") for item in manifest.objects}
    assert {f"export/{digest[:12]}/deep/weights", "README.md"} <= names
    calls = site.s3.calls
    assert f"get export/{digest[:12]}/deep/weights" in calls[: calls.index(f"put {MANIFEST_NAME}")], "read back"
    card = site.s3.held[f"{PREFIX}/README.md"][0].decode()
    assert "| loss | 2.13 | 2.14 |" in card and "tolerance 0.01" in card and "12.50 USD" in card


def test_an_evaluation_without_export_and_an_export_without_one_claim_no_more(site: Any) -> None:
    commit(site, 30, loss=None)
    manifest = of_workload(site, judgement=judged(site, files=(), exported=None)).run()
    assert (manifest.proof, manifest.export, manifest.tolerance) == (EvaluationProof.BY_THE_JOB, "", None)
    site.s3.held.pop(f"{PREFIX}/{MANIFEST_NAME}")
    manifest = of_workload(site, judgement=judged(site, exported=None, metrics={})).run()
    assert manifest.proof is EvaluationProof.READ_BACK and manifest.export


BAD = [
    ({"why": "the evaluation of the checkpoint printed nothing"}, "printed nothing"),
    ({"step": 20}, "the job has judged step 20, and step 30 is archived"),
    ({"files": ("../stolen",)}, "a file of the export lies elsewhere"),
]


@pytest.mark.parametrize(("changes", "why"), BAD, ids=lambda one: str(one)[:40])
def test_a_bad_judgement_leaves_the_checkpoint_archived_and_read_back_and_claims_nothing(
    changes: dict[str, Any], why: str, site: Any
) -> None:
    commit(site, 30, loss=None)
    digest = judged(site, **changes)
    with pytest.raises(Unproven, match=why) as told:
        of_workload(site, judgement=digest).run()
    safe = {f"golden/{step_folder(30)}/{name}" for name in ("attempt-0001/a.pt", "manifest.json")}
    assert safe | {"workload.json", "source/source.tar", "source/requirements.tar", "record/spec.json"} <= stored(site)
    assert not {name for name in stored(site) if name.startswith(("export/", "README", MANIFEST_NAME))}
    assert all(f"get {name}" in site.s3.calls for name in safe)
    assert told.value.summary["step"] == 30 and told.value.summary["unproven"] == str(told.value)
    again = judged(site)
    assert of_workload(site, judgement=again).run().export == f"export/{again[:12]}", "another try may go well"


def test_without_a_judgement_or_with_another_than_was_told_nothing_is_claimed(site: Any) -> None:
    commit(site, 30, loss=None)
    digest = judged(site)
    for given, why in (({"unjudged": "no time"}, "no time"), ({"judgement": "0" * 64}, "not the one that its pod")):
        with pytest.raises(Unproven, match=why):
            of_workload(site, **given).run()
    (site.root / "shared" / CAMPAIGN / "export/judgement.json").unlink()
    with pytest.raises(Unproven, match="cannot be read"):
        of_workload(site, judgement=digest).run()
    assert MANIFEST_NAME not in stored(site)


def test_an_export_that_changed_after_its_judgement_stays_out_and_the_checkpoint_not(site: Any) -> None:
    commit(site, 30, loss=None)
    digest = judged(site)
    (site.root / "shared" / CAMPAIGN / "export/model/deep/weights").write_text("deep/WEIGHTS")
    with pytest.raises(Unproven, match="the export is not archived: a file changed"):
        of_workload(site, judgement=digest).run()
    assert f"golden/{step_folder(30)}/manifest.json" in stored(site) and MANIFEST_NAME not in stored(site)
    assert json.loads(site.s3.held[f"{PREFIX}/workload.json"][0])["save_every"] == 10
