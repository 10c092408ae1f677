"""The archive's program: what it reads, what it says to the driver, and the exit code of a failure."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from infra.archive import archive
from infra.archive.bucket import ArchiveBucket, Clash, Unsound
from infra.aws.parts import Altered
from infra.errors import PermanentError
from tests.unit.archive.archive_story import CAMPAIGN, IDENTITY, PREFIX, commit, refused, site_at
from trainer.contract import step_folder
from trainer.contract.workload import SealedCheckpoints, WorkloadConfig

CONFIG = {
    "campaign": CAMPAIGN, "identity": IDENTITY, "committed_step": 40, "region": "eu-north-1", "state_bucket": "b",
    "archive_bucket": "b", "image_manifest": "images/none.json",
}  # fmt: skip

WORKLOAD = WorkloadConfig(
    identity=IDENTITY, launcher="none", command=("a",), env={}, folder="/", save_every=10, grace_s=60, steps=40,
    checkpoints=SealedCheckpoints(format="marker", folder="/own", keep=2), config_digest="c",
)  # fmt: skip


class Pod(SimpleNamespace):
    """The Job's pod over a site in memory; `models` are the folders that were evaluated."""

    def run(self) -> tuple[int, dict[str, Any]]:
        self.log.unlink(missing_ok=True)
        code: int = archive.main()
        return code, json.loads(self.log.read_text())

    def fail(self, error: Exception) -> None:
        def get(_: ArchiveBucket, name: str) -> bytes:
            raise error

        self.patch.setattr(ArchiveBucket, "get", get)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    site = site_at(tmp_path)
    models: list[Path] = []

    def evaluate(folder: Path, out: Path | None) -> float:
        models.append(folder)
        if out is not None:
            out.mkdir()
            (out / "model.safetensors").write_bytes(next(folder.rglob("a.pt")).read_bytes())
        return 2.25

    def account(region: str) -> Any:
        assert region == "eu-north-1"
        return SimpleNamespace(client={"s3": site.s3}.__getitem__)

    config = tmp_path / "archive.json"
    config.write_text(json.dumps(CONFIG))
    places = archive.Places(tmp_path / "shared", tmp_path / "train.json", site.data)
    for name, other in (
        ("CONFIG_PATH", str(config)),
        ("Account", account),
        ("ArchiveBucket", lambda s3, bucket, prefix, say: ArchiveBucket(s3, bucket, prefix, say, transfer=site.bucket)),
        ("ARCHIVE_WORK", str(tmp_path / "work")),
        ("places_of", lambda *given: places),
        ("model_on", lambda data: archive.Model(evaluate)),
        ("TERMINATION_LOG", str(tmp_path / "last-word")),
    ):
        monkeypatch.setattr(archive, name, other)
    site.bucket = site.bucket.transfer
    monkeypatch.setattr("infra.archive.bucket.time.sleep", lambda _: None)
    return Pod(site=site, s3=site.s3, root=tmp_path, models=models, log=tmp_path / "last-word", patch=monkeypatch)


