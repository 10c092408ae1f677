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
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

from packaging.markers import Marker

from infra.spec.sections import SLIM_BASE

REPOSITORY, HOST_TAG = "bivouac/base", "host"
SLIM_TAG = SLIM_BASE.rpartition(":")[2]
LOCK = Path(__file__).resolve().parents[3] / "requirements/steward.txt"
"""Packages of the steward's base."""
PLACE = PurePosixPath("opt/bivouac/venv")
_PIN = re.compile(r"^([\w.-]+)==\S+(?: ; ([^\\]+))?", re.MULTILINE)


def variables(folder: str) -> list[str]:
    """Return the environment of an image whose Python is in `folder`."""
    return [f"PATH={folder}:/usr/local/bin:/usr/bin:/bin", f"PYTHON_VERSION={platform.python_version()}"]


def slim_layer() -> bytes:
    """Return a tar with a virtual environment of the steward's packages only."""
    interpreter = os.path.realpath(sys.executable)
    made, packages = io.BytesIO(), PLACE / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    with tarfile.open(fileobj=made, mode="w") as tar:
        settings = f"home = {os.path.dirname(interpreter)}\ninclude-system-site-packages = false\n".encode()
        file = tarfile.TarInfo(str(PLACE / "pyvenv.cfg"))
        file.size = len(settings)
        tar.addfile(file, io.BytesIO(settings))
        for name in ("python", "python3"):
            _link(tar, PLACE / "bin" / name, interpreter)
        for name in locked():
            one = distribution(name)
            for top in sorted({file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}):
                _link(tar, packages / top, os.path.abspath(str(one.locate_file(top))))
    return made.getvalue()


def locked() -> list[str]:
    """Return the locked packages that belong on this machine."""
    pins = _PIN.findall(LOCK.read_text())
    return [name for name, marker in pins if not marker or Marker(marker.strip()).evaluate()]


def _link(tar: tarfile.TarFile, path: PurePosixPath, target: str) -> None:
    member = tarfile.TarInfo(str(path))
    member.type, member.linkname = tarfile.SYMTYPE, target
    tar.addfile(member)
