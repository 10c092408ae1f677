"""A checkpoint's files into the folder of a sealing, as copies that nobody but the supervisor writes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Mapping

from trainer.supervisor.sealing.copying import SizeAndDigest, copy, digest_of
from trainer.supervisor.sealing.survey import Entry, Survey, mark_of

DIGESTS = ".digests.json"
"""In a checkpoint whose writer has digested what it wrote (`bivouac_dcp`): sizes and SHA-256 of its files."""
_METADATA = ".metadata"
_AT_ONCE = 4
"""Files that are copied at once."""
_HELD = ".held-"
"""Links to the job's files have names that begin so while they are copied."""


def take(begun: Survey, attempt: Path, names: Mapping[str, str]) -> dict[str, SizeAndDigest]:
    """Copy a checkpoint's files into a folder under these names, of which none is there; return sizes and digests.

    All are held by links first, so that what the job removes meanwhile is copied all the same. Raises `ValueError` for
    a file that was written since the survey, or is not what its writer has digested; the caller removes what was made.
    """
    held = {path: _held(Path(entry.source), attempt / names[path]) for path, entry in begun.files.items()}
    noted = _noted(begun)

    def one(path: str) -> SizeAndDigest:
        entry, link, target = begun.files[path], held[path], attempt / names[path]
        made = copy(link or Path(entry.source), target, partial(_unchanged, path, entry))
        if made != noted.get(path, made):
            raise ValueError(f"{path} is not what its writer has digested: {made[0]} bytes, SHA-256 {made[1]}")
        if link is not None:
            link.unlink()
        return made

    with ThreadPoolExecutor(_AT_ONCE) as copiers:
        return dict(zip(begun.files, copiers.map(one, begun.files)))


def _held(source: Path, target: Path) -> Path | None:
    """Link a file beside the path of its copy; return the link, None where there can be none."""
    link = target.with_name(_HELD + target.name)
    try:
        os.link(str(source), str(link))
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or a file of somebody else
        return None
    return link


def _unchanged(path: str, entry: Entry, status: os.stat_result) -> None:
    if mark_of(status) != entry.mark:
        raise ValueError(f"{path or Path(entry.source).name} was written while it was sealed")


def _noted(begun: Survey) -> dict[str, SizeAndDigest]:
    """Return size and SHA-256 of each file as its writer has noted them while it wrote; empty unless the note names
    these files, in these sizes, and `.metadata` as it stands: that one is another with each save."""
    try:
        files = json.loads(Path(begun.files[DIGESTS].source).read_bytes())["files"]
        noted = {str(name): (int(size), str(digest)) for name, (size, digest) in files.items()}
        sizes = {path: entry.mark[2] for path, entry in begun.files.items() if path != DIGESTS}
        wanted = {path: size for path, (size, _) in noted.items()}
        if sizes == wanted and digest_of(Path(begun.files[_METADATA].source)) == noted[_METADATA]:
            return noted
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # the note is of another save, or none
    return {}
