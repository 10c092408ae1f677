"""Where a rehearsal keeps what outlives a command. Standard library only: the toolchain needs it first."""

from __future__ import annotations

from pathlib import Path

from infra.folders import cache_root


def tools_dir(root: Path | None = None) -> Path:
    """Executables: pulumi, etcd, the Kubernetes binaries, controllers."""
    return (root or cache_root()) / "bin"


def share_dir(tool: str, tools: Path | None = None) -> Path:
    """What a tool needs beside its executable (a controller: manifests of its pinned module)."""
    return (tools or tools_dir()).parent / "share" / tool


def sites_dir(root: Path | None = None) -> Path:
    """One folder per site."""
    return (root or cache_root()) / "sites"


def site_dir(site: str, root: Path | None = None) -> Path:
    """site.json, aws/, control-plane/, machines/<instance-id>/, fsx/<fs-id>/ and logs/ of one site."""
    return sites_dir(root) / site
