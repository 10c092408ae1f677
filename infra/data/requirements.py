"""A job's own Python packages: chosen once for its image by pip, packed like its code, never installed in a pod.

What the image has is not packed: a stub of its version stands for it while pip chooses. So torch is never shadowed, and
packages that fit it are taken.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from shutil import rmtree
from typing import IO, NamedTuple

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from infra.data import pip_for_image
from infra.errors import UserError
from infra.folders import asset, cache_root
from infra.spec.campaign import Workload

LOCK = asset("requirements/image.txt")
"""Packages of the trainer image's base, and of this machine where it stands for the base."""
_TORCH = ("torch", "torchvision", "torchaudio", "triton")
"""Built for each other and for the image's CUDA."""
_UNKNOWN = "999"
_MARK = "image"
"""Local version of a stub."""
_GLIBC = (2, 28)
"""Wheels for a newer one are not taken: images of 2020 and later have it."""
_FILE, _LIST, _FORM = "requirements.tar", "packages.json", 1
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+))?", re.MULTILINE)
_NESTED = re.compile(r"(-r|--requirement|-c|--constraint)[ =]?\s*(?!\w+://)(\S+)$")
_CONFLICT = re.compile(rf"The user requested ([\w.-]+) \S*{_MARK}\b")
_FIRST_ERROR = re.compile(r"^\s*error\b", re.IGNORECASE | re.MULTILINE)
_TOLD = ("Collecting", "Downloading", "Building")


class ImagePython(NamedTuple):
    version: str
    """As `3.12`."""
    packages: Mapping[str, str]
    """Name -> version; empty: nobody knows."""

    @property
    def native(self) -> bool:
        """Whether this process's Python is the same, so that it can build packages for the image."""
        system = ".".join(platform.python_version_tuple()[:2]), sys.platform, platform.machine()
        return system == (self.version, "linux", "x86_64")

    @property
    def markers(self) -> dict[str, str]:
        full = platform.python_version() if self.native else f"{self.version}.0"
        return {
            "python_version": self.version, "python_full_version": full, "implementation_version": full,
            "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix",
            "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64",
        }  # fmt: skip


class Packages(NamedTuple):
    tar: Path
    sha256: str
    listed: tuple[str, ...]
    """`name==version` of each."""


def image_python(workload: Workload, of_the_trainer_image: Callable[[], str]) -> ImagePython:
    """Return the Python of a job's image: of a foreign one the spec tells the version, and nobody the packages."""
    if workload.image is not None:
        return ImagePython(str(workload.python), {})
    rows = _PIN.findall(LOCK.read_text())
    packages = {name: version for name, version, marker in rows if not marker or Marker(marker).evaluate()}
    return ImagePython(of_the_trainer_image(), packages)


def resolve(workload: Workload, root: Path, image: ImagePython, say: Callable[[str], None]) -> Packages:
    """Return the packages that `workload.requirements` asks for, from this machine's cache if nothing has changed.

    Raises `UserError` in pip's own words, and for another torch than the image's.
    """
    try:
        lines = list(_read(root, str(workload.requirements)))
        files = [root / word for line in lines for word in re.split(r"[\s=]+|file://", line) if len(word) < 255]
        local = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()]
    except (OSError, ValueError) as error:
        cure = "mend the file that workload.requirements names"
        raise UserError("the job's requirements cannot be read", seen=error, cure=cure) from error
    key = json.dumps([_FORM, lines, local, image.version, sorted(image.packages.items())])
    place = cache_root() / "requirements" / hashlib.sha256(key.encode()).hexdigest()[:32]
    if not (place / _LIST).is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".") as scratch:
            package_folder = _pack(Path(scratch), root, *_select(lines, image), image, say)
            rmtree(place, ignore_errors=True)  # of a process that was killed
            package_folder.rename(place)
    with (place / _FILE).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Packages(place / _FILE, digest, tuple(json.loads((place / _LIST).read_text())))


