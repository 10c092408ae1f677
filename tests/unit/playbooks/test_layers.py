"""The layers of our images: packages are those of the image's Python, whichever Python the builder has."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment

from tests.root import ROOT

ROLE = ROOT / "playbooks/roles/trainer_image"
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = f"{sys.version_info[0]}.{sys.version_info[1] + 1}"


def wheel(folder: Path, name: str, tags: str, text: str) -> Path:
    """Write a wheel of one module that holds `text`, for this interpreter and platform (`cp311-cp311-...`)."""
    path, about = folder / f"{name}-1.0-{tags}.whl", f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tags}\n",
    }
    with zipfile.ZipFile(path, "w") as made:
        for file, content in files.items():
            made.writestr(file, content)
        made.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"]))
    return path


def script(work: Path, own: Path, layers: list[dict[str, Any]]) -> str:
    """The role's own script, as Ansible renders it for a builder with this interpreter."""
    tasks = yaml.safe_load((ROLE / "tasks/install.yml").read_text())
    (task,) = [one for block in tasks for one in block.get("block", []) if "ansible.builtin.shell" in one]
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    jinja = Environment(trim_blocks=True)
    jinja.filters |= {"basename": os.path.basename, "quote": shlex.quote}
    given = {
        "trainer_image_root": str(work / "root"), "trainer_image_library": "/opt/bivouac/lib",
        "trainer_image_python": sys.executable, "trainer_image_platforms": defaults["trainer_image_platforms"],
        "trainer_image_wheel": str(own), "trainer_image_stamp": str(work / "stamp"), "trainer_image_layers": layers,
        "machine": {"dnf": True},
    }  # fmt: skip
    return jinja.from_string(task["ansible.builtin.shell"]["cmd"].replace("/var/tmp/", f"{work}/")).render(given)


def played(work: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Install our wheel and a package with code of its own for every Python into the layer for this one."""
    for version in (OWN, OTHER):
        tag = f"cp{version.replace('.', '')}"
        wheel(work, "odd", f"{tag}-{tag}-manylinux_2_28_x86_64", f"for {version}")
    own = wheel(work, "bivouac", "py3-none-any", "ours")
    layers = [{"repository": "bivouac/trainer", "python": python, "packages": ["odd==1.0"]}]
    environment = {"PATH": os.defpath, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(work), "PIP_NO_CACHE_DIR": "1"}
    return subprocess.run(["sh", "-c", script(work, own, layers)], env=environment, capture_output=True, text=True)


def test_a_layers_packages_are_those_of_the_images_python_and_not_the_builders(tmp_path: Path) -> None:
    done = played(tmp_path, OTHER)
    assert done.returncode == 0, done.stderr
    library = tmp_path / "root/bivouac/trainer/opt/bivouac/lib"
    assert (library / "odd.py").read_text() == f"for {OTHER}"
    assert (library / "bivouac.py").read_text() == "ours"
