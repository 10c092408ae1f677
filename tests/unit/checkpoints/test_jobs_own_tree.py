"""`bivouac checkpoints` of a job of one's own: files under its own names, from a folder, S3, or out of a cluster."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import boto3
import pytest
from rich.console import Console

from infra.archive.manifest import EvaluationProof
from infra.checkpoints import work
from infra.checkpoints.find import carry_place, find
from infra.cli.data import checkpoints as commands
from infra.errors import PermanentError, UserError
from tests.unit.checkpoints.test_live_tiers import CAMPAIGN, LiveTiers
from tests.unit.checkpoints.test_live_tiers import camp as camp
from trainer.contract import step_folder
from trainer.contract.listing import Listed, list_folder
from trainer.contract.tree import parse_tree
from trainer.supervisor import seal
from trainer.supervisor.formats import files_of
from trainer.supervisor.seal import Identity

REGION, BUCKET = "us-east-1", "of-jobs"
LONG = "模型权重分片-第一部分-" * 3
FILES = {"model.safetensors": "weights", f"{LONG}/权重.bin": "deep", "n" * 255: "long", "a\x1b[31m": "escape"}


def sealed(tier: Path, own: Path, step: int, attempt: int = 1, campaign: str = "c", more: str = "") -> Path:
    """A job's checkpoint with links, rights and an empty folder, sealed as a step."""
    root = own / f"runs/step-{step}"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} of {step}{more}")
    (root / "model.safetensors").chmod(0o600)
    (root / "empty").mkdir(exist_ok=True)
    if not (root / "last").is_symlink():
        (root / "last").symlink_to("model.safetensors")
    identity = Identity(campaign, "one", attempt, 1, "config", "data", "code", "image")
    seal.seal(root, files_of(root), own, tier, step, identity, 0, None)
    return root


