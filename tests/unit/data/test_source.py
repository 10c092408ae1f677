"""A workload's code is packed to the same bytes for the same files, and what git ignores stays out."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.data import source
from infra.data.source import PackedSource, pack
from infra.errors import UserError
from infra.plan import source_files
from infra.spec.workload.workload import Workload


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))


def workload(folder: Path | None, **more: str) -> Workload:
    given: dict[str, Any] = {
        **more,
        "source": None if folder is None else str(folder),
        "script": "/train.py",
        "checkpoints": {"format": "marker"},
        "estimates": {"steps": 10, "step_seconds": 1},
    }
    return Workload.model_validate(given)


def code(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "deep/run.sh").write_text("#!/bin/sh\n")
    (folder / "deep/run.sh").chmod(0o755)
    (folder / "latest").symlink_to("train.py")
    return folder


def names(packed: PackedSource) -> list[str]:
    with tarfile.open(packed.folder / f"source-{packed.sha256[:16]}.tar") as tar:
        return sorted(tar.getnames())


def test_the_same_files_are_the_same_bytes_whenever_and_wherever_they_were_written(tmp_path: Path) -> None:
    first, second = code(tmp_path / "a"), code(tmp_path / "elsewhere/b")
    os.utime(second / "train.py", (1, 1))
    one, two = pack(workload(first)), pack(workload(second))
    assert (one.digest, one.sha256, one.files) == (two.digest, two.sha256, 3)
    with tarfile.open(one.folder / f"source-{one.sha256[:16]}.tar") as tar:
        assert tar.getmember("deep/run.sh").mode == 0o755 and tar.getmember("latest").linkname == "train.py"
    (second / "train.py").write_text("print(2)\n")
    assert pack(workload(second)).digest != one.digest


def test_the_local_file_with_the_secrets_is_not_packed(tmp_path: Path) -> None:
    folder = code(tmp_path / "code")
    plain = pack(workload(folder))
    (folder / "deep/secrets.env").write_text("TOKEN=hunter22\n")
    given = workload(folder)
    hiding = given.model_copy(
        update={"rehearsal": given.rehearsal.model_copy(update={"secrets": str(folder / "deep/../deep/secrets.env")})}
    )
    assert pack(hiding).digest == plain.digest and names(pack(hiding)) == names(plain)
    assert "deep/secrets.env" in names(pack(given)), "another file of that name is"


def test_of_a_repository_goes_what_git_does_not_ignore_and_the_commit_is_told(tmp_path: Path) -> None:
    folder = code(tmp_path / "repository")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "big.log").write_text("noise")

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout

    git("init", "-q"), git("add", "-A"), git("commit", "-qm", "one")
    clean = pack(workload(folder))
    assert clean.commit == git("rev-parse", "HEAD").strip()
    assert names(clean) == [".gitignore", "deep/run.sh", "latest", "train.py"]
    (folder / "new.py").write_text("")
    (folder / "train.py").unlink()
    changed = pack(workload(folder))
    assert changed.commit == f"{clean.commit}-dirty"
    assert names(changed) == [".gitignore", "deep/run.sh", "latest", "new.py"], "new files too, and no removed one"


def test_outside_of_git_caches_and_environments_stay_out(tmp_path: Path) -> None:
    folder = code(tmp_path / "plain")
    for name in ("__pycache__/train.pyc", ".venv/bin/python", "deep/__pycache__/x.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    packed = pack(workload(folder))
    assert packed.commit == "" and names(packed) == ["deep/run.sh", "latest", "train.py"]


def test_without_a_source_there_is_no_archive_but_a_manifest(tmp_path: Path) -> None:
    packed = pack(workload(None))
    assert packed.sha256 == "" and [path.name for path in packed.folder.iterdir()] == ["manifest.json"]


def test_a_source_that_is_missing_empty_or_huge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    for folder, why in ((tmp_path / "none", "no such folder"), (tmp_path / "empty", "no file")):
        with pytest.raises(UserError, match=why):
            pack(workload(folder))
    monkeypatch.setattr(source_files, "MOST_BYTES", 10)
    with pytest.raises(UserError, match=r"too large.*\.gitignore"):
        pack(workload(code(tmp_path / "large")))


# --- weights to start from ---


def llama(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep/weights").write_text("1234")
    (folder / "link").symlink_to("config.json")
    for left_out in (".git/lfs/object", ".cache/x"):
        (folder / left_out).parent.mkdir(parents=True)
        (folder / left_out).write_text("twice")
    return folder


def test_weights_change_the_digest_of_what_is_uploaded_and_not_that_of_the_code(tmp_path: Path) -> None:
    folder, begin = code(tmp_path / "code"), llama(tmp_path / "llama")
    plain, given = pack(workload(folder)), workload(folder, init_from=str(begin))
    packed = pack(given)
    assert packed.sha256 == plain.sha256 and packed.digest != plain.digest == pack(workload(folder)).digest
    assert [(weight.name, weight.size_bytes) for weight in packed.weights] == [
        ("config.json", 2),
        ("deep/weights", 4),
        ("link", 2),
    ]
    assert pack(given) == packed
    (begin / "deep/weights").write_text("1235")
    assert pack(given).digest != packed.digest
    assert pack(workload(folder, init_from="s3://bucket/llama")).digest == plain.digest, "they are linked"


def test_weights_that_are_missing_empty_or_large_are_refused_with_a_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for folder, why in ((tmp_path / "none", "no such folder"), (tmp_path / "empty", "has no file")):
        with pytest.raises(UserError, match=why):
            source.weight_files(str(folder))
    monkeypatch.setattr(source, "MOST_BYTES", 7)
    with pytest.raises(UserError, match=r"too large.*init_from: s3://bucket/prefix"):
        source.weight_files(str(llama(tmp_path / "llama")))


class Bucket:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def upload_file(self, path: str, bucket: str, key: str) -> None:
        self.held[key] = Path(path).read_bytes()


def test_weights_lie_beside_the_code_and_none_that_changed_meanwhile_counts(tmp_path: Path) -> None:
    begin, bucket = llama(tmp_path / "llama"), Bucket()
    account: Any = SimpleNamespace(client=lambda _: bucket)
    files, said = source.weight_files(str(begin)), list[str]()
    source.upload_weights(account, "data", str(begin), files, "d1", said.append)
    assert bucket.held == {
        "datasets/d1/init-from/config.json": b"{}", "datasets/d1/init-from/deep/weights": b"1234",
        "datasets/d1/init-from/link": b"{}",
    }  # fmt: skip
    assert said[-1] == "weights: 3 of 3 to the data bucket"
    (begin / "config.json").write_text("[]")
    with pytest.raises(UserError, match="changed while they were uploaded"):
        source.upload_weights(account, "data", str(begin), files, "d1", said.append)
