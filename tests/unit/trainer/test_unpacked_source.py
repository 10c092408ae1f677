"""A job's code is unpacked alike by every Python from 3.8 to 3.14."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from trainer.supervisor.place import Place
from trainer.supervisor.running import Running

PLACE = Place("c", 1, "n", "127.0.0.1", 0, 1, 1, "x:1", "", "")


def packed(path: Path) -> str:
    """Write an archive with a link to a folder of the pod and a program; return its digest."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        link = tarfile.TarInfo("corpus")
        link.type, link.linkname = tarfile.SYMTYPE, "/mounts/corpus"
        tar.addfile(link)
        for name, mode in (("run.sh", 0o755), ("caf\udce9.txt", 0o644)):
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            tar.addfile(entry, io.BytesIO())
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.filterwarnings("error")
def test_links_and_modes_are_as_packed_where_python_would_filter_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The default of Python 3.14; 3.12 and 3.13 warn where a program chooses none, and 3.11.2 has no filters.
    data_filter = getattr(tarfile, "data_filter", tarfile.TarInfo.tobuf)
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(data_filter), raising=False)
    path = tmp_path / "source.tar"
    config: dict[str, Any] = {"source": str(path), "source_digest": packed(path), "folder": str(tmp_path / "there")}
    assert Running(config, PLACE, tmp_path)._unpack_all()
    there = tmp_path / "there"
    assert (there / "corpus").readlink() == Path("/mounts/corpus")
    assert (there / "run.sh").stat().st_mode & 0o777 == 0o755 and (there / "caf\udce9.txt").is_file()
