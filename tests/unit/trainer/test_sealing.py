"""Sealed checkpoints lie where the job wrote them when they are laid back, whatever their form; signs of life."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import until
from trainer.supervisor import activity, ends, family, seal
from trainer.supervisor.failures import LastWords
from trainer.supervisor.formats import files_of
from trainer.supervisor.job import Job
from trainer.supervisor.place import Place
from trainer.supervisor.redact import Redactor
from trainer.supervisor.seal import Identity

IDENTITY = Identity("tiny", "one", 1, 1, "config", "data", "code", "image")


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("root", "files"),
    [
        ("step-10", ["state"]),
        ("step-10", [".metadata", "deep/er/shard"]),
        ("runs/a/step-10", ["state", "other"]),
        ("lightning_logs/version_0/epoch=0-step=10.ckpt", []),
        ("epoch=0-step=10.ckpt", []),
    ],
)
def test_a_checkpoint_is_laid_back_where_it_was_and_touches_nothing_beside(
    root: str, files: list[str], tmp_path: Path
) -> None:
    own, tier = tmp_path / "own", tmp_path / "tier"
    written = [put(own / root / name, name) for name in files] or [put(own / root, "all of it")]
    texts = {path: path.read_text() for path in written}
    beside = put((own / root).parent / "beside/log.txt", "kept")
    seal.seal(own / root, files_of(own / root), own, tier, 10, IDENTITY, 0, None)
    assert seal.origin(tier, 10) == root and seal.fault(tier, 10, "tiny", "one") == ""
    for path in written:
        path.unlink()
    seal.lay_back(tier, 10, own / seal.origin(tier, 10))
    assert {path: path.read_text() for path in written} == texts and beside.read_text() == "kept"


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e300])
def test_a_loss_that_is_no_number_spoils_no_manifest(loss: float, tmp_path: Path) -> None:
    put(tmp_path / "own/step-1/state", "1")
    own, tier = tmp_path / "own", tmp_path / "tier"
    seal.seal(own / "step-1", files_of(own / "step-1"), own, tier, 1, IDENTITY, 0, loss)
    assert seal.fault(tmp_path / "tier", 1, "tiny", "one") == ""


def test_the_work_of_a_rank_in_a_session_of_its_own_counts() -> None:
    code = "while True: pass"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], start_new_session=True)"
    launcher = subprocess.Popen([sys.executable, "-c", start], start_new_session=True)
    try:
        idle = subprocess.Popen(["sleep", "1000"])
        assert until(lambda: activity.processor_seconds(launcher.pid, family.processes()) > 1.0)
        assert activity.processor_seconds(idle.pid, family.processes()) < 0.5
    finally:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        for pid in (launcher.pid, idle.pid, *map(int, children)):
            subprocess.run(["kill", "-9", str(pid)], check=True)
        launcher.wait()
        idle.wait()


def test_a_process_that_ends_with_its_processor_time_hides_no_later_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place("tiny", 1, "n0", "127.0.0.1", 0, 1, 1, "127.0.0.1:29500", "", "")
    job = Job(
        {"launcher": "none", "checkpoints": {"folder": str(tmp_path / "own"), "format": "marker"}},
        place,
        tmp_path,
        tmp_path,
    )
    job.process = subprocess.Popen(["sleep", "1000"])
    try:
        for seconds in (100.0, 1.0, 1.2):
            monkeypatch.setattr(activity, "processor_seconds", lambda root, among, seconds=seconds: seconds)
            job.heard = 0.0
            job._look()
            assert job.heard > 0, seconds
        job.heard = 0.0
        job._look()
        assert job.heard == 0.0, "no work, no sign"
    finally:
        job.process.kill()
        job.process.wait()


def test_what_is_sealed_is_on_the_disk_before_its_manifest_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b/c"):
        put(tmp_path / "own/step-1" / name, name)
    done: list[object] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: done.append(os.fstat(fd).st_ino) or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda source, target: done.append(target) or replace(source, target))
    own, tier = tmp_path / "own", tmp_path / "tier"
    manifest = seal.seal(own / "step-1", files_of(own / "step-1"), own, tier, 1, IDENTITY, 0, None)
    folder = tmp_path / "tier/step-00000001/attempt-0001"
    before = done[: done.index(manifest)]
    assert {path.stat().st_ino for path in (*folder.iterdir(), folder)} <= set(before)
    assert done[-1] == manifest.parent.stat().st_ino, "and the manifest's name after it"


@pytest.mark.parametrize("size", [0, 1, 2**22 - 1, 2**22, 2**22 + 1, 2**23, 3 * 2**22 + 7])
def test_a_digest_is_of_every_byte_whatever_the_size(size: int, tmp_path: Path) -> None:
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    assert seal.digest_of(tmp_path / "file") == (size, hashlib.sha256(content).hexdigest())


def test_what_a_dead_node_left_half_sealed_or_half_laid_back_goes_and_nothing_else(tmp_path: Path) -> None:
    own, tier = tmp_path / "own", tmp_path / "tier"
    put(own / "step-10/state", "ten")
    seal.seal(own / "step-10", files_of(own / "step-10"), own, tier, 10, IDENTITY, 0, None)
    half, resume = put(tier / "step-00000020/attempt-0001/step-20%2F%2Fstate", "t"), put(tier / "resume/a.json", "{}")
    more = put(tier / "step-00000030/attempt-0001/half", "t")
    laid, hidden = put(own / ".step-10.0123456789abcdef/state", "t"), put(own / ".config/state", "kept")
    seal.tidy(tier)
    seal.lay_back(tier, 10, own / "step-10")
    assert seal.committed(tier) == [10] and seal.fault(tier, 10, "tiny", "one") == ""
    assert not half.parents[1].exists() and not more.parents[1].exists()
    assert not laid.parent.exists() and resume.exists() and hidden.exists()


@pytest.mark.parametrize("before", [0, 1, 60, 65_530, 65_535])
def test_a_line_without_end_comes_in_pieces_that_split_no_secret(before: int) -> None:
    redactor = Redactor(["hünter22-and-more", "", "hünter22"])
    raw = b"a\n" + (b"x" * before + "hünter22-and-more".encode()) * 5 + b"y" * 70_000 + b"\n" + b'{"step": 1}'
    lines = list(redactor.lines(io.BytesIO(raw)))
    shown = "".join(line.safe for line in lines)
    assert shown == "a" + ("x" * before + "[secret]") * 5 + "y" * 70_000 + '{"step": 1}'
    assert [line.text for line in lines if line.text] == ["a", '{"step": 1}']
    assert max(len(line.safe) for line in lines) < 70_000


class Slow(io.BytesIO):
    """A pipe out of which a few bytes come at a time."""

    def __init__(self, raw: bytes, bytes_each: int) -> None:
        super().__init__(raw)
        self._each = bytes_each

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(self._each)


@pytest.mark.parametrize("bytes_each", [1, 2, 3, 7, 10_000])
def test_a_progress_bar_that_writes_over_itself_is_read_line_by_line(bytes_each: int) -> None:
    raw = b"begun\r\n\r step 1\r step 2 hunter22\r step 3\ndone\r\n\nstep 4\r"
    lines = list(Redactor(["hunter22"]).lines(Slow(raw, bytes_each)))
    assert [line.text for line in lines] == [
        "begun",
        "",
        " step 1",
        " step 2 hunter22",
        " step 3",
        "done",
        "",
        "step 4",
    ]
    assert [line.written_over for line in lines] == [False, True, True, True, False, False, False, False]
    assert lines[3].safe == " step 2 [secret]"


def test_a_progress_bars_step_is_known_when_the_next_is_written_not_at_the_lines_end() -> None:
    """The stream is read as it comes: what is not there yet is waited for by nobody."""
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as job:
        lines = Redactor([]).lines(stream)
        job.write(b"\r 1/9\r 2/9")
        assert [next(lines).text, next(lines).text] == ["", " 1/9"]
        job.write(b"\r 3/9")
        assert next(lines).text == " 2/9"


def test_events_stay_json_whatever_a_secret_is() -> None:
    redactor = Redactor(['a"b', "1", "why"])
    assert redactor.redact({"why": 'a"b at 1', "step": 11, "of": ["why", None]}) == {
        "why": "[secret] at [secret]", "step": 11, "of": ["[secret]", None],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "said", "end", "detail"),
    [
        (1, ["Traceback", "[rank0]: torch.OutOfMemoryError: none left", "done"], 70,
         "the job exited with 1; it said last: torch.OutOfMemoryError: none left (rank 0); CUDA is out of memory"),
        (-11, [], 70, "the job died of SIGSEGV"),
        (76, ["loss is NaN"], 76, "the job exited with 76; it said last: loss is NaN"),
        (1, ["OSError: [Errno 28] No space left on device", "bye"], 74,
         "the job exited with 1 for want of room; it said: OSError: [Errno 28] No space left on device"),
        (1, ["[Errno 122] Disk quota exceeded"], 74, "the job exited with 1 for want of room; it said: [Errno 122] "),
    ],
)  # fmt: skip
def test_a_failed_job_has_an_end_in_words(code: int, said: list[str], end: int, detail: str, tmp_path: Path) -> None:
    words = LastWords()
    for line in said:
        words.hear(line)
    got = ends.failure_end(code, words, (tmp_path,))
    assert got.code == end and got.detail.startswith(detail)


def test_a_file_that_goes_while_it_is_sealed_leaves_nothing_behind(tmp_path: Path) -> None:
    own, tier = tmp_path / "own", tmp_path / "tier"
    files = [put(own / "step-1" / name, name) for name in "ab"]
    files[1].unlink()
    with pytest.raises(FileNotFoundError):
        seal.seal(own / "step-1", files, own, tier, 1, IDENTITY, 0, None)
    assert seal.committed(tier) == [] and not list(tier.rglob("*")), "a link would keep the space of a removed file"


def test_a_manifest_that_is_not_known_to_be_on_the_disk_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, tier = tmp_path / "own", tmp_path / "tier"
    files, sync = [put(own / "step-1/state", "1")], seal.sync

    def fails(folder: Path) -> None:
        sync(folder)
        if (folder / seal.MANIFEST).exists():
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(seal, "sync", fails)
    with pytest.raises(OSError, match="Input/output"):
        seal.seal(own / "step-1", files, own, tier, 1, IDENTITY, 0, None)
    assert seal.committed(tier) == []


def digested(
    root: Path, names: tuple[str, ...] = (".metadata", "__0_0.distcp", "__1_0.distcp")
) -> dict[str, list[object]]:
    """Write a checkpoint as `bivouac_dcp` does; return what its note says of the files."""
    noted = {}
    for name in names:
        content = put(root / name, f"{name} of {root.name}").read_bytes()
        noted[name] = [len(content), hashlib.sha256(content).hexdigest()]
    put(root / seal.DIGESTS, json.dumps({"files": noted}))
    return noted


def sealed(tmp_path: Path) -> Path:
    own = tmp_path / "own"
    return seal.seal(own / "step-1", files_of(own / "step-1"), own, tmp_path / "tier", 1, IDENTITY, 0, None)


def test_what_changed_after_its_writer_digested_it_is_not_sealed(tmp_path: Path) -> None:
    digested(tmp_path / "own/step-1")
    put(tmp_path / "own/step-1/__1_0.distcp", "__1_0.distcp of step-9")
    with pytest.raises(ValueError, match=r"__1_0\.distcp is not what its writer has digested: 22 bytes"):
        sealed(tmp_path)
    assert seal.committed(tmp_path / "tier") == [] and not list((tmp_path / "tier").rglob("*"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda root, noted: None,
        lambda root, noted: put(root / seal.DIGESTS, "{"),
        lambda root, noted: put(root / seal.DIGESTS, json.dumps({"files": [1]})),
        lambda root, noted: put(root / seal.DIGESTS, json.dumps([noted])),
        lambda root, noted: put(root / seal.DIGESTS, json.dumps({"files": {**noted, "gone": [1, ""]}})),
        lambda root, noted: put(root / "more", "that the note does not know"),
        lambda root, noted: put(root / "__0_0.distcp", "shorter"),
        lambda root, noted: put(root / ".metadata", ".metadata of step-2"),
        lambda root, noted: put(root / seal.DIGESTS, json.dumps({"files": {".metadata": noted[".metadata"]}})),
    ],
    ids=[
        "all is well",
        "no JSON",
        "a list",
        "no files",
        "one too many",
        "one too few",
        "another size",
        "another save",
        "metadata only",
    ],
)
def test_a_note_that_fits_is_held_against_the_copy_and_another_is_not_believed(
    spoil: Callable[[Path, dict[str, list[object]]], object], tmp_path: Path
) -> None:
    root = tmp_path / "own/step-1"
    spoil(root, digested(root))
    sealed(tmp_path)
    assert seal.fault(tmp_path / "tier", 1, "tiny", "one") == ""
