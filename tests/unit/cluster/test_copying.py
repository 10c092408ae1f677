"""The stream of a copy: what is sent arrives whole or not at all, and whoever sends it cannot write elsewhere."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from infra.cluster import copying


def sealed(body: bytes) -> io.BytesIO:
    """A stream as the text of the module describes it, made without the module."""
    whole = (0).to_bytes(8, "big") + body
    return io.BytesIO(whole + hashlib.sha256(whole).digest())


def archive(*members: tuple[str, bytes, str]) -> bytes:
    """Of (name, type, link or content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, text in members:
            one = tarfile.TarInfo(name)
            one.type, one.mode = kind, 0o755
            body = text.encode() if kind == tarfile.REGTYPE else b""
            one.size, one.linkname = len(body), "" if body else text
            tar.addfile(one, io.BytesIO(body))
    return buffer.getvalue()


def stream_of(path: Path) -> bytes:
    out = io.BytesIO()
    copying.send(str(path), out, lambda text: None)
    return out.getvalue()


FILE, FOLDER, LINK = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE
HOSTILE = {
    "above": [("../x", FILE, "evil")],
    "absolute": [("/tmp/bivouac-evil", FILE, "evil")],
    "above, later": [("a", FOLDER, ""), ("a/../../x", FILE, "evil")],
    "beside": [("a", FOLDER, ""), ("b", FILE, "evil")],
    "through a link": [("a", FOLDER, ""), ("a/l", LINK, "b"), ("a/l/x", FILE, "evil")],
    "link out": [("a", FOLDER, ""), ("a/l", LINK, "../../x")],
    "absolute link": [("a", FOLDER, ""), ("a/l", LINK, "/etc")],
    "twice": [("a", FOLDER, ""), ("a/x", FILE, "1"), ("a/x", FILE, "2")],
    "a hard link": [("a", FOLDER, ""), ("a/x", tarfile.LNKTYPE, "/etc/passwd")],
    "a device": [("a", tarfile.CHRTYPE, "")],
    "no parent": [("a/x", FILE, "evil")],
    "the folder itself": [(".", FOLDER, "")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_leads_elsewhere_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "in/here").mkdir(parents=True)
    with pytest.raises(copying.CopyRefused):
        copying.receive(str(tmp_path / "in/here"), sealed(archive(*HOSTILE[name])))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["in", "in/here"]
    assert not os.path.lexists("/tmp/bivouac-evil")


def test_a_sound_archive_of_the_same_make_is_received(tmp_path: Path) -> None:
    body = archive(("a", FOLDER, ""), ("a/x", FILE, "1"), ("a/l", LINK, "x"))
    done = copying.receive(str(tmp_path / "new"), sealed(body))
    assert done == {"path": str(tmp_path / "new"), "files": 1, "bytes": 1}
    assert (tmp_path / "new/l").read_text() == "1" and (tmp_path / "new/x").stat().st_mode & 0o777 == 0o755


def test_a_stream_that_ends_anywhere_or_has_any_byte_changed_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 40)
    target.write_text("old")
    whole = stream_of(source)
    for cut in (*range(0, 40), 512, 5000, len(whole) - 33, len(whole) - 1):
        with pytest.raises((copying.Broken, copying.CopyRefused)):
            copying.receive(str(target), io.BytesIO(whole[:cut]))
    for at in (*range(0, len(whole), 97), len(whole) - 1):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises((copying.Broken, copying.CopyRefused)):
            copying.receive(str(target), io.BytesIO(changed))
    assert target.read_text() == "old" and sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert copying.receive(str(target), io.BytesIO(whole))["bytes"] == 10240
    assert target.read_bytes() == source.read_bytes()


def test_links_that_lead_out_and_what_is_no_file_are_left_out_and_told(tmp_path: Path) -> None:
    source, told, out = tmp_path / "source", list[str](), io.BytesIO()
    source.mkdir()
    (source / "out").symlink_to("/etc/passwd")
    (source / "up").symlink_to("../other")
    (source / "inner").symlink_to("kept")
    (source / "kept").write_text("kept")
    os.mkfifo(source / "fifo")
    copying.send(str(source), out, told.append)
    assert len(told) == 3 and all(str(source) in line for line in told)
    copying.receive(str(tmp_path / "copy"), io.BytesIO(out.getvalue()))
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["inner", "kept"]


def test_a_file_of_any_name_and_a_folder_by_a_dot_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    odd = os.fsdecode(b"\xff \n" + "ü".encode() + b"x" * 200)
    (source / odd).write_text("odd")
    monkeypatch.chdir(source)
    (tmp_path / "into").mkdir()
    copying.receive(str(tmp_path / "into"), io.BytesIO(stream_of(Path("."))))
    assert [path.name for path in (tmp_path / "into/source").iterdir()] == [odd]


def test_any_containers_python_can_read_the_program() -> None:
    ast.parse(Path(copying.__file__).read_text(), feature_version=(3, 8))
