"""A job's packages are chosen once for its image; what the image has stays the image's; restarts install nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from infra.data import requirements
from infra.data.requirements import ImagePython, Packages, resolve
from infra.data.source import pack
from infra.errors import UserError
from infra.spec.workload.workload import Workload
from tests.unit.trainer.supervised import Supervisors, events

HERE = "{}.{}".format(*sys.version_info[:2])
TORCH = {"torch": "2.13.0", "numpy": "2.1.0"}


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as pip's only source, by pip's own variables, and a cache of the test's own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any", script: str = "") -> str:
    """Write a wheel with one module that tells its version; return its SHA-256."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'VERSION = "{version}"\n\n\ndef main():\n    print("{name} runs")\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in needs),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for each, text in files.items():
            packed.writestr(each, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def job(root: Path, text: str, name: str = "requirements.txt", extras: str = "") -> Workload:
    root.mkdir(exist_ok=True)
    (root / name).write_text(text)
    given: dict[str, Any] = {
        "source": str(root), "script": "train.py", "requirements": f"{name}{extras}", "python": "3.10",
        "checkpoints": {"format": "marker"}, "estimates": {"steps": 10, "step_seconds": 1},
    }  # fmt: skip
    return Workload.model_validate(given)


def packages(root: Path, text: str, image: ImagePython, said: list[str] | None = None) -> Packages:
    return resolve(job(root, text), root, image, (said if said is not None else []).append)


def test_what_the_image_has_is_neither_packed_nor_shadowed(index: Path, tmp_path: Path) -> None:
    wheel(index, "lib", "1.0", "torch>=2.0", "numpy", "small")
    wheel(index, "small", "0.3"), wheel(index, "numpy", "2.9.0"), wheel(index, "torch", "2.14.0")
    found = packages(tmp_path / "job", "lib  # mine\ntorch>=2.1\n", ImagePython(HERE, TORCH))
    assert found.listed == ("lib==1.0", "small==0.3")
    with tarfile.open(found.tar) as tar:
        assert not [name for name in tar.getnames() if "torch" in name or "numpy" in name or "pyc" in name]


def test_another_torch_than_the_images_is_refused(index: Path, tmp_path: Path) -> None:
    wheel(index, "torch", "2.4.0")
    with pytest.raises(UserError, match=r"another torch than the image's 2\.13\.0.*torch==2\.4\.0.*workload\.image"):
        packages(tmp_path / "job", "torch==2.4.0", ImagePython(HERE, TORCH))
    assert packages(tmp_path / "job", "torch==2.4.0; sys_platform == 'darwin'", ImagePython(HERE, TORCH)).listed == ()
    assert packages(tmp_path / "job", "torch==2.4.0", ImagePython(HERE, {})).listed == (), "nobody knows the image's"


@pytest.mark.nightly
def test_a_package_pinned_to_another_version_replaces_the_images_and_that_is_said(index: Path, tmp_path: Path) -> None:
    wheel(index, "lib", "4.0", "words<1"), wheel(index, "words", "0.5")
    said: list[str] = []
    image = ImagePython(HERE, TORCH | {"lib": "5.0", "words": "1.2"})
    assert packages(tmp_path / "job", "lib==4.0", image, said).listed == ("lib==4.0", "words==0.5")
    assert {f"requirements: {one} takes the place of the image's {two}" for one, two in (
        ("lib==4.0", "5.0"), ("words==0.5", "1.2"))} <= set(said)  # fmt: skip


@pytest.mark.nightly
def test_markers_and_wheels_are_those_of_the_images_python_and_of_an_older_c_library(
    index: Path, tmp_path: Path
) -> None:
    wheel(index, "lib", "1.0", "old; python_version < '3.10'", "new; python_version >= '3.10'")
    wheel(index, "old", "1.0"), wheel(index, "new", "1.0")
    for minor in (9, int(HERE.partition(".")[2])):
        for libc, version in ((17, "1.0"), (99, "2.0")):
            wheel(index, "fast", version, tag=f"cp3{minor}-cp3{minor}-manylinux_2_{libc}_x86_64")
    for version, other in (("3.9", "old"), (HERE, "new")):
        found = packages(tmp_path / "job", "lib\nfast\ngone; python_version < '3.8'\n", ImagePython(version, TORCH))
        assert found.listed == ("fast==1.0", "lib==1.0", f"{other}==1.0"), version


@pytest.mark.parametrize("wrong", [False, True])
def test_hashes_are_compared_and_the_image_needs_none(wrong: bool, index: Path, tmp_path: Path) -> None:
    sound = wheel(index, "lib", "1.0", "numpy")
    text = f"lib==1.0 \\\n    --hash=sha256:{'0' * 64 if wrong else sound}\ntorch==2.13.0 --hash=sha256:{'1' * 64}\n"
    if not wrong:
        assert packages(tmp_path / "job", text, ImagePython(HERE, TORCH)).listed == ("lib==1.0",)
        return
    with pytest.raises(UserError, match="DO NOT MATCH THE HASHES"):
        packages(tmp_path / "job", text, ImagePython(HERE, TORCH))


@pytest.mark.nightly
def test_pips_own_words_tell_what_is_wrong_with_a_cure(index: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No matching distribution found for nowhere.*pip's own configuration"):
        packages(tmp_path / "job", "nowhere==1", ImagePython(HERE, TORCH))
    with pytest.raises(UserError, match=r"No matching distribution.*bivouac runs under Python 3\.9"):
        packages(tmp_path / "job", "nowhere==1", ImagePython("3.9", TORCH))
    wheel(index, "lib", "1.0", "torch==2.4.0")
    with pytest.raises(UserError, match=r"lib 1\.0 depends on torch==2\.4\.0"):
        packages(tmp_path / "job", "lib", ImagePython(HERE, TORCH))
    assert packages(tmp_path / "job", "lib\ntorch==2.4.0", ImagePython(HERE, {})).listed == ("lib==1.0",)
    with pytest.raises(UserError, match="an editable package"):
        packages(tmp_path / "job", "-e .", ImagePython(HERE, TORCH))


@pytest.mark.nightly
def test_a_project_file_gives_its_dependencies_and_the_named_extras(index: Path, tmp_path: Path) -> None:
    for name in ("base", "fast", "text", "never"):
        wheel(index, name, "1.0")
    root, name = tmp_path / "job", "pyproject.toml"
    text = '[project]\nname = "My_Job"\nversion = "1"\ndependencies = ["base"]\n[project.optional-dependencies]\n'
    text += 'train = ["fast"]\nall = ["my-job[train,text]"]\ntext = ["text"]\nother = ["never"]\n'
    job(root, text, name)
    for extras, wanted in (
        ("", {"base"}),
        ("[train]", {"base", "fast"}),
        ("[all, other]", {"base", "fast", "text", "never"}),
    ):
        assert set(requirements._read(root, f"{name}{extras}")) == wanted
    found = resolve(job(root, text, name, "[all]"), root, ImagePython(HERE, TORCH), print)
    assert found.listed == ("base==1.0", "fast==1.0", "text==1.0")
    with pytest.raises(UserError, match=r"no such extra.*there are: train, all, text, other"):
        resolve(job(root, text, name, "[tarin]"), root, ImagePython(HERE, TORCH), print)


def test_they_are_chosen_once_until_something_changes(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(index, "lib", "1.0")
    root, image = tmp_path / "job", ImagePython(HERE, TORCH)
    root.mkdir()
    (root / "more.txt").write_text("lib\n")
    first = packages(root, "-r more.txt\n", image)
    wheel(index, "lib", "2.0")
    assert packages(root, "-r more.txt\n", image) == first, "an unpinned package stays what it was"
    (root / "more.txt").write_text("lib>=1\n")
    assert packages(root, "-r more.txt\n", image).listed == ("lib==2.0",)
    monkeypatch.setattr(requirements, "_install", lambda *given: pytest.fail("pip was started"))
    assert packages(root, "-r more.txt\n", image).listed == ("lib==2.0",)


SCRIPT = """
import json, os, subprocess, sys
import lib, numpy_of_the_image
told = subprocess.run(["lib-tool"], capture_output=True, text=True).stdout.strip()
print(json.dumps({"step": 1, "version": lib.VERSION, "image": numpy_of_the_image.VERSION, "told": told}), flush=True)
"""


@pytest.mark.parametrize("kind", ["sound", "damaged", "another python"])
def test_a_job_under_the_supervisor_imports_them_in_every_attempt_without_pip(
    kind: str, index: Path, tmp_path: Path
) -> None:
    wheel(index, "lib", "1.0", script="lib-tool")
    image = tmp_path / "image"  # a package of the image, by a path that the image sets
    image.mkdir()
    (image / "numpy_of_the_image.py").write_text("VERSION = 'the image'\n")
    root = tmp_path / "job"
    workload = job(root, "lib\n")
    (root / "train.py").write_text(SCRIPT)
    if kind != "sound":
        (root / "requirements.txt").write_text("torch\n")  # nothing to choose
    packed = pack(workload, ImagePython(HERE, TORCH))
    assert json.loads((packed.folder / "manifest.json").read_text())["requirements"] == packed.requirements
    (code,), (tar,) = packed.folder.glob("source-*.tar"), packed.folder.glob("requirements-*.tar")
    index.rename(tmp_path / "unreachable")
    given = {
        "source": str(code), "source_digest": packed.sha256, "requirements": str(tar),
        "requirements_digest": "0" * 64 if kind == "damaged" else packed.requirements,
        "requirements_python": "3.7" if kind == "another python" else HERE, "env": {"PYTHONPATH": str(image)},
    }  # fmt: skip
    camp = Supervisors(tmp_path, folder=tmp_path / "workspace", more=given)
    for attempt in (1, 2) if kind == "sound" else (1,):
        process = camp.start(attempt, sys.executable, "train.py", steps=1)
        said = process.communicate()[0]
        if kind == "sound":
            assert process.returncode == 0, said
            (line,) = (json.loads(line) for line in said.splitlines() if '"version"' in line)
            assert (line["version"], line["image"], line["told"]) == ("1.0", "the image", "lib runs")
    if kind == "damaged":
        assert process.returncode == 65 and events(said, "refused_requirements")
        assert "the job's requirements are not the campaign's" in camp.ended().detail
    if kind == "another python":
        assert process.returncode == 64 and "are for Python 3.7, and the image has" in camp.ended().detail


@pytest.mark.nightly
def test_a_package_of_the_registry_is_chosen_for_an_older_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    found = packages(tmp_path / "job", "einops==0.8.1\npydantic-core==2.41.5\n", ImagePython("3.9", TORCH))
    assert {"einops==0.8.1", "pydantic-core==2.41.5"} < set(found.listed)
    with tarfile.open(found.tar) as tar:
        assert any(name.endswith(".cpython-39-x86_64-linux-gnu.so") for name in tar.getnames())
        tar.extractall(tmp_path / "there")
    words = "import einops; print(einops.__version__)"
    seen = subprocess.run(
        [sys.executable, "-c", words], env=os.environ | {"PYTHONPATH": str(tmp_path / "there")}, capture_output=True
    )
    assert seen.stdout.strip() == b"0.8.1"