def test_the_program_tells_the_driver_what_is_archived_and_leaves_nothing_on_the_disk(
    pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(pod.site, 30, loss=None)
    for step in (40, 50, 60, 70, 80, 90):
        commit(pod.site, step).unlink()
    code, said = pod.run()
    bodies = {key: body for key, (body, _) in pod.s3.held.items() if key.startswith(f"{PREFIX}/")}
    manifest = bodies.pop(f"{PREFIX}/archive-manifest.json")
    assert code == 0 and {item["key"] for item in json.loads(manifest)["objects"]} == set(bodies)
    refusal = "attempt-0001/a.pt is missing or has another size"
    assert said == {
        "manifest": f"s3://b/{PREFIX}/archive-manifest.json", "step": 30, "identity": IDENTITY, "accounts_for": 90,
        "proof": "evaluated before upload", "recorded_evaluation_loss": None, "reference_evaluation_loss": 2.25,
        "restored_evaluation_loss": 2.25, "copies_left": 0, "objects": len(bodies),
        "bytes": sum(map(len, bodies.values())),
        "refused": [f"{step_folder(step)}: {refusal}" for step in (90, 80, 70, 60, 50)],
    }  # fmt: skip
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert rows[-1].pop("time") > 1e9 and rows[-1] == {"event": "archived", **said}
    shared, restored = pod.models
    assert shared == pod.root / "shared" / CAMPAIGN / step_folder(30) and pod.root / "work" in restored.parents
    assert not list((pod.root / "work").iterdir())


COPIES = f"copies/{CAMPAIGN}/{IDENTITY}/"


def test_once_the_golden_checkpoint_is_archived_the_interval_copies_go_manifests_first(pod: Pod) -> None:
    commit(pod.site, 40)
    step = f"{step_folder(20)}/attempt-0001"
    for name in (f"{COPIES}{step}/a.pt", f"{COPIES}{step_folder(20)}/manifest.json", f"copies/{CAMPAIGN}/other/x"):
        pod.s3.held[name] = (b"a copy", {})
    code, said = pod.run()
    assert (code, said["copies_left"]) == (0, 0)
    assert [key for key in pod.s3.held if key.startswith("copies/")] == [f"copies/{CAMPAIGN}/other/x"]
    gone = [call for call in pod.s3.calls if call.startswith("delete ")]
    assert gone[0] == f"delete {COPIES}{step_folder(20)}/manifest.json"
    assert pod.s3.calls.index(gone[0]) > pod.s3.calls.index("put archive-manifest.json")


def test_copies_that_cannot_be_removed_do_not_fail_the_archive(pod: Pod) -> None:
    commit(pod.site, 40)
    pod.s3.held[f"{COPIES}{step_folder(20)}/manifest.json"] = (b"a copy", {})

    def refuse(**_: Any) -> None:
        raise refused("AccessDenied", 403)

    pod.patch.setattr(pod.s3, "delete_object", refuse)
    code, said = pod.run()
    assert (code, said["copies_left"], said["step"]) == (0, -1, 40)


def test_a_bad_evaluation_by_the_job_is_told_in_full_and_not_tried_again(pod: Pod) -> None:
    commit(pod.site, 40, loss=None)
    (pod.root / "workload.json").write_text(WORKLOAD.model_dump_json())
    (pod.root / "archive.json").write_text(json.dumps({**CONFIG, "workload": True, "unjudged": "w" * 1000}))
    code, said = pod.run()
    assert code == 0 and (said["unproven"], said["step"]) == ("w" * 1000, 40)
    assert said["objects"] == sum(key.startswith(PREFIX) for key in pod.s3.held) and said["bytes"] > 0


@pytest.mark.parametrize(
    "error",
    [
        PermanentError("no", seen="x", cure="y"), OSError(28, "full"), ValueError("no number"), refused("AccessDenied"),
        NoCredentialsError(), Altered("its digest"), Unsound("not there"), Clash("another"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_failure_has_its_own_exit_code_and_is_the_last_word(
    pod: Pod, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    pod.fail(error)
    assert archive.main() == 74
    assert pod.log.read_text() == str(error)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["error"] == str(error)


def test_a_last_word_is_no_longer_than_kubernetes_keeps(pod: Pod) -> None:
    pod.fail(ValueError("x" * 5000))
    assert archive.main() == 74 and pod.log.read_text() == "x" * 4000


def test_a_failure_whose_last_word_cannot_be_written_still_has_its_exit_code(pod: Pod) -> None:
    pod.fail(ValueError("no number"))
    pod.log.mkdir()
    assert archive.main() == 74


def test_a_mistake_of_ours_is_raised_with_its_traceback(pod: Pod) -> None:
    pod.fail(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        archive.main()
    assert not pod.log.exists()


@pytest.mark.filterwarnings("ignore:'infra.archive.archive' found in sys.modules")
def test_the_module_is_the_jobs_program(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def text(path: Path, *_: Any, **__: Any) -> str:
        read.append(os.fspath(path))
        raise EOFError("read")

    monkeypatch.setattr(Path, "read_text", text)
    with pytest.raises(EOFError, match="read"):
        runpy.run_module("infra.archive.archive", run_name="__main__")
    assert read == ["/config/archive.json"]


def test_a_pod_finds_its_inputs_where_the_contract_mounts_them() -> None:
    places = archive.Places()
    assert (places.shared, places.config, places.data) == (
        Path("/shared-checkpoints"), Path("/config/train.json"), Path("/data"),
    )  # fmt: skip