def _read(root: Path, reference: str) -> Iterator[str]:
    """Yield the lines of a requirements file, or the dependencies of a `pyproject.toml` with some extras."""
    name, _, extras = reference.rstrip("]").partition("[")
    if not name.endswith(".toml"):
        yield from _lines(root / name)
        return
    project = tomllib.loads((root / name).read_text()).get("project", {})
    optional, waiting = project.get("optional-dependencies", {}), [part.strip() for part in extras.split(",") if part]
    if unknown := sorted(set(waiting) - set(optional)):
        names = ", ".join(optional) or "none"
        raise UserError("pyproject.toml has no such extra", seen=", ".join(unknown), cure=f"there are: {names}")
    if "dependencies" in project.get("dynamic", ()):
        cure = "name a requirements file: only the project's own build tells its dependencies"
        raise UserError("pyproject.toml does not say what it depends on", seen="dynamic: dependencies", cure=cure)
    yield from project.get("dependencies", ())
    own_name, extras_read = canonicalize_name(project.get("name", "")), set[str]()
    while waiting:
        extra = waiting.pop()
        for line in optional.get(extra, ()) if extra not in extras_read else ():
            requirement = Requirement(line)
            if canonicalize_name(requirement.name) == own_name:  # an extra that stands for several
                waiting += requirement.extras
            else:
                yield line
        extras_read.add(extra)


def _lines(path: Path) -> Iterator[str]:
    for raw in path.read_text().replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if (include := _NESTED.match(line)) and include[1].startswith(("-r", "--r")):
            yield from _lines(path.parent / include[2])
        elif include:
            yield f"-c {(path.parent / include[2]).resolve()}"
        elif re.match(r"(-e|--editable)\b", line):
            cure = "take the line out: the source itself lies at /workspace, where the job starts"
            raise UserError("an editable package cannot be packed", seen=f"{path.name}: {line}", cure=cure)
        elif line:
            yield line


def _select(lines: list[str], image: ImagePython) -> tuple[list[str], dict[str, str]]:
    """Return the lines that pip gets, and the versions of what the image has."""
    stubs: dict[str, str] = {canonicalize_name(name): version for name, version in image.packages.items()}
    stubs = stubs or {name: _UNKNOWN for name in _TORCH}
    rest_lines = []
    for line in lines:
        try:
            requirement = Requirement(line.partition(" --")[0])
        except InvalidRequirement:  # an option, a file or an address
            rest_lines.append(line)
            continue
        name = canonicalize_name(requirement.name)
        present = stubs.get(name) if requirement.url is None else None
        if requirement.marker is not None and not requirement.marker.evaluate(image.markers):
            continue
        if present == _UNKNOWN:
            stubs[name] = next((rule.version for rule in requirement.specifier if rule.operator == "=="), _UNKNOWN)
        elif present is None or not requirement.specifier.contains(present, prereleases=True) or requirement.extras:
            if present is not None and name in _TORCH:
                cure = "leave it out of the requirements, or name an image that has it in workload.image"
                raise UserError(
                    f"the requirements ask for another {name} than the image's {present}", seen=line, cure=cure
                )
            stubs.pop(name, None)
            rest_lines.append(line)
    return rest_lines, stubs


def _pack(
    scratch: Path, root: Path, lines: list[str], stubs: dict[str, str], image: ImagePython, say: Callable[[str], None]
) -> Path:
    """Return a folder with the packages as a tar, and their list. Where the job's packages cannot stand beside one of
    the image's, that one is packed too, but for torch."""
    image_versions = {canonicalize_name(name): version for name, version in image.packages.items()}
    while True:
        target = Path(tempfile.mkdtemp(dir=scratch))
        words = _install(target, root, lines, stubs, image, say) if lines else None
        if words is None:
            break
        conflicts = {canonicalize_name(name) for name in _CONFLICT.findall(words)} & set(stubs) - set(_TORCH)
        if not conflicts:
            raise UserError("pip finds no packages for the job", seen=words, cure=_cure(image))
        stubs = {name: version for name, version in stubs.items() if name not in conflicts}
    rows = []
    for item in list(distributions(path=[str(target)])):
        name = canonicalize_name(item.name)
        if item.version.endswith(_MARK):
            rmtree(target / f"{item.name.replace('-', '_')}-{item.version}.dist-info")
            continue
        if name == "torch":
            raise UserError("the requirements bring a torch of their own", seen=item.version, cure=_cure(image))
        rows.append(f"{name}=={item.version}")
        if name in image_versions:
            say(f"requirements: {rows[-1]} takes the place of the image's {image_versions[name]}")
    for script in (target / "bin").glob("*"):
        _for_any_python(script)
    result = scratch / "made"
    result.mkdir()
    with (result / _FILE).open("wb") as file:
        names = sorted(str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir())
        write_tar(target, names, file)
    (result / _LIST).write_text(json.dumps(sorted(rows)))
    return result


