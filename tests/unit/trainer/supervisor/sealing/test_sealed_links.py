"""Links, names and rights of a checkpoint come back as they were, and what cannot come back is refused."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.supervisor_tier import IDENTITY, TREE, JobDisk, put
from trainer.supervisor import seal


def test_links_and_empty_folders_come_back_as_they_were(disk: JobDisk) -> None:
    root = disk.own / "step-10"
    put(root / "a/model", "m"), (root / "a/empty/deeper").mkdir(parents=True)
    (root / "inside").symlink_to("a/model"), (root / "folder").symlink_to("a")
    (root / "a/up").symlink_to("../a/model"), (root / "a/round").symlink_to("..")
    (root / "through").symlink_to("folder/model")
    (root / "absolute").symlink_to(root / "a/model"), (root / "winding").symlink_to("a/../a/model")
    disk.seal("step-10")
    assert len(disk.shards()) == 2, "one file, and what it is"
    shutil.rmtree(root)
    disk.laid_back()
    assert (root / "a/empty/deeper").is_dir() and os.readlink(root / "inside") == "a/model"
    assert os.readlink(root / "folder") == "a" and os.readlink(root / "a/round") == ".."
    assert os.readlink(root / "absolute") == "a/model" == os.readlink(root / "winding")
    assert {(root / name).read_text() for name in ("inside", "folder/model", "a/up", "through", "absolute")} == {"m"}


def test_what_a_link_leads_to_elsewhere_in_the_jobs_folder_is_sealed_with_it(disk: JobDisk) -> None:
    put(disk.own / "tok.json", "tokens"), put(disk.own / "common/vocab/words", "words")
    (disk.own / "common/first").symlink_to("vocab/words"), (disk.own / "common/again").symlink_to("../tok.json")
    put(disk.own / "step-10/state", "s")
    (disk.own / "step-10/tokenizer.json").symlink_to("../tok.json")
    (disk.own / "step-10/shared").symlink_to(disk.own / "common")
    disk.seal("step-10")
    put(disk.own / "tok.json", "others")
    root = disk.laid_back()
    assert not (root / "tokenizer.json").is_symlink() and (root / "tokenizer.json").read_text() == "tokens"
    assert (root / "shared/vocab/words").read_text() == "words" and (root / "shared/again").read_text() == "tokens"
    assert os.readlink(root / "shared/first") == "vocab/words"


def test_a_link_to_elsewhere_in_the_jobs_folder_is_one_again_where_that_is_as_it_was(disk: JobDisk) -> None:
    put(disk.own / "tok.json", "tokens"), put(disk.own / "common/deep/words", "words"), put(disk.own / "extra", "e")
    put(disk.own / "common/deep/others", "other")
    (disk.own / "common/empty").mkdir(), (disk.own / "common/first").symlink_to("deep/words")
    (disk.own / "common/more").symlink_to("../extra")
    put(disk.own / "runs/step-10/state", "s"), put(disk.own / "runs/step-10/sub/state", "s")
    links = {"tokenizer.json": "../../tok.json", "sub/shared": str(disk.own / "common"), "sub/common2": "../sub/x"}
    for name, target in links.items():
        (disk.own / "runs/step-10" / name).symlink_to(target)
    (disk.own / "runs/step-10/sub/x").symlink_to("../../../common/deep")
    disk.seal("runs/step-10")
    contents = {"tokenizer.json": "tokens", "sub/shared/first": "words", "sub/shared/more": "e", "sub/x/words": "words"}

    def linked(change: Callable[[], object] = lambda: None) -> set[str]:
        change()
        root = disk.laid_back()
        assert {name: (root / name).read_text() for name in contents} == contents and (
            root / "sub/shared/empty"
        ).is_dir()
        return {name for name, target in links.items() if os.path.islink(root / name)} & {
            "tokenizer.json",
            "sub/shared",
        }

    links_left, common = {"tokenizer.json", "sub/shared"}, disk.own / "common"
    assert linked() == links_left and os.readlink(disk.own / "runs/step-10/tokenizer.json") == "../../tok.json"
    assert linked(lambda: shutil.rmtree(disk.own / "runs")) == links_left
    assert linked(lambda: put(common / "new", "n")) == {"tokenizer.json"}, "more lies in it than did"
    assert linked((common / "new").unlink) == links_left
    assert linked((common / "empty").rmdir) == {"tokenizer.json"}
    (common / "empty").mkdir(), (common / "first").unlink()
    assert linked(lambda: (common / "first").symlink_to("./deep/words")) == links_left, "the link is the same"
    (common / "first").unlink()
    assert linked(lambda: (common / "first").symlink_to("deep/others")) == {"tokenizer.json"}, "it leads elsewhere"
    (common / "first").unlink()
    assert linked(lambda: put(common / "first", "words")) == {"tokenizer.json"}
    assert linked(lambda: put(disk.own / "tok.json", "tokenz")) == set(), "as long as it was, and another"
    (disk.own / "tok.json").unlink()
    assert linked(lambda: os.mkfifo(disk.own / "tok.json")) == set()
    shutil.rmtree(disk.own)
    disk.own.mkdir()
    assert linked() == set(), "a new disk"


def test_a_link_to_what_is_laid_back_itself_or_out_of_the_jobs_folder_is_not_made(disk: JobDisk) -> None:
    put(disk.own / "tok.json", "tokens"), put(disk.own / "step-10/state", "s")
    (disk.own / "step-10/tokenizer.json").symlink_to("../tok.json")
    manifest = disk.seal("step-10")
    outside = put(disk.tier.parent / "tok.json", "tokens")
    (note,) = disk.tier.glob(f"*/*/{TREE}")
    for target in ("tokenizer.json", "../step-10/state2", str(outside), "..", "."):
        put(disk.own / "step-10/state2", "tokens")
        tree = json.loads(note.read_bytes())
        note.write_text(json.dumps({**tree, "through": {"tokenizer.json": target}}))
        root = disk.laid_back()
        assert not (root / "tokenizer.json").is_symlink() and (root / "tokenizer.json").read_text() == "tokens"
    assert manifest.exists()


def test_a_file_of_a_part_is_never_a_link_to_itself(disk: JobDisk) -> None:
    put(disk.own / "run/weights-of-10", "w")
    files = [put(disk.own / "run/ckpt_10.pt", "ten"), disk.own / "run/weights_10.pt"]
    files[1].symlink_to("weights-of-10")
    seal.seal(disk.own / "run", files, disk.own, disk.tier, 10, IDENTITY, 0, None, part=True)
    disk.laid_back()
    assert os.readlink(files[1]) == "weights-of-10" and files[1].read_text() == "w"
    (disk.own / "run/weights-of-10").unlink()
    disk.laid_back()
    assert files[1].read_text() == "w" and not files[1].is_symlink()
    (note,) = disk.tier.glob(f"*/*/{TREE}")
    note.write_text(json.dumps({**json.loads(note.read_bytes()), "through": {"weights_10.pt": "./weights_10.pt"}}))
    disk.laid_back()
    assert files[1].read_text() == "w" and not files[1].is_symlink()


def test_a_link_to_a_later_checkpoint_that_a_restart_removes_becomes_what_it_led_to(disk: JobDisk) -> None:
    sealing, _, _ = disk.begin(1, "marker")
    put(disk.own / "step-20/vocabulary.json", "words"), put(disk.own / "step-10/state", "s")
    (disk.own / "step-10/vocabulary.json").symlink_to("../step-20/vocabulary.json")
    put(disk.own / "step-10/DONE", "")
    sealing.look()
    root = Path(disk.begin(2, "marker")[2])
    assert root.name == "step-10" and not (disk.own / "step-20").exists()
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
    make: Callable[[Path], object], said: str, disk: JobDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(disk.tier.parent / "outside", "o")
    put(disk.own / "step-10/deep/state", "s")
    monkeypatch.chdir(disk.own)
    make(disk.own / "step-10")
    with pytest.raises(ValueError, match=said):
        disk.seal("step-10")
    assert seal.committed(disk.tier) == []


def test_two_folders_that_link_to_each_other_end(disk: JobDisk) -> None:
    put(disk.own / "x/a", "a"), put(disk.own / "y/b", "b"), put(disk.own / "step-10/state", "s")
    (disk.own / "x/y").symlink_to("../y"), (disk.own / "y/x").symlink_to("../x")
    (disk.own / "step-10/x").symlink_to("../x")
    with pytest.raises(ValueError, match=r"'x/y/x' leads to .* a folder that holds it"):
        disk.seal("step-10")


def test_a_checkpoint_that_is_told_by_a_link_is_the_one_it_leads_to(disk: JobDisk) -> None:
    put(disk.own / "runs/a/step-10/state", "s")
    (disk.own / "latest").symlink_to("runs/a/step-10")
    disk.seal("latest")
    assert seal.origin(disk.tier, 10) == "runs/a/step-10" and (disk.laid_back() / "state").read_text() == "s"
    (disk.own / "out").symlink_to(disk.tier.parent)
    with pytest.raises(ValueError, match="outside of the job's folder"):
        seal.seal(disk.own / "out", [put(disk.tier.parent / "o", "o")], disk.own, disk.tier, 20, IDENTITY, 0, None)


def test_names_are_any_bytes(disk: JobDisk) -> None:
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
        put(disk.own / "step-10" / name, name.encode(errors="surrogateescape").hex())
    disk.seal("step-10")
    assert disk.fault() == ""
    shutil.rmtree(disk.own / "step-10")
    root = disk.laid_back()
    for name in names:
        assert (root / name).read_text() == name.encode(errors="surrogateescape").hex()
    assert all(path.name.isascii() and path.name.isprintable() and len(path.name) < 100 for path in disk.shards())


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_everybody_may_read_what_is_sealed_and_the_jobs_rights_come_back(umask: int, disk: JobDisk) -> None:
    secret, script = put(disk.own / "step-10/model.safetensors", "w"), put(disk.own / "step-10/run.sh", "s")
    secret.chmod(0o600), script.chmod(0o750), secret.parent.chmod(0o700)
    old_umask = os.umask(umask)
    try:
        disk.seal("step-10")
        place = disk.tier / "step-00000010"
        for path in (place, *place.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644), path
        root = disk.laid_back()
    finally:
        os.umask(old_umask)
    modes = [stat.S_IMODE((root / name).stat().st_mode) for name in ("model.safetensors", "run.sh")]
    assert modes == [0o600, 0o750]
