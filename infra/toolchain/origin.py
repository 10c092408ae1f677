"""Find the tools on PATH and in the cache, with their versions."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.folders import share_dir
from infra.toolchain.table import Tool

PROBE_TIMEOUT_S = 10


@dataclass(frozen=True)
class FoundTool:
    """An acceptable executable. `origin` is its first source: `PATH`, `downloaded`, `built`, or `cache`."""

    tool: str
    version: str
    origin: str
    path: Path


def version_of(tool: Tool, executable: Path) -> str | None:
    """Return the version that an executable reports, or None if it does not run or reports none."""
    if not tool.version_argv:
        return _version_in_build_information(tool, executable)
    environment = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}
    try:
        answer = subprocess.run(
            [executable, *tool.version_argv], capture_output=True, text=True, errors="replace",
            timeout=PROBE_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"v?(\d+\.\d+\.\d+\S*)", answer.stdout)
    return match.group(1) if match and answer.returncode == 0 else None


def _version_in_build_information(tool: Tool, executable: Path) -> str | None:
    """Read the version from `dep<tab>MODULE<tab>VERSION`, which Go records in every executable."""
    try:
        with executable.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = re.search(re.escape(tool.go_module).encode() + rb"\tv(\d+\.\d+\.\d+[^\t\n]*)", content)
            return match.group(1).decode() if match else None
    except (OSError, ValueError):
        return None


def in_cache(tool: Tool, tools: Path) -> FoundTool | None:
    """Return what an earlier run installed, if it is complete and of the wanted version.

    The stamp saves running every executable on every call; a file without one is run once.
    """
    path = tools / tool.name
    if not path.is_file() or not os.access(path, os.X_OK) or not _share_is_whole(tool, tools):
        return None
    stamp = _read_stamp(tool, tools)
    if stamp and stamp["identity"] == _identity(path):
        version, origin = str(stamp["version"]), str(stamp["origin"])
    else:
        version, origin = version_of(tool, path) or "", "cache"
        if version.startswith(tool.accepts):
            write_stamp(tool, tools, version, origin)
    return FoundTool(tool.name, version, origin, path) if version.startswith(tool.accepts) else None


def on_path(tool: Tool, tools: Path) -> FoundTool | None:
    """Return the first acceptable executable on PATH (for Kubernetes also in KUBEBUILDER_ASSETS)."""
    if tool.share:  # the executable is useless without its shared files
        return None
    for folder in _folders(tool):
        candidate = folder / tool.name
        if folder.resolve() == tools.resolve() or not os.access(candidate, os.X_OK) or not candidate.is_file():
            continue
        version = version_of(tool, candidate)
        if version and version.startswith(tool.accepts):
            return FoundTool(tool.name, version, "PATH", candidate.absolute())
    return None


def write_stamp(tool: Tool, tools: Path, version: str, origin: str) -> None:
    """Record a tool's version. In a read-only cache it fails silently: the tool is then run each time."""
    path = _stamp(tool, tools)
    with suppress(OSError):
        stamp = {"version": version, "origin": origin, "identity": _identity(tools / tool.name)}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(stamp))
        temporary.replace(path)


def _folders(tool: Tool) -> Iterator[Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS", "") if tool.module in ("kubernetes", "etcd") else ""
    for entry in [*os.environ.get("PATH", "").split(os.pathsep), assets]:
        if entry:
            yield Path(entry)


def _share_is_whole(tool: Tool, tools: Path) -> bool:
    if not tool.share:
        return True
    share = share_dir(tool.module, tools)
    if tool.beside and not all((tools / relative).exists() for relative in tool.share):
        return False
    try:
        return (share / "VERSION").read_text().strip() == tool.version and all(
            (share / f).is_file() for f in tool.share
        )
    except (OSError, ValueError):
        return False


def _stamp(tool: Tool, tools: Path) -> Path:
    return tools.parent / "stamps" / f"{tool.name}.json"


def _read_stamp(tool: Tool, tools: Path) -> dict[str, object] | None:
    try:
        stamp: dict[str, object] = json.loads(_stamp(tool, tools).read_text())
        return stamp if {"version", "origin", "identity"} <= stamp.keys() else None
    except (AttributeError, OSError, ValueError):
        return None


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
