"""Pulumi provider plugins of a rehearsal: they apply the SDKs' own inputs to the emulated AWS and the API server."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

PACKAGES = ("aws", "kubernetes")


def install(bin_dir: Path) -> tuple[Path, ...]:
    """Write the launchers `pulumi-resource-<package>` into `bin_dir`, which the caller puts on PATH.

    The engine prefers a plugin on PATH to any other (an ambient plugin).
    """
    bin_dir.mkdir(parents=True, exist_ok=True)
    return tuple(_launcher(bin_dir, package) for package in PACKAGES)


def _launcher(bin_dir: Path, package: str) -> Path:
    path = bin_dir / f"pulumi-resource-{package}"
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m infra.rehearsal.plugins.{package} "$@"\n'
    if not path.exists() or path.read_text() != text:
        # Renamed into place: an engine may be starting the launcher at this moment.
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(path)
    return path
