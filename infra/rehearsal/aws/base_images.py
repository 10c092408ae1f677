"""The base images that a rehearsal's registry holds: this machine's own Python stands for both.

The trainer's base has all of its packages, the steward's only those that the real one has: an environment of links to
them, so that a steward which imports more fails here as it would on AWS.
"""

from __future__ import annotations

import io
import os
import platform
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.markers import Marker

from infra.folders import asset
from infra.spec.sections import SLIM_BASE

REPOSITORY, HOST_TAG = "bivouac/base", "host"
SLIM_TAG = SLIM_BASE.rpartition(":")[2]
LOCK = asset("requirements/steward.txt")
"""Packages of the steward's base."""
PLACE = PurePosixPath("opt/bivouac/venv")
_PIN = re.compile(r"^([\w.-]+)==\S+(?: ; ([^\\]+))?", re.MULTILINE)


def variables(folder: str) -> list[str]:
    """Return the environment of an image whose Python is in `folder`."""
    return [f"PATH={folder}:/usr/local/bin:/usr/bin:/bin", f"PYTHON_VERSION={platform.python_version()}"]


def slim_layer() -> bytes:
    """Return a tar with a virtual environment of the steward's packages only."""
    interpreter = os.path.realpath(sys.executable)
    archive, packages = io.BytesIO(), PLACE / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    with tarfile.open(fileobj=archive, mode="w") as tar:
        settings = f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n".encode()
        file = tarfile.TarInfo(str(PLACE / "pyvenv.cfg"))
        file.size = len(settings)
        tar.addfile(file, io.BytesIO(settings))
        for name in ("python", "python3"):
            _link(tar, PLACE / "bin" / name, interpreter)
        for path, target in _links(_files(), 1):
            _link(tar, packages.joinpath(*path), target)
    return archive.getvalue()


def locked_packages() -> list[str]:
    """Return the locked packages that belong on this machine."""
    pins = _PIN.findall(LOCK.read_text())
    return [name for name, marker in pins if not marker or Marker(marker.strip()).evaluate()]


class _File(NamedTuple):
    package: str
    parts: tuple[str, ...]
    """Path below the packages' folder."""
    place: Path


def _files() -> list[_File]:
    return [
        _File(name, file.parts, Path(os.path.abspath(str(file.locate()))))
        for name in locked_packages()
        for file in distribution(name).files or ()
        if file.parts[0] != ".." and "__pycache__" not in file.parts
    ]


def _links(files: list[_File], depth: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, target): a link for each topmost folder or file of one package only; two may share a folder."""
    by_path = defaultdict[tuple[str, ...], list[_File]](list)
    for file in files:
        by_path[file.parts[:depth]].append(file)
    for path, paths in sorted(by_path.items()):
        target = paths[0]
        if len(target.parts) == depth:
            yield path, str(target.place)
        elif len({file.package for file in paths}) == 1:
            yield path, str(target.place.parents[len(target.parts) - depth - 1])
        else:
            yield from _links(paths, depth + 1)


def _link(tar: tarfile.TarFile, path: PurePosixPath, target: str) -> None:
    member = tarfile.TarInfo(str(path))
    member.type, member.linkname = tarfile.SYMTYPE, target
    tar.addfile(member)
