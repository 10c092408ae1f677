"""The folders that outlive a command. Standard library only: the toolchain imports this before anything is built."""

from __future__ import annotations

from pathlib import Path

from infra.folders import cache_root


def tools_dir(root: Path | None = None) -> Path:
    """Return the folder of executables: pulumi, etcd, the Kubernetes binaries, controllers."""
    return (root or cache_root()) / "bin"


def share_dir(tool: str, tools: Path | None = None) -> Path:
    """Return the folder of a tool's other files, such as the manifests of a controller's pinned module."""
    return (tools or tools_dir()).parent / "share" / tool


def sites_dir(root: Path | None = None) -> Path:
    return (root or cache_root()) / "sites"


def site_dir(site: str, root: Path | None = None) -> Path:
    """Return a site's folder: site.json, aws/, control-plane/, machines/<instance-id>/, fsx/<fs-id>/ and logs/."""
    return sites_dir(root) / site
