"""What is sealed stays as it was, whatever the job does to its own files; links, names and rights come back."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from trainer.contract.checkpoint import parse_manifest
from trainer.contract.sealed import serialize
from trainer.supervisor import seal
from trainer.supervisor.formats import Finished, files_of
from trainer.supervisor.place import Place
from trainer.supervisor.seal import Identity
from trainer.supervisor.sealing import copying
from trainer.supervisor.sealing.shared import NothingSound, Sealing
from trainer.supervisor.sealing.survey import told_version

IDENTITY = Identity("tiny", "one", 1, 1, "config", "data", "code", "image")
TREE = "tree-0000.json"


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Camp:
    """A job's own folder and a tier beside it."""

    def __init__(self, root: Path) -> None:
        self.own, self.tier = root / "tier/own", root / "tier"
        self.own.mkdir(parents=True)

    def seal(self, name: str, step: int = 10, attempt: int = 1, **more: Any) -> Path:
        root = self.own / name
        identity = IDENTITY._replace(attempt=attempt)
        return seal.seal(root, files_of(root), self.own, self.tier, step, identity, 0, None, **more)

    def fault(self, step: int = 10) -> str:
        return seal.fault(self.tier, step, "tiny", "one")

    def laid_back(self, step: int = 10) -> Path:
        path = self.own / seal.origin(self.tier, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        seal.lay_back(self.tier, step, path)
        return path

    def shards(self, step: int = 10) -> list[Path]:
        return sorted(self.tier.glob(f"step-{step:08d}/attempt-*/*"))


@pytest.fixture
def camp(tmp_path: Path) -> Camp:
    return Camp(tmp_path)


def test_three_steps_of_one_file_that_is_written_in_place_are_three(camp: Camp) -> None:
    for step in (10, 20, 30):
        with open(camp.own / "ckpt.pt", "w") as file:
            file.write(f"{step} " + "x" * 20_000)
        if step == 10:
            (camp.own / "ckpt.pt").touch()
        camp.seal("ckpt.pt", step)
    (camp.own / "ckpt.pt").write_text("torn")
    for step in (30, 20, 10):
        assert camp.fault(step) == "" and camp.laid_back(step).read_text().split()[0] == str(step)


def test_a_job_that_writes_into_what_was_laid_back_spoils_no_sealed_step(camp: Camp) -> None:
    put(camp.own / "step-10/state", "ten")
    camp.seal("step-10")
    with open(camp.laid_back() / "state", "r+") as file:
        file.write("torn")
    assert camp.fault() == ""


def test_a_sealed_file_has_no_name_in_the_jobs_folder(camp: Camp) -> None:
    put(camp.own / "step-10/state", "ten")
    camp.seal("step-10")
    assert {path.stat().st_nlink for path in camp.shards()} == {1}
    camp.laid_back()
    assert {path.stat().st_nlink for path in camp.shards()} == {1}


@pytest.mark.parametrize("way", ["reference", "direct", "not direct", "direct refused"])
@pytest.mark.parametrize("size", [0, 1, 2**21, 2**21 + 1, 3 * 2**21 + 5])
def test_every_way_to_copy_gives_the_same_bytes_and_their_digest(
    way: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    content = os.urandom(size)
    source.write_bytes(content)
    set_flags, write, invalid = fcntl.fcntl, os.pwrite, OSError(22, "Invalid argument")

    def clone(writing: int, request: int, reading: int) -> int:  # as a file system that can would do it
        assert request == 0x40049409
        write(writing, content, 0)
        return 0

    def flagged(file: int, command: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise invalid
        return set_flags(file, command, flags)

    def written(file: int, chunk: memoryview, offset: int) -> int:
        if set_flags(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise invalid
        return write(file, chunk, offset)

    if way == "reference":
        monkeypatch.setattr(copying.fcntl, "ioctl", clone)
    if way == "not direct":
        monkeypatch.setattr(copying.fcntl, "fcntl", flagged)
    if way == "direct refused":
        monkeypatch.setattr(os, "pwrite", written)
    assert copying.copy(source, target) == copying.digest_of(source) == copying.digest_of(target)
    assert target.read_bytes() == content


def test_a_copy_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").write_bytes(b"1" * 10)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "pwrite", lambda *given: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"):
        copying.copy(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_step_that_is_sealed_again_in_one_attempt_takes_the_place_of_the_first_and_leaves_nothing_of_it(
    camp: Camp,
) -> None:
    for text in ("one", "two", "three"):
        put(camp.own / "step-10/state", text)
        put(camp.own / f"step-10/{text}", text)
        manifest = camp.seal("step-10")
    assert camp.fault() == "" and (camp.laid_back() / "state").read_text() == "three"
    assert len(camp.shards()) == 5 == len(parse_manifest(manifest.read_bytes()).shards)


def test_a_sealing_that_fails_leaves_the_earlier_one_of_the_step(camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    put(camp.own / "step-10/state", "one")
    before = camp.seal("step-10").read_bytes()
    put(camp.own / "step-10/state", "two")
    sync = seal.sync

    def fails(folder: Path) -> None:
        sync(folder)
        if folder.name == "step-00000010" and (folder / seal.MANIFEST).read_bytes() != before:
            raise OSError(5, "Input/output error")

    for attempt in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(seal, "sync", fails)
            with pytest.raises(OSError, match="Input/output"):
                camp.seal("step-10", attempt=attempt)
        assert camp.fault() == "" and len(camp.shards()) == 2
        assert (camp.tier / "step-00000010/manifest.json").read_bytes() == before


def test_a_newer_attempt_seals_a_step_again_and_an_older_one_does_not(camp: Camp) -> None:
    put(camp.own / "step-10/state", "one")
    camp.seal("step-10")
    put(camp.own / "step-10/state", "two")
    assert parse_manifest(camp.seal("step-10", attempt=3).read_bytes()).attempt == 3
    with pytest.raises(ValueError, match="attempt 3 has sealed this step"):
        camp.seal("step-10", attempt=2)
    assert camp.fault() == "" and {path.parent.name for path in camp.shards()} == {"attempt-0003"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: put(root / "a", "A"), "a was written"),
        (lambda root: put(root / "more", "m"), "more came"),
        (lambda root: (root / "empty").mkdir(), "empty came"),
        (lambda root: (root / "l").symlink_to("a"), "l came"),
        (lambda root: (put(root / "b.tmp", "b"), (root / "b.tmp").rename(root / "b")), "b was written"),
        (lambda root: os.utime(root / "a", (1, 1)), "a was written"),
    ],
)
def test_a_checkpoint_that_changes_after_its_first_file_was_copied_is_not_sealed(
    change: Callable[[Path], object], said: str, camp: Camp, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = camp.own / "step-10"
    for name in "ab":
        put(root / name, name)
    taken = seal.copy_checkpoint

    def late(*given: Any) -> Any:
        rows = taken(*given)
        change(root)
        return rows

    monkeypatch.setattr(seal, "copy_checkpoint", late)
    with pytest.raises(ValueError, match=said):
        camp.seal("step-10")
    assert seal.committed(camp.tier) == [] and not (camp.tier / "step-00000010").exists()


def test_a_file_that_is_written_while_it_is_copied_is_not_sealed(camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    path, digest = put(camp.own / "step-10/a", "a" * 100), copying._digest

    def slow(*given: Any) -> Any:
        made = digest(*given)
        with open(path, "r+") as file:
            file.write("b")
        return made

    monkeypatch.setattr(copying, "_digest", slow)
    with pytest.raises(ValueError, match="a was written while it was sealed"):
        camp.seal("step-10")
    assert not (camp.tier / "step-00000010").exists()


def test_a_checkpoint_that_the_job_removes_while_it_is_copied_is_whole_all_the_same(
    camp: Camp, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        put(camp.own / "step-10" / name, name)
    copy = copying.copy

    def removed_first(source: Path, *given: Any) -> Any:
        for path in list((camp.own / "step-10").glob("*")):
            path.unlink(missing_ok=True)
        return copy(source, *given)

    monkeypatch.setattr("trainer.supervisor.sealing.survey.copy", removed_first)
    camp.seal("step-10")
    assert camp.fault() == "" and sorted(path.name for path in camp.laid_back().iterdir()) == ["a", "b", "c"]


def test_what_is_gone_altogether_is_no_difference(camp: Camp) -> None:
    root = put(camp.own / "step-10/a", "a").parent
    before = seal.survey_of(root, files_of(root), camp.own, False)
    put(root / "b", "b")
    assert seal.difference(before, root, files_of(root), camp.own, False) == "b came while it was copied"
    shutil.rmtree(root)
    assert seal.difference(before, root, [root / "a"], camp.own, False) == ""


def test_links_and_empty_folders_come_back_as_they_were(camp: Camp) -> None:
    root = camp.own / "step-10"
    put(root / "a/model", "m"), (root / "a/empty/deeper").mkdir(parents=True)
    (root / "inside").symlink_to("a/model"), (root / "folder").symlink_to("a")
    (root / "a/up").symlink_to("../a/model"), (root / "a/round").symlink_to("..")
    (root / "through").symlink_to("folder/model")
    (root / "absolute").symlink_to(root / "a/model"), (root / "winding").symlink_to("a/../a/model")
    camp.seal("step-10")
    assert len(camp.shards()) == 2, "one file, and what it is"
    shutil.rmtree(root)
    camp.laid_back()
    assert (root / "a/empty/deeper").is_dir() and os.readlink(root / "inside") == "a/model"
    assert os.readlink(root / "folder") == "a" and os.readlink(root / "a/round") == ".."
    assert os.readlink(root / "absolute") == "a/model" == os.readlink(root / "winding")
    assert {(root / name).read_text() for name in ("inside", "folder/model", "a/up", "through", "absolute")} == {"m"}


def test_what_a_link_leads_to_elsewhere_in_the_jobs_folder_is_sealed_with_it(camp: Camp) -> None:
    put(camp.own / "tok.json", "tokens"), put(camp.own / "common/vocab/words", "words")
    (camp.own / "common/first").symlink_to("vocab/words"), (camp.own / "common/again").symlink_to("../tok.json")
    put(camp.own / "step-10/state", "s")
    (camp.own / "step-10/tokenizer.json").symlink_to("../tok.json")
    (camp.own / "step-10/shared").symlink_to(camp.own / "common")
    camp.seal("step-10")
    put(camp.own / "tok.json", "others")
    root = camp.laid_back()
    assert not (root / "tokenizer.json").is_symlink() and (root / "tokenizer.json").read_text() == "tokens"
    assert (root / "shared/vocab/words").read_text() == "words" and (root / "shared/again").read_text() == "tokens"
    assert os.readlink(root / "shared/first") == "vocab/words"


def test_a_link_to_elsewhere_in_the_jobs_folder_is_one_again_where_that_is_as_it_was(camp: Camp) -> None:
    put(camp.own / "tok.json", "tokens"), put(camp.own / "common/deep/words", "words"), put(camp.own / "extra", "e")
    (camp.own / "common/empty").mkdir(), (camp.own / "common/first").symlink_to("deep/words")
    (camp.own / "common/more").symlink_to("../extra")
    put(camp.own / "runs/step-10/state", "s"), put(camp.own / "runs/step-10/sub/state", "s")
    links = {"tokenizer.json": "../../tok.json", "sub/shared": str(camp.own / "common"), "sub/common2": "../sub/x"}
    for name, target in links.items():
        (camp.own / "runs/step-10" / name).symlink_to(target)
    (camp.own / "runs/step-10/sub/x").symlink_to("../../../common/deep")
    camp.seal("runs/step-10")
    contents = {"tokenizer.json": "tokens", "sub/shared/first": "words", "sub/shared/more": "e", "sub/x/words": "words"}

    def linked(change: Callable[[], object] = lambda: None) -> set[str]:
        change()
        root = camp.laid_back()
        assert {name: (root / name).read_text() for name in contents} == contents and (
            root / "sub/shared/empty"
        ).is_dir()
        return {name for name, target in links.items() if os.path.islink(root / name)} & {
            "tokenizer.json",
            "sub/shared",
        }

    both, common = {"tokenizer.json", "sub/shared"}, camp.own / "common"
    assert linked() == both and os.readlink(camp.own / "runs/step-10/tokenizer.json") == "../../tok.json"
    assert linked(lambda: shutil.rmtree(camp.own / "runs")) == both
    assert linked(lambda: put(common / "new", "n")) == {"tokenizer.json"}, "more lies in it than did"
    assert linked((common / "new").unlink) == both
    assert linked((common / "empty").rmdir) == {"tokenizer.json"}
    (common / "empty").mkdir(), (common / "first").unlink()
    assert linked(lambda: (common / "first").symlink_to("./deep/words")) == both, "the link is the same"
    (common / "first").unlink()
    assert linked(lambda: put(common / "first", "words")) == {"tokenizer.json"}
    assert linked(lambda: put(camp.own / "tok.json", "tokenz")) == set(), "as long as it was, and another"
    (camp.own / "tok.json").unlink()
    assert linked(lambda: os.mkfifo(camp.own / "tok.json")) == set()
    shutil.rmtree(camp.own)
    camp.own.mkdir()
    assert linked() == set(), "a new disk"


def test_a_link_to_what_is_laid_back_itself_or_out_of_the_jobs_folder_is_not_made(camp: Camp) -> None:
    put(camp.own / "tok.json", "tokens"), put(camp.own / "step-10/state", "s")
    (camp.own / "step-10/tokenizer.json").symlink_to("../tok.json")
    manifest = camp.seal("step-10")
    outside = put(camp.tier.parent / "tok.json", "tokens")
    (note,) = camp.tier.glob(f"*/*/{TREE}")
    for target in ("tokenizer.json", "../step-10/state2", str(outside), "..", "."):
        put(camp.own / "step-10/state2", "tokens")
        tree = json.loads(note.read_bytes())
        note.write_text(json.dumps({**tree, "through": {"tokenizer.json": target}}))
        root = camp.laid_back()
        assert not (root / "tokenizer.json").is_symlink() and (root / "tokenizer.json").read_text() == "tokens"
    assert manifest.exists()


def test_a_file_of_a_part_is_never_a_link_to_itself(camp: Camp) -> None:
    put(camp.own / "run/weights-of-10", "w")
    files = [put(camp.own / "run/ckpt_10.pt", "ten"), camp.own / "run/weights_10.pt"]
    files[1].symlink_to("weights-of-10")
    seal.seal(camp.own / "run", files, camp.own, camp.tier, 10, IDENTITY, 0, None, part=True)
    camp.laid_back()
    assert os.readlink(files[1]) == "weights-of-10" and files[1].read_text() == "w"
    (camp.own / "run/weights-of-10").unlink()
    camp.laid_back()
    assert files[1].read_text() == "w" and not files[1].is_symlink()
    (note,) = camp.tier.glob(f"*/*/{TREE}")
    note.write_text(json.dumps({**json.loads(note.read_bytes()), "through": {"weights_10.pt": "./weights_10.pt"}}))
    camp.laid_back()
    assert files[1].read_text() == "w" and not files[1].is_symlink()


def test_a_link_to_a_later_checkpoint_that_a_restart_removes_becomes_what_it_led_to(camp: Camp) -> None:
    sealing, _, _ = started(camp, 1, "marker")
    put(camp.own / "step-20/vocabulary.json", "words"), put(camp.own / "step-10/state", "s")
    (camp.own / "step-10/vocabulary.json").symlink_to("../step-20/vocabulary.json")
    put(camp.own / "step-10/DONE", "")
    sealing.look()
    root = Path(started(camp, 2, "marker")[2])
    assert root.name == "step-10" and not (camp.own / "step-20").exists()
    assert (root / "vocabulary.json").read_text() == "words" and not (root / "vocabulary.json").is_symlink()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: (root / "bad").symlink_to("/etc/hostname"), "'bad' leads to '/etc/hostname', which is outside"),
        (lambda root: (root / "bad").symlink_to("../../../outside"), "'bad' leads to .* which is outside"),
        (lambda root: (root / "bad").symlink_to("gone"), "'bad' leads to 'gone', where nothing is"),
        (lambda root: (root / "bad").symlink_to("bad"), "'bad' leads to 'bad', where nothing is"),
        (lambda root: (root / "bad").symlink_to(".."), "'bad' leads to '..', a folder that holds it"),
        (lambda root: os.mkfifo(root / "bad"), "'bad' is neither a file nor a folder nor a link"),
        (lambda root: socket.socket(socket.AF_UNIX).bind(os.path.relpath(root / "bad")), "'bad' is neither"),
        (lambda root: os.mkfifo(root / "deep/bad"), "'deep/bad' is neither"),
    ],
    ids=["out", "far out", "dangling", "itself", "around", "pipe", "socket", "deep"],
)
def test_what_cannot_be_brought_back_refuses_the_seal_aloud(
    make: Callable[[Path], object], said: str, camp: Camp, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(camp.tier.parent / "outside", "o")
    put(camp.own / "step-10/deep/state", "s")
    monkeypatch.chdir(camp.own)
    make(camp.own / "step-10")
    with pytest.raises(ValueError, match=said):
        camp.seal("step-10")
    assert seal.committed(camp.tier) == []


def test_two_folders_that_link_to_each_other_end(camp: Camp) -> None:
    put(camp.own / "x/a", "a"), put(camp.own / "y/b", "b"), put(camp.own / "step-10/state", "s")
    (camp.own / "x/y").symlink_to("../y"), (camp.own / "y/x").symlink_to("../x")
    (camp.own / "step-10/x").symlink_to("../x")
    with pytest.raises(ValueError, match=r"'x/y/x' leads to .* a folder that holds it"):
        camp.seal("step-10")


def test_a_checkpoint_that_is_told_by_a_link_is_the_one_it_leads_to(camp: Camp) -> None:
    put(camp.own / "runs/a/step-10/state", "s")
    (camp.own / "latest").symlink_to("runs/a/step-10")
    camp.seal("latest")
    assert seal.origin(camp.tier, 10) == "runs/a/step-10" and (camp.laid_back() / "state").read_text() == "s"
    (camp.own / "out").symlink_to(camp.tier.parent)
    with pytest.raises(ValueError, match="outside of the job's folder"):
        seal.seal(camp.own / "out", [put(camp.tier.parent / "o", "o")], camp.own, camp.tier, 20, IDENTITY, 0, None)


def test_names_are_any_bytes(camp: Camp) -> None:
    names = [
        "optimizer=adamw/" + "模型权重分片-第一部分-" * 3 + "/layer/权重.bin",
        "x" * 255,
        "权" * 85,
        os.fsdecode(b"\xff\xfe not UTF-8"),
        'quotes "and" \n lines',
        "%2F%2F",
        ".hidden",
        "a..b",
    ]
    for name in names:
        put(camp.own / "step-10" / name, name.encode(errors="surrogateescape").hex())
    camp.seal("step-10")
    assert camp.fault() == ""
    shutil.rmtree(camp.own / "step-10")
    root = camp.laid_back()
    for name in names:
        assert (root / name).read_text() == name.encode(errors="surrogateescape").hex()
    assert all(path.name.isascii() and path.name.isprintable() and len(path.name) < 100 for path in camp.shards())


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_everybody_may_read_what_is_sealed_and_the_jobs_rights_come_back(umask: int, camp: Camp) -> None:
    secret, script = put(camp.own / "step-10/model.safetensors", "w"), put(camp.own / "step-10/run.sh", "s")
    secret.chmod(0o600), script.chmod(0o750), secret.parent.chmod(0o700)
    before = os.umask(umask)
    try:
        camp.seal("step-10")
        place = camp.tier / "step-00000010"
        for path in (place, *place.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644), path
        root = camp.laid_back()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((root / name).stat().st_mode) for name in ("model.safetensors", "run.sh")]
    assert modes == [0o600, 0o750]


def test_a_part_of_a_folder_is_sealed_and_laid_back_without_what_stands_beside(camp: Camp) -> None:
    files = [put(camp.own / "run/ckpt_10.pt", "ten"), put(camp.own / "run/deep/opt_10.pt", "opt")]
    put(camp.own / "run/log.txt", "log")
    seal.seal(camp.own / "run", files, camp.own, camp.tier, 10, IDENTITY, 0, None, part=True)
    assert len(camp.shards()) == 3 and camp.fault() == ""
    put(files[0], "torn")
    put(camp.own / "run/log.txt", "longer")
    files[1].unlink()
    root = camp.laid_back()
    assert [path.read_text() for path in files] == ["ten", "opt"] and (root / "log.txt").read_text() == "longer"


def test_a_step_in_the_older_form_is_read_and_laid_back(camp: Camp) -> None:
    rows = []
    for name, text in (("step-10%2F%2F.metadata", "m"), ("step-10%2F%2Fdeep%2Fshard", "s")):
        put(camp.tier / "step-00000010/attempt-0001" / name, text)
        digest = sha256(text.encode()).hexdigest()
        rows.append({"file": f"attempt-0001/{name}", "size_bytes": 1, "sha256": digest, "rank": 0})
    put(camp.tier / "step-00000010/manifest.json", serialize(IDENTITY, 10, 0, None, rows).decode())
    assert camp.fault() == "" and seal.origin(camp.tier, 10) == "step-10"
    assert (camp.laid_back() / "deep/shard").read_text() == "s"


def test_a_manifest_or_a_tree_that_leads_out_is_refused(camp: Camp) -> None:
    put(camp.own / "step-10/state", "s")
    path = camp.seal("step-10")
    shards = json.loads(path.read_text())["shards"]
    for file in ("../../own/step-10/state", "/etc/hostname", "attempt-0001/../../../x", "attempt-0001/deep/x"):
        path.write_bytes(serialize(IDENTITY, 10, 0, None, [{**shards[0], "file": file}]))
        assert "is no file of a step" in camp.fault()


class Told:
    """A job that runs, and what is told of it."""

    def __init__(self) -> None:
        self.stopping, self.step, self.tokens = "", 0, 0
        self.loss: float | None = None
        self.events: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def wait_for(self, path: Path, seconds: float) -> None:
        assert path.exists()

    def said(self, event: str) -> list[Any]:
        return [one["step"] for one in self.events if one["event"] == event]


def started(camp: Camp, attempt: int, form: str = "client", keep: int = 3) -> tuple[Sealing, Told, str]:
    """A supervisor's sealing at the start of an attempt, its job, and where that resumes."""
    place = Place("tiny", attempt, "n0", "127.0.0.1", 0, 1, 1, "127.0.0.1:1", "", "")
    checkpoints = {"format": form, "folder": str(camp.own), "keep": keep}
    job = Told()
    config = {"identity": "one", "config_digest": "config", "checkpoints": checkpoints}
    sealing = Sealing(config, place, camp.tier, job, 1)
    return sealing, job, sealing.resume()


def saved(camp: Camp, sealing: Sealing, step: int, text: str | None = None) -> None:
    path = put(camp.own / "ckpt.pt", text or str(step))
    os.utime(path, ns=(time.time_ns(), time.time_ns()))
    sealing.tell(Finished(step, path))


@pytest.mark.parametrize("sealed_first", [True, False])
def test_a_folder_that_is_told_and_then_written_again_never_spoils_the_step_it_was(
    camp: Camp, sealed_first: bool
) -> None:
    sealing, job, _ = started(camp, 1)
    put(camp.own / "save/a", "a of 10"), put(camp.own / "save/b", "b of 10")
    sealing.tell(Finished(10, camp.own / "save"))
    if sealed_first:
        sealing.look()
    put(camp.own / "save/a", "half of 20")
    sealing.look()
    sealing.finish(1)
    assert seal.committed(camp.tier) == ([10] if sealed_first else [])
    assert job.said("not_sealed") == ([] if sealed_first else [10])
    if sealed_first:
        assert camp.fault(10) == "" and (camp.laid_back(10) / "a").read_text() == "a of 10"


def test_a_folder_that_gets_more_files_after_it_was_told_is_sealed_with_them(camp: Camp) -> None:
    sealing, _, _ = started(camp, 1)
    put(camp.own / "save/a", "a")
    sealing.tell(Finished(10, camp.own / "save"))
    put(camp.own / "save/b", "b")
    sealing.look()
    assert (camp.laid_back(10) / "b").read_text() == "b"


def test_a_file_that_is_told_and_then_written_again_is_not_sealed_as_the_step_it_was(camp: Camp) -> None:
    sealing, job, _ = started(camp, 1)
    saved(camp, sealing, 10)
    sealing.look()
    saved(camp, sealing, 20)
    put(camp.own / "ckpt.pt", "half of 30")
    sealing.look()
    assert seal.committed(camp.tier) == [10] and job.said("not_sealed") == [20]
    saved(camp, sealing, 30), saved(camp, sealing, 40)
    sealing.look()
    assert seal.committed(camp.tier) == [40, 10], "step 30 was never seen"
    assert job.said("committed") == [10, 40] and job.said("not_sealed") == [20]
    saved(camp, sealing, 50)
    (camp.own / "ckpt.pt").unlink()
    sealing.look()
    assert job.said("not_sealed") == [20] and not sealing.told, "the job has removed it itself"


def test_what_was_written_again_before_its_telling_was_heard_is_not_sealed(camp: Camp) -> None:
    sealing, job, _ = started(camp, 1)
    root = put(camp.own / "step-10/deep/a", "four").parents[1]
    put(root / "b", "six"), os.utime(root / "b", ns=(0, 10**18)), os.utime(root / "deep/a", ns=(0, 2 * 10**18))
    (root / "gone").symlink_to("nothing"), os.mkfifo(root / "pipe")
    assert told_version(root) == [2, 7, 2 * 10**18] and told_version(root / "b") == [1, 3, 10**18]
    assert told_version(root / "nothing") == [0, 0, 0]
    (root / "gone").unlink(), (root / "pipe").unlink()
    sealing.tell(Finished(10, root), [2, 7, 2 * 10**18 - 1])
    sealing.look()
    assert job.said("not_sealed") == [10] and seal.committed(camp.tier) == []
    sealing.tell(Finished(10, root), [2, 7, 2 * 10**18])
    sealing.look()
    assert seal.committed(camp.tier) == [10]


def test_a_told_folder_to_which_a_rank_adds_its_file_is_sealed_as_it_stands(camp: Camp) -> None:
    sealing, job, _ = started(camp, 1)
    put(camp.own / "step-10/rank-0", "0")
    sealing.tell(Finished(10, camp.own / "step-10"))
    put(camp.own / "step-10/rank-1", "1")
    sealing.look()
    assert job.said("committed") == [10] and not job.said("not_sealed") and len(camp.shards()) == 3


def test_another_node_takes_up_what_node_0_has_chosen_and_seals_nothing(camp: Camp) -> None:
    put(camp.own / "step-10/state", "s"), put(camp.own / "step-10/DONE", "")
    put(camp.tier / "step-00000020/attempt-0001/half", "h")
    place = Place("tiny", 1, "n1", "127.0.0.1", 1, 2, 1, "127.0.0.1:1", "", "")
    checkpoints = {"format": "marker", "folder": str(camp.own), "keep": 3}
    job = Told()
    sealing = Sealing({"identity": "one", "config_digest": "c", "checkpoints": checkpoints}, place, camp.tier, job, 1)
    assert not sealing.busy, "nothing is copied yet"
    waits: list[tuple[str, float]] = []

    def chosen(path: Path, seconds: float) -> None:
        waits.append((path.name, seconds))
        put(path, json.dumps({"step": 10, "path": "/own/step-10"}))

    job.wait_for = chosen  # type: ignore[method-assign]
    assert (sealing.resume(), sealing.committed) == ("/own/step-10", 10)
    assert sealing.resume(2) == "/own/step-10" and [name for name, _ in waits] == [
        "attempt-0001.json",
        "attempt-0001-generation-2.json",
    ]
    assert 600 <= waits[0][1] <= 3600, "node 0 reads all of a checkpoint meanwhile"
    sealing.committed = -1
    sealing.look()
    assert seal.started_steps(camp.tier) == [20] and not job.events, "all that is for node 0 to do"
    job.stopping = "SIGTERM"
    assert sealing.resume() == "" and sealing.committed == -1


def test_a_file_in_a_folder_of_its_own_comes_back_to_a_new_disk(camp: Camp) -> None:
    sealing, _, _ = started(camp, 1)
    sealing.tell(Finished(10, put(camp.own / "runs/a/ckpt.pt", "ten")))
    sealing.look()
    shutil.rmtree(camp.own)
    resume = started(camp, 2)[2]
    assert resume == str(camp.own / "runs/a/ckpt.pt") and Path(resume).read_text() == "ten"


def test_what_the_job_left_at_its_end_is_sealed_and_accounted_for(camp: Camp) -> None:
    sealing, _, _ = started(camp, 1, "marker")
    put(camp.own / "step-10/state", "s"), put(camp.own / "step-10/DONE", ""), put(camp.own / "strange/file", "?")
    assert sealing.committed == -1
    sealing.put_off[10] = time.monotonic() + 900
    sealing.look()
    assert seal.committed(camp.tier) == [] and sealing.accounts.now is not None
    sealing.finish(0)
    assert seal.committed(camp.tier) == [10] and sealing.accounts.now.entries == ("strange",)


def test_a_manifest_that_is_spoilt_keeps_no_step_from_being_sealed_again(camp: Camp) -> None:
    put(camp.own / "step-10/state", "s")
    camp.seal("step-10").write_text("{}")
    assert camp.fault() == "no manifest: KeyError: 'seal'"
    (camp.tier / "step-00000010/manifest.json").write_text("{")
    manifest = camp.seal("step-10", attempt=2)
    assert camp.fault() == "" and {row.rank for row in parse_manifest(manifest.read_bytes()).shards} == {0}
    assert {path.parent.name for path in camp.shards()} == {"attempt-0002"}


def test_a_tier_that_cannot_be_seen_for_a_moment_loses_no_step(camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    put(camp.own / "step-10/state", "s")
    camp.seal("step-10")
    lstat = os.lstat

    def fails(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(str(camp.tier / "step-00000010")):
            raise OSError(5, "Input/output error")
        return lstat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fails)
        assert seal.committed(camp.tier) == [10]
        assert not seal.in_size(camp.tier / "step-00000010", is_whole=False), "not seen is not there"
    assert seal.in_size(camp.tier / "step-00000010") and camp.fault() == ""


def test_a_tier_without_room_is_told_with_the_room_that_is_left(camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    sealing, job, _ = started(camp, 1)
    saved(camp, sealing, 10)
    with monkeypatch.context() as full:
        full.setattr(seal, "publish", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        sealing.look()
    (event,) = (event for event in job.events if event["event"] == "not_sealed")
    assert event["step"] == 10 and "No space left on device; " in event["why"] and "MiB" in event["why"]
    assert sealing.waits(10) and not sealing.busy and job.said("committed") == []
    sealing.finish(0)
    assert job.said("committed") == [10], "the last try is at the end"


def test_a_note_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size) or fsync(file))
    seal.publish(tmp_path / "note", b"12345")
    assert synced[0] == 5 and (tmp_path / "note").read_bytes() == b"12345"


def test_what_cannot_be_removed_keeps_no_attempt_from_beginning(camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    put(camp.tier / "step-00000010/attempt-0001/half", "h")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda *given, **more: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        seal.tidy(camp.tier)
    assert seal.started_steps(camp.tier) == [10] and seal.committed(camp.tier) == []
    seal.tidy(camp.tier)
    assert seal.started_steps(camp.tier) == []


def test_what_is_laid_back_is_on_the_disk_under_its_name(camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    put(camp.own / "runs/step-10/state", "s")
    camp.seal("runs/step-10")
    synced: list[tuple[Path, bool]] = []
    sync = seal.sync
    monkeypatch.setattr(
        seal, "sync", lambda folder: synced.append((folder, (camp.own / "runs/step-10").exists())) or sync(folder)
    )
    shutil.rmtree(camp.own / "runs/step-10")
    camp.laid_back()
    assert synced[-1] == (camp.own / "runs", True)


def test_a_step_that_is_told_again_is_sealed_again_and_the_same_one_is_not(camp: Camp) -> None:
    sealing, job, _ = started(camp, 1)
    saved(camp, sealing, 10, "first")
    sealing.look()
    saved(camp, sealing, 10, "second")
    sealing.look()
    sealing.tell(Finished(10, camp.own / "ckpt.pt"))
    sealing.look()
    assert job.said("committed") == [10, 10] and camp.laid_back().read_text() == "second"
    later, job, resume = started(camp, 2)
    assert Path(resume).read_text() == "second" and job.said("committed") == []
    later.tell(Finished(10, Path(resume)))
    later.look()
    manifest = parse_manifest((camp.tier / "step-00000010/manifest.json").read_bytes())
    assert job.said("committed") == [10] and manifest.attempt == 2 and camp.fault() == ""


def test_a_damaged_step_that_is_done_again_after_a_restart_in_place_is_sealed_anew(camp: Camp) -> None:
    sealing, job, _ = started(camp, 1)
    for step in (10, 20):
        saved(camp, sealing, step)
        sealing.look()
    shard = next(path for path in camp.shards(20) if path.name != TREE)
    shard.write_text("??")
    assert Path(sealing.resume(generation=1)).read_text() == "10" and job.said("refused_step") == [20]
    saved(camp, sealing, 20)
    sealing.look()
    assert camp.fault(20) == "" and job.said("committed") == [10, 20, 20]


def test_where_no_sealed_step_is_sound_the_job_does_not_begin_anew_and_what_was_half_sealed_goes(camp: Camp) -> None:
    sealing, _, _ = started(camp, 1)
    half = put(camp.tier / "step-00000020/attempt-0001/half", "x")
    assert started(camp, 2)[2] == "" and not half.parents[1].exists()
    saved(camp, sealing, 10)
    sealing.look()
    next(path for path in camp.shards(10) if path.name != TREE).write_text("??")
    with pytest.raises(
        NothingSound, match=r"none of its 1 sealed checkpoints is sound; step 10: .*ckpt\.pt: 2 of 2 bytes"
    ):
        started(camp, 3)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_newer_steps_count_for_no_retention(keep: int, camp: Camp) -> None:
    sealing, _, _ = started(camp, 1, keep=9)
    for step in (10, 40, 50, 60):
        saved(camp, sealing, step)
        sealing.look()
    for step in (40, 50, 60):
        next(path for path in camp.shards(step) if path.name != TREE).write_text("??")
    again, job, resume = started(camp, 2, keep=keep)
    assert Path(resume).read_text() == "10" and job.said("refused_step") == [60, 50, 40]
    saved(camp, again, 20)
    again.look()
    sound = [step for step in seal.committed(camp.tier) if not camp.fault(step)]
    assert sound == [20, 10][:keep]
    for step in (30, 40, 50, 60, 70):
        saved(camp, again, step)
        again.look()
    assert seal.committed(camp.tier) == [70, 60, 50][:keep], "nothing damaged is left once the job is beyond"
    assert seal.started_steps(camp.tier) == seal.committed(camp.tier), "nor what takes room without a manifest"
    assert not [step for step in seal.committed(camp.tier) if camp.fault(step)]


def test_a_relaunch_that_keeps_fewer_counts_no_step_whose_file_is_gone(camp: Camp) -> None:
    sealing, _, _ = started(camp, 1, keep=9)
    for step in (10, 20, 30):
        saved(camp, sealing, step)
        sealing.look()
    next(path for path in camp.shards(20) if path.name != TREE).unlink()
    again, _, _ = started(camp, 2, keep=3)
    saved(camp, again, 40)
    again.look()
    assert seal.committed(camp.tier) == [40, 30, 10]


def test_a_step_whose_manifest_is_spoilt_counts_for_no_retention(camp: Camp) -> None:
    for step in (10, 20, 30):
        put(camp.own / "ckpt.pt", str(step))
        camp.seal("ckpt.pt", step)
    put(camp.tier / "step-00000020/manifest.json", "{}")
    assert seal.keep(camp.tier, 2) == [20] and seal.committed(camp.tier) == [30, 10]
    put(camp.tier / "step-00000030/manifest.json", "spoilt")
    assert seal.keep(camp.tier, 1) == [] and seal.committed(camp.tier) == [30, 10], "newer than all that is sound"
    path = next(path for path in camp.shards(10) if path.name != TREE)
    path.write_bytes(path.read_bytes() + b"more")
    assert seal.keep(camp.tier, 1) == [], "where nothing is sound, nothing goes"


def test_what_an_earlier_sealing_left_in_other_attempts_goes_with_the_new_manifest(camp: Camp) -> None:
    put(camp.own / "step-10/state", "one")
    for attempt in (1, 2, 5):
        put(camp.tier / f"step-00000010/attempt-000{attempt}/left", "over")
    camp.seal("step-10", attempt=2)
    camp.seal("step-10", attempt=4)
    assert [path.name for path in sorted((camp.tier / "step-00000010").iterdir())] == ["attempt-0004", "manifest.json"]


def test_a_full_tier_is_relieved_of_the_jobs_later_files_before_a_step_is_laid_back(
    camp: Camp, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, _, _ = started(camp, 1, "marker")
    for step in (10, 20):
        put(camp.own / f"step-{step}/state", str(step)), put(camp.own / f"step-{step}/DONE", "")
        sealing.look() if step == 10 else None
    copy = seal.copy

    def full(source: Path, target: Path) -> object:
        if (camp.own / "step-20").exists():
            raise OSError(28, "No space left on device")
        return copy(source, target)

    monkeypatch.setattr(seal, "copy", full)
    assert Path(started(camp, 2, "marker")[2]).name == "step-10"
    assert sorted(path.name for path in camp.own.iterdir()) == ["step-10"], "and nothing half laid back"
