"""The tools by `tools.toml`: version, official release, and the pinned Go module to build from."""

from __future__ import annotations

import os
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

MODULES = Path(__file__).with_name("modules")
_TABLE = tomllib.loads(Path(__file__).with_name("tools.toml").read_text())
KUBERNETES: str = _TABLE["versions"]["kubernetes"]
ETCD: str = _TABLE["versions"]["etcd"]
PULUMI: str = _TABLE["versions"]["pulumi"]
MPI_OPERATOR: str = _TABLE["versions"]["mpi-operator"]


@dataclass(frozen=True)
class Publisher:
    """A project's download site. The environment may name a mirror; an empty value forbids downloads from it."""

    variable: str
    url: str

    def base(self, environment: Mapping[str, str] = os.environ) -> str:
        return environment.get(self.variable, self.url).rstrip("/")


@dataclass(frozen=True)
class ToolRelease:
    """Templates over {version} and {arch}, relative to the publisher's base."""

    publisher: Publisher
    file: str
    checksums: str
    member: str = ""
    """Path of the executable in a tar archive; empty if the file is the executable."""
    version: str = ""
    """Version of the release, if it differs from the module's."""
    share: tuple[str, ...] = ()
    """Paths in the tar archive of the files for the tool's `share`."""
    arches: Mapping[str, str] = field(default_factory=lambda: {"amd64": "amd64", "arm64": "arm64"})


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian, of whatever version the machine's sources have. Paths are below its root; {multiarch} stands
    for the name of the architecture's folder of libraries."""

    name: str
    member: str
    """The executable."""
    share: Mapping[str, str] = field(default_factory=dict)
    """Name below the tool's `share` -> file."""
    also: tuple[str, ...] = ()
    """Further packages, whose files `share` may name."""


@dataclass(frozen=True)
class Tool:
    name: str
    version: str
    accepts: str | tuple[str, ...]
    """Prefixes of acceptable versions on PATH."""
    module: str
    """Folder below modules/, and below `share`."""
    package: str = ""
    """Empty: it does not build from its module."""
    usual_build: timedelta = timedelta()
    """With Go 1.26 on two cores and an empty build cache."""
    version_argv: tuple[str, ...] = ()
    """Arguments that print the version; empty if the executable has none: then its Go build information is read."""
    flags: str = ""
    """Additional linker flags, for version stamps."""
    release: ToolRelease | None = None
    debian: DebianPackage | None = None
    go_module: str = ""
    """Go module of the files in `share` and of the version in the build information."""
    share: tuple[str, ...] = ()
    """Files of `go_module` below `share_root` that are needed beside the executable."""
    share_root: str = ""
    beside: bool = False
    """The shared files must be in the executable's own folder: they are linked there."""


DL_K8S = Publisher("BIVOUAC_DOWNLOAD_KUBERNETES", "https://dl.k8s.io/release")
GET_PULUMI = Publisher("BIVOUAC_DOWNLOAD_PULUMI", "https://get.pulumi.com/releases/sdk")
ETCD_RELEASES = Publisher("BIVOUAC_DOWNLOAD_ETCD", "https://github.com/etcd-io/etcd/releases/download")


PUBLISHERS = {
    "kubernetes": DL_K8S,
    "pulumi": GET_PULUMI,
    "etcd": ETCD_RELEASES,
    **{
        name: Publisher(f"BIVOUAC_DOWNLOAD_{name.upper()}", f"https://github.com/prometheus/{name}/releases/download")
        for name in ("prometheus", "alertmanager")
    },
}


def _kubernetes(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a tool of Kubernetes with what all of them share."""
    name, stamp, place = row["name"], "k8s.io/component-base/version", f"v{{version}}/bin/linux/{{arch}}/{row['name']}"
    major, minor, _ = KUBERNETES.split(".")
    return {
        "accepts": f"{major}.{minor}.",
        "package": f"k8s.io/kubernetes/cmd/{name}",
        "version_argv": ["--version"],
        "flags": f"-X {stamp}.gitVersion=v{KUBERNETES} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}",
        "release": {"publisher": "kubernetes", "file": place, "checksums": f"{place}.sha256"},
        **row,
    }


def _tool(row: dict[str, Any]) -> Tool:
    row = _kubernetes(row) if row["version"] == "kubernetes" else dict(row)
    release, minutes, module = row.pop("release", None), row.pop("build_minutes", 0), row.pop("version")
    if (debian := row.pop("debian", None)) is not None:
        row["debian"] = DebianPackage(**_frozen(debian))
    if release is not None:
        release = ToolRelease(**_frozen(release | {"publisher": PUBLISHERS[release["publisher"]]}))
    version = _TABLE["versions"][module]
    return Tool(**_frozen(row), module=module, version=version, usual_build=timedelta(minutes=minutes), release=release)


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


TOOLS: tuple[Tool, ...] = tuple(map(_tool, _TABLE["tools"]))
ON_REQUEST: tuple[Tool, ...] = tuple(map(_tool, _TABLE["on_request"]))
"""Tools that come only to who names them: neither `make setup` nor a site needs them."""


def architecture() -> str:
    """Return Go's name of this machine's architecture, or the machine's own name if unknown."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def multiarch() -> str:
    """Return Debian's name of this architecture's folder of libraries."""
    return {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}.get(architecture(), architecture())
