"""What a builder needs to push an image: the driver's own boto3, brought along.

A builder's system has another one, or none, and a private subnet may have no way to a package index. All of it is
Python, so it runs on any machine.
"""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from infra.errors import UserError

_TOP = "boto3"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def pack_tools(work: Path) -> Path:
    """Pack boto3 and what it depends on into one zip file below `work`, uncompressed: the data in it is already."""
    path = work / "tools.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for package in requirements_of(_TOP):
            for file in package.files or ():
                if file.suffix == ".pyc" or ".." in file.parts or _another_services(file.parts):
                    continue
                if file.suffix == ".so":
                    raise UserError(
                        "a tool of the builder is not plain Python",
                        seen=f"{package.name} {package.version}: {file}",
                        cure="install the versions of requirements/all.txt",
                    )
                archive.write(str(file.locate()), file.as_posix())
    return path


def _another_services(parts: tuple[str, ...]) -> bool:
    """Descriptions of AWS's services are nine tenths of boto3; a builder calls the registry only."""
    return parts[:2] in (("botocore", "data"), ("boto3", "data")) and len(parts) > 3 and parts[2] != "ecr"


def requirements_of(name: str) -> list[Distribution]:
    """Return a package and all that it requires, without its extras."""
    packages, names = dict[str, Distribution](), [name]
    while names:
        package = distribution(names.pop())
        if package.name in packages:
            continue
        packages[package.name] = package
        for line in package.requires or ():
            match = _NAME.match(line)
            if match is not None and "extra ==" not in line:
                names.append(match[0])
    return list(packages.values())
