"""Data that is in the way of its own preparation: refused by name, nothing half-made is taken for whole."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.root import ROOT
from tests.trainer.data_sets import prepare
from tests.waiting import HUNG_S
from trainer.builtin.data import __main__ as command
from trainer.builtin.data import share
from trainer.builtin.data.prepare import inputs
from trainer.builtin.data.prepare.prepare import _refuse_foreign
from trainer.contract import DATA_MANIFEST_NAME, ExitCode, Parameters
from trainer.contract.exits import TERMINATION_LOG_VARIABLE
from trainer.contract.recipe import Recipe, Source
from trainer.errors import DataError, OutOfFiles, StorageError

COMMAND = [sys.executable, "-m", "trainer.builtin.data"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "text"
    root.mkdir()
    for index in range(6):
        (root / f"{index}.txt").write_text(
            "".join(f"word{number % (index + 3)} of document {index}, line {number}\n" for number in range(300))
        )
    return root


def make(source: Path, out: Path, on: str = "", then: str = "") -> None:
    """Prepare; when stage `on` begins, write to the file `then` (or remove it, when it begins with a minus)."""

    def progress(stage: str, part: float) -> None:
        if stage == on:
            path = source / then.lstrip("-")
            if not then.startswith("-"):
                path.write_text("something else")
            elif path.exists():
                path.unlink()

    prepare(source, "*.txt", None, 0.2, 5, 270, out, progress)


def recipe(source: Path, vocabulary: int = 270) -> str:
    rules = Parameters(held_out=0.2, seed=5)
    return Recipe(sources=(Source(location=str(source)),), parameters=rules, vocabulary=vocabulary).model_dump_json()


@pytest.mark.parametrize("change", ["3.txt", "-3.txt"], ids=["rewritten", "removed"])
@pytest.mark.parametrize("stage", ["read", "tokenizer", "encode"])
def test_a_file_that_changes_while_it_is_prepared_is_refused_by_name(
    source: Path, tmp_path: Path, stage: str, change: str
) -> None:
    with pytest.raises(DataError, match=r"changed while.*3\.txt"):
        make(source, tmp_path / "out", stage, change)
    assert not (tmp_path / "out" / DATA_MANIFEST_NAME).exists()


def test_an_output_folder_with_other_files_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("mine")
    with pytest.raises(DataError, match=r"other files.*thesis\.doc"):
        make(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.doc"]


def test_shards_of_an_earlier_preparation_do_not_stay(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "out")
    for name in ("train-00007.bin", "train-00007.idx", ".train-00008.bin.partial"):
        (tmp_path / "out" / name).write_bytes(b"old")
    (source / "6.txt").write_text("one more document\n" * 30)
    make(source, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if p.name not in (".plan", ".lock")) == [
        "manifest.json",
        "summary.json",
        "tokenizer.json",
        "train-00000.bin",
        "train-00000.idx",
        "validation-00000.bin",
        "validation-00000.idx",
    ]


def test_a_loop_of_links_is_not_followed(source: Path, tmp_path: Path) -> None:
    (source / "loop.txt").symlink_to("loop.txt")
    (source / "round").symlink_to(source)
    make(source, tmp_path / "out")
    assert (tmp_path / "out" / DATA_MANIFEST_NAME).exists()


KILLED_IN_ENCODING = """
import os, signal
from trainer.builtin.data import __main__ as command
tell = command.Teller.__call__
def told(self, stage, part):
    tell(self, stage, part)
    if stage == "encode":
        os.kill(os.getpid(), signal.SIGKILL)
