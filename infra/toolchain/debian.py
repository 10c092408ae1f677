"""Unpack a tool from a Debian package, without root: apt checks the archive's signature and the package's digest."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from infra.toolchain.download import SourceUnavailable
from infra.toolchain.progress import TransferProgress
from infra.toolchain.table import Tool, multiarch

_TIMEOUT_S = 600


def unpack(tool: Tool, folder: Path, progress: TransferProgress) -> Path:
    """Unpack a tool's executable into `folder`, and its other files into `folder`/share. Raises SourceUnavailable."""
    package = tool.debian
    if package is None:
        raise SourceUnavailable("no Debian package has it")
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        raise SourceUnavailable(f"{missing[0]} is not installed")
    progress.begin(f"{tool.name}: unpacking Debian's package {package.name}")
    names = (package.name, *package.also)
    try:
        _apt(folder, "download", *names)
    except SourceUnavailable:  # no lists are here, or they are old; the system's own need root
        own = _own_lists(folder)
        _apt(folder, *own, "-o", "APT::Update::Error-Mode=any", "update")
        _apt(folder, *own, "download", *names)
    unpacked = folder / "unpacked"
    for name in names:
        archives = sorted(folder.glob(f"{name}_*.deb"))
        if len(archives) != 1:
            raise SourceUnavailable(f"apt-get left {len(archives)} archives of {name}")
        _run(folder, "dpkg-deb", "-x", str(archives[0]), str(unpacked))
    for target, member in package.share.items():
        (folder / "share" / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(unpacked / member.format(multiarch=multiarch()), folder / "share" / target)
    shutil.copy(unpacked / package.member, folder / tool.name)
    progress.end("unpacked")
    return folder / tool.name


def _own_lists(folder: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]


def _apt(folder: Path, *arguments: str) -> None:
    _run(folder, "apt-get", "-qq", "-o", "Acquire::Retries=3", *arguments)


def _run(folder: Path, *argv: str) -> None:
    try:
        answer = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        raise SourceUnavailable(f"{argv[0]} did not end") from expired
    if answer.returncode:
        raise SourceUnavailable(f"{argv[0]}: {' '.join(answer.stderr.split())[-300:]}")