def _install(
    target: Path, root: Path, lines: list[str], stubs: dict[str, str], image: ImagePython, say: Callable[[str], None]
) -> str | None:
    """Let pip choose and unpack; return its words if it cannot."""
    if importlib.util.find_spec("pip") is None:
        raise UserError("requirements are chosen by pip", seen="this Python has none", cure="python -m ensurepip")
    wheels, file = Path(f"{target}.wheels"), Path(f"{target}.txt")
    wheels.mkdir()
    by_hash = any("--hash" in line or "--require-hashes" in line for line in lines)
    file.write_text("\n".join([*lines, *(_stub(wheels, *stub, by_hash) for stub in sorted(stubs.items()))]) + "\n")
    choices = json.dumps({"glibc": _GLIBC, "markers": image.markers})
    command = [
        sys.executable,
        pip_for_image.__file__,
        choices,
        "install",
        f"--target={target}",
        f"--requirement={file}",
    ]
    # What this machine has installed is nothing to the image; to look through it takes pip longer than all else.
    command += ["--no-compile", "--progress-bar=off", "--no-input", "--no-warn-conflicts"]
    if not image.native:
        systems = [f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC[1], 16, -1)]
        command += ["--only-binary=:all:", f"--python-version={image.version}", "--implementation=cp"]
        command += [f"--platform={system}" for system in (*systems, "manylinux2014_x86_64", "linux_x86_64")]
    output = deque[str](maxlen=200)
    variables = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                output.append(line)
                if line.strip().startswith(_TOLD) and _MARK not in line:
                    say(f"requirements: {line.partition(' (from')[0].strip()[:100]}")
        except BaseException:
            process.kill()
            raise
    words = "".join(output)
    begin = _FIRST_ERROR.search(words)
    return words[begin.start() if begin else 0 :].strip()[-1500:] if process.returncode else None


def _stub(folder: Path, name: str, version: str, by_hash: bool) -> str:
    """Write an empty wheel that stands for a package of the image; return the line that asks for it."""
    version = f"{version}{'.' if '+' in version else '+'}{_MARK}"
    wheel = f"{name.replace('-', '_')}-{version}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: bivouac\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "".join(f"{wheel}.dist-info/{part},,\n" for part in ("METADATA", "WHEEL", "RECORD")),
    }
    path = folder / f"{wheel}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(f"{wheel}.dist-info/{member}", text)
    # By its address: pip would ask the index for each name.
    digest = f" --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" if by_hash else ""
    return f"{name} @ {path.as_uri()}{digest}"


def _for_any_python(script: Path) -> None:
    """Let a program find the pod's Python: pip has written this machine's into it."""
    lines = script.read_bytes().split(b"\n")
    is_wrapped = lines[0] == b"#!/bin/sh" and len(lines) > 2 and lines[1].startswith(b"'''exec'")
    if is_wrapped or (lines[0].startswith(b"#!") and b"python" in lines[0]):
        script.write_bytes(b"\n".join([b"#!/usr/bin/env python3", *lines[3 if is_wrapped else 1 :]]))


def _cure(image: ImagePython) -> str:
    cure = "mend the file that workload.requirements names; where packages come from is pip's own configuration"
    if not image.packages:
        cure += "; torch is the image's: write torch==VERSION if a package asks for one"
    if not image.native:
        cure += f"; what has no wheel is built only where bivouac runs under Python {image.version}: or make its wheel "
        cure += "there, and name the folder by --find-links"
    return cure


def write_tar(root: Path, names: Iterable[str], stream: IO[bytes]) -> None:
    """Write files and links below `root`, the same bytes for the same content: without what differs between machines,
    which is times, owners and most mode bits."""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            path, entry = root / name, tarfile.TarInfo(name)
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
                continue
            with path.open("rb") as content:
                entry.size, entry.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
                tar.addfile(entry, content)
