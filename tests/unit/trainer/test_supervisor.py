"""The supervisor around a small job: steps, sealed checkpoints, a stop, a resume, a damaged checkpoint, a secret."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import httpx2
import pytest

from infra.checkpoints.place import FolderPlace
from infra.checkpoints.work import restore
from tests.unit.trainer.supervised import SECRET, Supervisors, events
from tests.waiting import until
from trainer.contract import AGENT_PORT, NOTHING_SOUND, ExitCode, Status, parse_manifest
from trainer.contract.listing import list_folder
from trainer.contract.sealed import serialize
from trainer.supervisor import launcher, seal
from trainer.supervisor.pack import pack
from trainer.supervisor.place import Place
from trainer.supervisor.progress.lines import LineReader
from trainer.supervisor.redact import take_secrets

IDENTITY = seal.Identity("tiny", "one", 1, 1, "config", "data", "code", "image")


@pytest.fixture
def camp(tmp_path: Path) -> Supervisors:
    return Supervisors(tmp_path)


def test_a_stopped_job_goes_on_from_its_newest_sealed_checkpoint(camp: Supervisors) -> None:
    first = camp.start(1, *camp.job(10_000, 0.01), steps=10_000)
    until(lambda: seal.committed(camp.tier), "a step is sealed")
    answer = httpx2.get(f"http://{camp.addresses[0]}:{AGENT_PORT}/status", timeout=None)
    status = Status.model_validate_json(answer.content)
    assert status.step > 0 and status.ranks[0].alive
    first.terminate()
    said = first.communicate()[0]
    assert first.returncode == ExitCode.INTERRUPTED and camp.ended().reason == "interrupted"
    assert SECRET not in said and "my token is [secret]" in said
    newest = seal.committed(camp.tier)[0]
    rows = list_folder(camp.tier, "shared", "tiny")
    assert len(rows) == 2 and all(row.committed and row.here == row.shards == 3 for row in rows), "as any list has it"

    second = camp.start(2, *camp.job(newest + 20, 0.0), steps=newest + 20)
    said = second.communicate()[0]
    assert second.returncode == 0 and events(said, "restored")[0]["step"] == newest
    assert events(said, "step")[0]["step"] == newest + 1 and seal.committed(camp.tier)[0] == newest + 20


def test_the_pods_secrets_take_the_place_of_what_the_image_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"TOKEN": SECRET, "KEY": "first\nsecond", "OTHER": "not asked for"}))
    monkeypatch.setenv("BIVOUAC_SECRETS", str(file))
    monkeypatch.setenv("TOKEN", "a placeholder of the image")
    monkeypatch.setenv("KEY", "another")
    take_secrets(["TOKEN", "KEY"])
    assert (os.environ["TOKEN"], os.environ["KEY"], "OTHER" in os.environ) == (SECRET, "first\nsecond", False)
    with pytest.raises(ValueError, match="the pod has no secret GONE") as missing:
        take_secrets(["TOKEN", "GONE"])
    assert SECRET not in str(missing.value)
    file.unlink()
    take_secrets([])
    with pytest.raises(OSError, match=r"values\.json"):
        take_secrets(["TOKEN"])


def test_a_pod_without_its_secret_ends_before_the_job_begins(camp: Supervisors) -> None:
    camp.more = {"secrets": ["TOKEN", "GONE"]}
    process = camp.start(1, *camp.job(40, 0.0))
    assert "my token" not in process.communicate()[0] and process.returncode == ExitCode.USER


def test_a_damaged_checkpoint_is_refused_before_the_job_sees_it(camp: Supervisors) -> None:
    assert camp.start(1, *camp.job(40, 0.0)).wait() == 0
    newest, before = seal.committed(camp.tier)
    (shard,) = (camp.tier / f"step-{newest:08d}/attempt-0001").glob("*state")
    shard.write_bytes(b"44")
    said = camp.start(2, *camp.job(50, 0.0), steps=50).communicate()[0]
    assert [event["step"] for event in events(said, "refused_step")] == [newest]
    assert events(said, "restored")[0]["step"] == before
    assert seal.committed(camp.tier) == [50, newest], "it was done again"
    assert seal.fault(camp.tier, newest, "tiny", "one") == "", "and takes the damaged one's place"


def test_where_every_sealed_checkpoint_is_damaged_the_job_does_not_begin_anew(camp: Supervisors) -> None:
    """The steward brings a copy back from S3 for that reason; a start from the beginning is a person's choice."""
    assert camp.start(1, *camp.job(40, 0.0)).wait() == 0
    steps = seal.committed(camp.tier)
    for step in steps:
        for shard in (camp.tier / f"step-{step:08d}/attempt-0001").iterdir():
            shard.write_bytes(b"44")
    process = camp.start(2, *camp.job(50, 0.0), steps=50)
    said = process.communicate()[0]
    assert [event["step"] for event in events(said, "refused_step")] == steps and not events(said, "step")
    assert (camp.ended().exit_code, camp.ended().reason) == (ExitCode.STORAGE, NOTHING_SOUND)
    assert f"none of its {len(steps)} sealed checkpoints is sound" in camp.ended().detail