command.Teller.__call__ = told
raise SystemExit(command.main())
"""


def test_a_killed_preparation_leaves_no_manifest_and_the_next_one_continues(source: Path, tmp_path: Path) -> None:
    for index in range(80):
        (source / f"many{index}.txt").write_text(f"more words {index}\n" * 2000)
    out = tmp_path / "out"
    arguments = [recipe(source, 400), str(out)]
    command = [*COMMAND, *arguments]
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_ENCODING, *arguments], cwd=ROOT, timeout=HUNG_S)
    assert killed.returncode == -signal.SIGKILL
    assert not (out / DATA_MANIFEST_NAME).exists()
    kept = {path: path.stat().st_mtime_ns for path in (out / ".work").glob("scan-*.records")}
    assert kept
    again = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert again.stdout is not None
    for line in again.stdout:
        if '"encode"' in line:
            assert {path: path.stat().st_mtime_ns for path in kept} == kept, "what was scanned was scanned again"
            break
    again.stdout.read()
    assert again.wait(timeout=HUNG_S) == 0 and (out / DATA_MANIFEST_NAME).exists()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), ExitCode.DATA, "fit into memory.*fewer --cores"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ExitCode.DATA, "fit into memory.*fewer --cores"),
        (OSError(errno.EMFILE, "Too many open files", "/a"), ExitCode.INTERNAL, "no more files.*/a: Too many"),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.STORAGE, "cannot be written.*out: No space"),
        (DataError("no text", "seen"), ExitCode.DATA, "no text"),
    ],
)
def test_what_ends_a_preparation_has_its_code_and_cure(
    error: Exception, code: ExitCode, words: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "make", fail)
    monkeypatch.setattr(sys, "argv", ["data", recipe(source), str(tmp_path / "out")])
    assert command.main() == code and re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), ExitCode.DATA, "fit into memory.*instance_type"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ExitCode.DATA, "fit into memory.*instance_type"),
        (OSError(errno.EMFILE, "Too many open files", "/a"), ExitCode.INTERNAL, "no more files.*/a: Too many"),
        (OSError(errno.EIO, "Input/output error"), ExitCode.STORAGE, "disk cannot be used.*another node"),
    ],
)
def test_what_ends_a_worker_in_the_cluster_has_its_code_and_cure(
    error: Exception, code: ExitCode, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: bytes) -> None:
        raise error

    (tmp_path / "work").touch()
    monkeypatch.setattr(share, "SHARE_FILE", str(tmp_path / "work"))
    monkeypatch.setattr(share, "Preparing", SimpleNamespace(model_validate_json=fail))
    monkeypatch.setenv(TERMINATION_LOG_VARIABLE, str(tmp_path / "end"))
    assert share.main() == code and re.search(words, (tmp_path / "end").read_text())


def test_a_file_that_cannot_be_seen_is_not_a_changed_one(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file, *_) = inputs.list_source(Source(location=str(source), pattern="0.txt"), None, 0)
    assert file.current_state() == file.state

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        file.current_state()


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageError), (errno.EMFILE, OutOfFiles)])
def test_folders_that_cannot_be_listed_are_no_mistake_of_the_spec(
    number: int, error: type[Exception], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(Path, "glob", refuse)
    with pytest.raises(error):
        inputs.list_source(Source(location=str(source), pattern="*.txt"), None, 0)
    with pytest.raises(error):
        _refuse_foreign(tmp_path / "out")


def test_a_data_set_that_cannot_be_seen_is_not_made_anew(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(source, tmp_path / "out")
    real = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == ".plan":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        make(source, tmp_path / "out")


def test_two_preparations_do_not_write_into_one_folder(source: Path, tmp_path: Path) -> None:
    from trainer.builtin.data.prepare.prepare import _lock_folder

    (tmp_path / "out").mkdir()
    with _lock_folder(tmp_path / "out"), pytest.raises(DataError, match="another preparation"):
        make(source, tmp_path / "out")


def test_a_full_disk_is_said_and_no_manifest_is_left(source: Path) -> None:
    """On a tmpfs of 24 KiB in a mount namespace of its own."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are forbidden here")
    script = (
        "mount -t tmpfs -o size=24k tmpfs /mnt && "
        f"{sys.executable} -m trainer.builtin.data '{recipe(source)}' /mnt/out;"
        "code=$?; ls -A /mnt/out; exit $code"
    )
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=HUNG_S
    )
    assert done.returncode == ExitCode.STORAGE, done.stdout + done.stderr
    assert "cannot be written" in done.stderr and "cure" in done.stderr and "Traceback" not in done.stderr
    assert DATA_MANIFEST_NAME not in done.stdout.splitlines()


def test_a_file_that_grows_while_it_is_read_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = inputs.File._raw

    def grown(self: inputs.File, start: int) -> object:
        with (source / "0.txt").open("a") as file:
            file.write("and on\n")
        return opened(self, start)

    monkeypatch.setattr(inputs.File, "_raw", grown)
    with pytest.raises(DataError, match=r"changed while.*0\.txt"):
        make(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.txt.gz", gzip.compress(b"some words that go on\n" * 500, mtime=0)[:-30]),
        ("odd.txt.zst", b"no zstandard at all"),
        ("odd.txt.xz", b"no xz at all"),
        ("odd.parquet", b"no parquet at all"),
    ],
)
def test_a_damaged_file_is_refused_by_name(source: Path, tmp_path: Path, name: str, content: bytes) -> None:
    (source / name).write_bytes(content)
    done = subprocess.run(
        [*COMMAND, recipe(source), str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S
    )
    assert done.returncode == ExitCode.DATA, done.stderr
    assert name in done.stderr and "cure" in done.stderr and "Traceback" not in done.stderr


def test_a_workers_refusal_comes_with_its_parts(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(40):
        (source / f"large{index}.txt").write_text(f"a line of file {index}\n" * 20_000)
    (source / "zzz.txt.gz").write_bytes(b"no gzip")
    done = subprocess.run(
        [*COMMAND, recipe(source), str(tmp_path / "out"), "--cores=2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HUNG_S,
    )
    assert done.returncode == ExitCode.DATA
    assert done.stderr.count("; seen: ") == 1 and done.stderr.count("; cure: ") == 1, done.stderr


def test_a_folder_that_cannot_be_read_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    os.mkfifo(tmp_path / "text" / "pipe.txt")
    begun = time.monotonic()
    with pytest.raises(DataError, match="no file matches"):
        make(tmp_path / "text", tmp_path / "out")
    assert time.monotonic() - begun < 10


def test_progress_tells_how_long_it_will_take(source: Path, tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, recipe(source), str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    parts = [line["part"] for line in lines if line["event"] == "progress"]
    assert parts == sorted(parts) and parts[-1] == 1.0
    assert any(line.get("left_s") is not None for line in lines)
