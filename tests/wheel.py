"""The built wheel in an environment of its own, away from the clone; what it depends on is this environment's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.root import ROOT

_FOLDERS = ("docs", "images", "infra", "playbooks", "requirements", "trainer")
_DEPENDENCIES = Path(sysconfig.get_path("purelib"))
_FILES = ("LICENSE", "README.md", "pyproject.toml")


class Installed:
    """A virtual environment that holds the wheel, and an empty folder to work in."""

    def __init__(self, folder: Path, *, self_contained: bool = False) -> None:
        """`self_contained`: with files of its own for all packages: a rehearsal's pods see no other folder."""
        self.folder, self.venv = folder / "away", folder / "venv"
        self.folder.mkdir()
        self.bivouac, self.python = self.venv / "bin/bivouac", self.venv / "bin/python"
        self.packages = self.venv / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        # The clone on the path would stand for an installed package.
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        clone = _copy_of_sources(folder / "clone")
        self._make(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(clone))
        (self.wheel,) = folder.glob("*.whl")
        self._make(sys.executable, "-m", "venv", "--without-pip", str(self.venv))
        self._make(*pip, "--python", str(self.python), "install", "--no-deps", "--no-index", str(self.wheel))
        shutil.rmtree(clone)
        if self_contained:
            editable = shutil.ignore_patterns("bivouac-*", "__editable__*", "__pycache__")
            shutil.copytree(_DEPENDENCIES, self.packages, ignore=editable, copy_function=_link, dirs_exist_ok=True)
        else:
            (self.packages / "dependencies.pth").write_text(str(_DEPENDENCIES))

    def _make(self, *command: str) -> None:
        process = self.run(*command)
        assert process.returncode == 0, process.stdout + process.stderr

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True)


def _copy_of_sources(clone: Path) -> Path:
    """Copy what a wheel is built of, so that the build leaves nothing in this clone."""
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, clone)
    return clone


def _link(source: str, target: str) -> None:
    """Give a file a second name: a copy of all of torch would take minutes."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