def test_on_a_new_file_system_the_job_goes_on_from_a_copy_that_came_back(camp: Supervisors, tmp_path: Path) -> None:
    assert camp.start(1, *camp.job(40, 0.0)).wait() == 0
    newest, older = seal.committed(camp.tier)
    copies = tmp_path / "copies"
    shutil.copytree(camp.tier / f"step-{older:08d}", copies / f"step-{older:08d}")
    shutil.rmtree(camp.tier)
    restore(FolderPlace(copies), older, camp.tier, lambda said: None)
    said = camp.start(2, *camp.job(40, 0.0)).communicate()[0]
    assert [event["step"] for event in events(said, "restored")] == [older] and camp.ended().exit_code == 0
    assert min(event["step"] for event in events(said, "step")) == older + 1
    assert seal.committed(camp.tier) == [newest, older] and not seal.fault(camp.tier, newest, "tiny", "one")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("/no/such/program",), ExitCode.USER),
        ((sys.executable, "-c", "print('done already')"), ExitCode.USER),
        ((sys.executable, "-c", "raise SystemExit(1)"), ExitCode.INTERNAL),
        ((sys.executable, "-c", "raise SystemExit(76)"), ExitCode.NUMERIC),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), ExitCode.INTERNAL),
    ],
)
def test_an_end_has_its_meaning(camp: Supervisors, command: tuple[str, ...], code: int) -> None:
    process = camp.start(1, *command)
    process.communicate()
    assert process.returncode == camp.ended().exit_code == code


def test_a_manifest_is_the_contracts_to_the_byte(tmp_path: Path) -> None:
    chance = random.Random(1)
    shards: list[dict[str, object]] = [{"file": "attempt-0001/a", "size_bytes": 1, "sha256": "0" * 64, "rank": 0}]
    losses = [None, 0.1 + 0.2, 1e-5, 1e-7, 1e14, 3.0, -2.5e-6]
    losses += [chance.uniform(1, 2) * 10 ** chance.randint(-12, 14) for _ in range(500)]
    for loss in losses:
        content = serialize(IDENTITY, 20, 1000, loss, shards)
        assert parse_manifest(content, 20, "tiny", "one").loss == loss


@pytest.mark.parametrize(
    ("pattern", "line", "told"),
    [
        (None, '{"step": 5, "loss": 0.25}', (5, {"loss": 0.25})),
        (None, 'INFO {"iteration": 7, "lm loss": "2"}', (7, {"loss": 2.0})),
        (None, '{"step": 5, "loss": NaN}', (5, {})),
        (None, "step 5", None),
        (None, '{"step": true}', None),
        (r"iteration\s+(?P<step>[\d,]+)/.*lm loss: (?P<loss>\S+)", " iteration  1,024/ 5000 | lm loss: 3.2E+00 |",
         (1024, {"loss": 3.2})),
    ],
)  # fmt: skip
def test_a_line_tells_step_and_figures(pattern: str | None, line: str, told: Any) -> None:
    read = LineReader(pattern).read(line)
    assert (None if read is None else (read.step, read.figures)) == told


@pytest.mark.parametrize("damaged", [False, True])
def test_code_is_unpacked_where_the_job_starts_if_it_is_the_campaigns(damaged: bool, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('{\"step\": 1}')")
    with tarfile.open(tmp_path / "source.tar", "w") as tar:
        tar.add(tmp_path / "code/train.py", "train.py")
    digest = hashlib.sha256((tmp_path / "source.tar").read_bytes()).hexdigest()
    given = {"source": str(tmp_path / "source.tar"), "source_digest": "0" * 64 if damaged else digest}
    camp = Supervisors(tmp_path, folder=tmp_path / "workspace", more=given)
    process = camp.start(1, sys.executable, "train.py", steps=1)
    said = process.communicate()[0]
    assert process.returncode == (ExitCode.DATA if damaged else 0)
    assert bool(events(said, "refused_source")) == damaged


def test_the_packed_supervisor_is_one_file_of_a_language_that_old_containers_have(tmp_path: Path) -> None:
    pack(tmp_path / "supervisor.pyz")
    adapters = {f"bivouac_{name}.py" for name in ("accelerate", "dcp", "lightning", "megatron", "transformers")}
    feed = {f"bivouac_data/{name}.py" for name in ("__init__", "order", "reader", "sequences")}
    beside = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py")}
    assert beside == {"bivouac.py", *adapters, *feed}
    done = subprocess.run([sys.executable, "-I", tmp_path / "supervisor.pyz"], capture_output=True, text=True)
    assert done.returncode == ExitCode.USER and "BIVOUAC_CAMPAIGN" in done.stderr, "it runs, and says what is missing"
    with zipfile.ZipFile(tmp_path / "supervisor.pyz") as packed:
        names = [name for name in packed.namelist() if name.endswith(".py")]
        trees = [ast.parse(packed.read(name), name, feature_version=(3, 8)) for name in names]
    imported = {
        name.partition(".")[0]
        for tree in trees
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert imported - {"trainer"} <= sys.stdlib_module_names


def test_a_rank_that_fails_with_a_code_of_its_own_is_heard_through_torchrun() -> None:
    def heard(*lines: str) -> int:
        job = {"launcher": "torchrun", "command": ["train.py"]}
        torchrun = launcher.make_launcher(job, Place("c", 1, "n", "10.0.0.1", 0, 1, 2, "x:1", "", ""))
        for line in lines:
            torchrun.hear(line)
        assert torchrun.exit_code(0, "", False) == 0
        return torchrun.exit_code(1, "", False)

    summary = ("[0]:", "  rank      : 1 (local_rank: 1)", "  exitcode  : 64 (pid: 7)", "  exitcode  : 1 (pid: 8)")
    assert heard(*summary) == 64 and heard("  exitcode  : -9 (pid: 7)") == -9
    assert heard("loss exitcode : 64") == heard() == 1
