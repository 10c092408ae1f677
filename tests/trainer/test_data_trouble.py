"""Data that is in the way of its own preparation: refused by name, nothing half-made is taken for whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.contract import DATA_MANIFEST_NAME, ExitCode
from trainer.data import prepare as preparation
from trainer.data.prepare import prepare
from trainer.errors import DataError

COMMAND = [sys.executable, "-m", "trainer.data"]
ROOT = Path(__file__).parents[2]


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
            path.unlink() if then.startswith("-") else path.write_text("something else")

    prepare(source, "*.txt", None, 0.2, 5, 270, out, progress)


@pytest.mark.parametrize("change", ["3.txt", "-3.txt"], ids=["rewritten", "removed"])
@pytest.mark.parametrize("stage", ["tokenizer", "encode", "write"])
def test_a_file_that_changes_while_it_is_prepared_is_refused_by_name(
    source: Path, tmp_path: Path, stage: str, change: str
) -> None:
    with pytest.raises(DataError, match=r"changed while.*3\.txt"):
        make(source, tmp_path / "out", stage, change)
    assert not (tmp_path / "out" / DATA_MANIFEST_NAME).exists()


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(source: Path, tmp_path: Path) -> None:
    with (source / "9.txt").open("wb") as file:
        file.truncate(2**43)  # sparse: 8 TiB without a newline
    with pytest.raises(DataError, match=r"does not fit.*9\.txt.*cure"):
        make(source, tmp_path / "out")


def test_an_output_folder_with_other_files_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("mine")
    with pytest.raises(DataError, match=r"other files.*thesis\.doc"):
        make(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.doc"]


def test_shards_of_an_earlier_preparation_do_not_stay(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "out")
    for name in ("train-00007.bin", ".train-00008.bin.partial"):
        (tmp_path / "out" / name).write_bytes(b"old")
    make(source, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "train-00000.bin",
        "validation-00000.bin",
    ]


def test_a_loop_of_links_is_not_followed(source: Path, tmp_path: Path) -> None:
    (source / "loop.txt").symlink_to("loop.txt")
    (source / "round").symlink_to(source)
    make(source, tmp_path / "out")
    assert (tmp_path / "out" / DATA_MANIFEST_NAME).exists()


def test_a_killed_preparation_leaves_no_manifest(source: Path, tmp_path: Path) -> None:
    for index in range(200):
        (source / f"many{index}.txt").write_text(f"more words {index}\n" * 2000)
    out = tmp_path / "out"
    process = subprocess.Popen([*COMMAND, str(source), str(out), "--vocabulary=400"], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None and b"progress" in process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert not (out / DATA_MANIFEST_NAME).exists()


def test_a_full_disk_is_said_and_no_manifest_is_left(source: Path) -> None:
    """On a tmpfs of 16 KiB in a mount namespace of its own."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are forbidden here")
    script = (
        f"mount -t tmpfs -o size=24k tmpfs /mnt && {sys.executable} -m trainer.data {source} /mnt/out --vocabulary=270;"
        "code=$?; ls -A /mnt/out; exit $code"
    )
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == ExitCode.STORAGE, done.stdout + done.stderr
    assert "cannot be written" in done.stderr and "cure" in done.stderr and "Traceback" not in done.stderr
    assert DATA_MANIFEST_NAME not in done.stdout.splitlines()


def test_a_file_that_grows_while_it_is_read_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = preparation._state

    def grown(status: os.stat_result) -> tuple[int, ...]:
        with (source / "0.txt").open("a") as file:
            file.write("and on\n")
        return sizes(status)

    monkeypatch.setattr(preparation, "_state", grown)
    with pytest.raises(DataError, match=r"changed while.*0\.txt"):
        make(source, tmp_path / "out")


def test_a_folder_that_cannot_be_read_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    os.mkfifo(tmp_path / "text" / "pipe.txt")
    begun = time.monotonic()
    with pytest.raises(DataError, match="no file matches"):
        make(tmp_path / "text", tmp_path / "out")
    assert time.monotonic() - begun < 10
