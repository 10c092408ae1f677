"""A checkpoint's files into the folder of a sealing, as copies that nobody but the supervisor writes."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Mapping

from trainer.contract.tree import printable, text_of
from trainer.supervisor.sealing.copying import SizeAndDigest, copy, digest_of, side_by_side
from trainer.supervisor.sealing.survey import Entry, Survey, mark_of

DIGESTS = ".digests.json"
"""In a checkpoint whose writer has digested what it wrote (`bivouac_dcp`): sizes and SHA-256 of its files."""
_METADATA = ".metadata"
_HELD = ".links-"
"""Links to the job's files have names that begin so while they are copied."""


def take(checkpoint: Survey, attempt: Path, names: Mapping[str, str]) -> dict[str, SizeAndDigest]:
    """Copy a checkpoint's files into a folder under these names, of which none is there; return sizes and digests.

    All are held by links first, so that what the job removes meanwhile is copied all the same. Raises `ValueError` for
    a file that was written since the survey, or is not what its writer has digested; the caller removes what was made.
    """
    links = {path: _link_beside(Path(entry.source), attempt / names[path]) for path, entry in checkpoint.files.items()}
    writer_digests = _digests_of_writer(checkpoint)

    def one(path: str) -> SizeAndDigest:
        entry, link, target = checkpoint.files[path], links[path], attempt / names[path]
        digest = copy(link or Path(entry.source), target, partial(_insist_unchanged, path, entry))
        if digest != writer_digests.get(path, digest):
            raise ValueError(
                f"{printable(path)} is not what its writer has digested: {digest[0]} bytes, SHA-256 {digest[1]}"
            )
        if link is not None:
            link.unlink()
        return digest

    return dict(zip(checkpoint.files, side_by_side(one, checkpoint.files)))


def _link_beside(source: Path, target: Path) -> Path | None:
    """Link a file beside the path of its copy; return the link, None where there can be none."""
    link = target.with_name(_HELD + target.name)
    try:
        os.link(str(source), str(link))
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or a file of somebody else
        return None
    return link


def _insist_unchanged(path: str, entry: Entry, status: os.stat_result) -> None:
    if mark_of(status) != entry.mark:
        raise ValueError(f"{printable(path or text_of(Path(entry.source).name))} was written while it was sealed")


def _digests_of_writer(checkpoint: Survey) -> dict[str, SizeAndDigest]:
    """Return size and SHA-256 of each file as its writer has noted them while it wrote; empty unless the note names
    these files, in these sizes, and `.metadata` as it stands: that one is another with each save."""
    try:
        files = json.loads(Path(checkpoint.files[DIGESTS].source).read_bytes())["files"]
        writer_digests = {str(name): (int(size), str(digest)) for name, (size, digest) in files.items()}
        sizes = {path: entry.mark[2] for path, entry in checkpoint.files.items() if path != DIGESTS}
        wanted = {path: size for path, (size, _) in writer_digests.items()}
        if sizes == wanted and digest_of(Path(checkpoint.files[_METADATA].source)) == writer_digests[_METADATA]:
            return writer_digests
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # the note is of another save, or none
    return {}
