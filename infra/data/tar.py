"""A tar of files, the same bytes for the same content."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def write_tar(root: Path, names: Iterable[str], stream: IO[bytes]) -> None:
    """Write files and links below `root` without what differs between machines: times, owners, most mode bits."""
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