def same(restored: Path, root: Path, step: int, more: str = "") -> None:
    assert sorted(os.listdir(restored)) == sorted(os.listdir(root))
    for name, text in FILES.items():
        assert (restored / name).read_text() == f"{text} of {step}{more}"
    assert os.readlink(restored / "last") == "model.safetensors" and (restored / "empty").is_dir()
    assert (restored / "model.safetensors").stat().st_mode & 0o777 == 0o600


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place with the sealed steps 10 and 20 of a job, whose own folder is `tmp_path/own`."""
    tier = tmp_path / "tier"
    for step in (10, 20):
        sealed(tier, tmp_path / "own", step)
    if request.param == "folder":
        return str(tier)
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("moto_server"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    client = boto3.client("s3", region_name=REGION)
    client.create_bucket(Bucket=BUCKET)
    for path in tier.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f"{tmp_path.name}/{path.relative_to(tier)}")
    return f"s3://{BUCKET}/{tmp_path.name}"


def said(command: Any, *arguments: Any, **more: Any) -> tuple[int, str]:
    out = io.StringIO()
    return int(command(*arguments, Console(width=250, file=out), **more)), out.getvalue()


def spoil(place: str, step: int, tail: str) -> None:
    """Change a byte of a shard whose name ends so."""
    if place.startswith("s3://"):
        client, prefix = boto3.client("s3", region_name=REGION), f"{place.rpartition('/')[2]}/{step_folder(step)}/"
        keys = [row["Key"] for row in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]]
        (key,) = (key for key in keys if key.endswith(tail))
        body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        client.put_object(Bucket=BUCKET, Key=key, Body=bytes([body[0] ^ 1]) + body[1:])
        return
    (path,) = Path(place).glob(f"{step_folder(step)}/*/*{tail}")
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def test_a_restored_step_is_the_jobs_own_tree_and_a_cut_off_restore_goes_on(place: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text = said(commands.restore_command, place, out, 20, REGION)
    restored = out / step_folder(20) / "step-20"
    same(restored, tmp_path / "own/runs/step-20", 20)
    assert code == 0 and sorted(os.listdir(out / step_folder(20))) == ["step-20"], "no manifest and no shard is left"
    assert (
        f"from_pretrained of {restored}" in text and "runs/step-20" in text and "trainer.builtin.evaluate" not in text
    )
    (restored / "model.safetensors").unlink()
    (restored / f"{LONG}/权重.bin").write_text("cut")
    code, text = said(commands.restore_command, place, out, 20, REGION)
    same(restored, tmp_path / "own/runs/step-20", 20)
    assert code == 0 and "are from an earlier try and sound" in text


def test_the_sealed_form_is_restored_where_it_is_asked_for(place: str, tmp_path: Path) -> None:
    code, text = said(commands.restore_command, place, tmp_path / "out", 20, REGION, sealed=True)
    rows = list_folder(tmp_path / "out", "folder")
    assert code == 0 and [(row.step, row.here, row.name) for row in rows] == [(20, 5, "runs/step-20")]
    assert "shared tier" in text and "trainer.builtin.evaluate" not in text
    assert seal.fault(tmp_path / "out", 20, "c", "one") == ""


def test_other_files_in_the_place_of_a_restore_are_not_taken_for_the_checkpoints(place: str, tmp_path: Path) -> None:
    foreign = tmp_path / "out" / step_folder(20) / "step-20/other"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("x")
    with pytest.raises(UserError, match="other files lie where the checkpoint is to come"):
        said(commands.restore_command, place, tmp_path / "out", 20, REGION)
    assert foreign.read_text() == "x"


def test_without_a_step_the_newest_sound_one_is_restored_and_a_named_one_is_refused(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(place, 20, "-model.safetensors")
    assert said(commands.restore_command, place, tmp_path / "out", None, REGION)[0] == 0
    same(tmp_path / "out" / step_folder(10) / "step-10", tmp_path / "own/runs/step-10", 10)
    assert "step 20 is left out" in capsys.readouterr().err
    with pytest.raises(PermanentError, match="step 20 is not sound"):
        said(commands.restore_command, place, tmp_path / "out2", 20, REGION)
    spoil(place, 10, "tree-0000.json")
    with pytest.raises(PermanentError, match="step 10 is not sound"):
        said(commands.restore_command, place, tmp_path / "out3", None, REGION)


def test_verify_names_the_jobs_file_beside_the_shard(place: str) -> None:
    spoil(place, 20, "_.bin")
    code, text = said(commands.verify_command, place, None, REGION, True)
    faults = {row["step"]: list(row["faults"]) for row in json.loads(text)}
    assert code == 74 and faults[10] == [] and f"(runs/step-20/{LONG}/权重.bin)" in faults[20][0]
    spoil(place, 20, "-model.safetensors")
    faults = json.loads(said(commands.verify_command, place, 20, REGION, True)[1])[0]["faults"]
    assert sorted(name.rpartition("(")[2] for name in faults) == [
        "runs/step-20/model.safetensors)",
        f"runs/step-20/{LONG}/权重.bin)",
    ]
    spoil(place, 10, "tree-0000.json")
    code, text = said(commands.verify_command, place, 10, REGION, True)
    assert code == 74 and list(json.loads(text)[0]["faults"]) == ["attempt-0001/tree-0000.json"]


def test_a_tree_that_was_changed_and_still_fits_is_not_followed(tmp_path: Path) -> None:
    sealed(tmp_path / "tier", tmp_path / "own", 10)
    (tree,) = (tmp_path / "tier").glob("*/*/tree-0000.json")
    tree.write_text(tree.read_text().replace('"model.safetensors": {', '"other.safetensors": {'))
    assert parse_tree(tree.read_bytes()).files.keys() == {*FILES, "other.safetensors"} - {"model.safetensors"}
    with pytest.raises(PermanentError, match="step 10 is not sound"):
        said(commands.restore_command, str(tmp_path / "tier"), tmp_path / "out", 10, REGION)


def test_the_list_tells_the_jobs_name_of_each_step(place: str) -> None:
    code, text = said(commands.list_command, place, REGION, True)
    assert code == 0 and [(row["step"], row["name"]) for row in json.loads(text)] == [
        (20, "runs/step-20"),
        (10, "runs/step-10"),
    ]
    assert "runs/step-20" in said(commands.list_command, place, REGION, False)[1]


def test_two_steps_are_compared_by_the_jobs_names(place: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    code, text = said(lambda *given: commands.diff_command(place, 10, 10, *given), REGION, True)
    assert code == 0 and all(row["equal"] for row in json.loads(text)["shards"])
    (own / "runs/step-30").mkdir()
    (own / "runs/step-30/new\x1b").write_text("new")
    sealed(tmp_path / "other", own, 30, more="")
    pair = (place, 20, 30)
    elsewhere: dict[str, Any] = {"second_place": str(tmp_path / "other")}
    code, text = said(lambda *given: commands.diff_command(*pair, *given, **elsewhere), REGION, True)
    answer = json.loads(text)
    assert code == 1 and answer["only_in_second"] == ["new\\x1b"] and answer["only_in_first"] == []
    assert {row["shard"]: row["equal"] for row in answer["shards"]} == {
        "model.safetensors": False, f"{LONG}/权重.bin": False, "n" * 255: False, "a\\x1b[31m": False,
    }  # fmt: skip
    assert "new\\x1b" in said(lambda *given: commands.diff_command(*pair, *given, **elsewhere), REGION, False)[1]


def test_a_file_alone_is_restored_as_a_file(tmp_path: Path) -> None:
    own, tier = tmp_path / "own", tmp_path / "tier"
    own.mkdir()
    (own / "ckpt.pt").write_text("x")
    identity = Identity("c", "one", 1, 1, "config", "data", "code", "image")
    seal.seal(own / "ckpt.pt", [own / "ckpt.pt"], own, tier, 10, identity, 0, None)
    assert said(commands.restore_command, str(tier), tmp_path / "out", None, REGION)[0] == 0
    assert (tmp_path / "out" / step_folder(10) / "ckpt.pt").read_text() == "x"


def test_what_a_link_led_to_is_restored_as_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "runs/step-10").mkdir(parents=True)
    (own / "runs/vocabulary.json").write_text("words")
    (own / "runs/step-10/tokenizer.json").symlink_to("../vocabulary.json")
    sealed(tmp_path / "tier", own, 10)
    assert said(commands.restore_command, str(tmp_path / "tier"), tmp_path / "out", None, REGION)[0] == 0
    restored = tmp_path / "out" / step_folder(10) / "step-10/tokenizer.json"
    assert restored.read_text() == "words" and not restored.is_symlink()


def test_a_golden_step_is_called_evaluated_only_where_it_was() -> None:
    row = Listed(tier="archive", step=10, committed=True)

    def shown(proof: EvaluationProof) -> str:
        out = io.StringIO()
        commands.table([row], 10, proof=proof).show(Console(width=200, file=out))
        return out.getvalue()

    assert "evaluated" not in shown(EvaluationProof.READ_BACK) and "golden: read back" in shown(
        EvaluationProof.READ_BACK
    )
    assert "golden: read back and evaluated" in shown(EvaluationProof.BY_THE_JOB)


def test_a_step_that_another_attempt_has_sealed_since_it_was_carried_is_carried_anew(
    camp: LiveTiers, tmp_path: Path
) -> None:
    tier, own = camp.shared / CAMPAIGN, tmp_path / "own"
    client = camp.store.s3
    client.put_bucket_versioning(Bucket=camp.store.bucket, VersioningConfiguration={"Status": "Enabled"})
    sealed(tier, own, 40, campaign=CAMPAIGN)
    camp.desk._carry((40,), lambda text: None)
    assert carry_place(camp.store).manifest_bytes(40) is not None, "by somebody whose restore was cut off"
    camp.desk._carry((40,), lambda text: None)
    sealed(tier, own, 40, attempt=2, campaign=CAMPAIGN, more=", again")
    camp.desk.open()
    assert said(commands.restore_command, CAMPAIGN, tmp_path / "out", 40, REGION, tier="shared")[0] == 0
    same(tmp_path / "out" / step_folder(40) / "step-40", own / "runs/step-40", 40, ", again")
    versions = client.list_object_versions(Bucket=camp.store.bucket, Prefix=f"{camp.store.prefix}/carried/")
    assert not versions.get("Versions") and not versions.get("DeleteMarkers"), "nothing is left that would bill"


def test_without_a_step_the_newest_sound_one_is_carried(camp: LiveTiers, tmp_path: Path) -> None:
    camp.shard(camp.shared, 30, "a.pt").write_bytes(b"bytez")
    camp.desk.open()
    assert said(commands.restore_command, CAMPAIGN, tmp_path / "out", None, REGION, tier="shared")[0] == 0
    assert (tmp_path / "out" / step_folder(20) / "manifest.json").exists()


def test_a_manifest_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed(tmp_path / "tier", tmp_path / "own", 10)
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size) or fsync(file))
    place = find(str(tmp_path / "tier"), REGION).place
    work.restore(place, 10, tmp_path / "out", lambda text: None)
    manifest = tmp_path / "out" / step_folder(10) / "manifest.json"
    assert synced[-1] == manifest.stat().st_size and manifest.read_bytes() == place.manifest_bytes(10)


def test_a_pruning_counts_sound_steps(tmp_path: Path) -> None:
    tier, own = tmp_path / "tier", tmp_path / "own"
    for step in (10, 20, 30, 40):
        sealed(tier, own, step)
    spoil(str(tier), 40, "-model.safetensors")
    next((tier / step_folder(20)).glob("*/*-model.safetensors")).unlink()
    plan = work.pruning(find(str(tier), REGION).place, 2, (), lambda text: None)
    assert (plan.keep, plan.proven, [row.step for row in plan.drop]) == ((40, 30, 10), 30, [20])
    told: list[str] = []
    work.prune(find(str(tier), REGION).place, plan, told.append)
    assert told == ["removing step 20"] and seal.committed(tier) == [40, 30, 10]
    shutil.rmtree(tier / step_folder(30))
    assert work.pruning(find(str(tier), REGION).place, 2, (), lambda text: None).proven == 10
