"""What lies in a job's own folder and is no checkpoint that its format recognises, as node 0's supervisor publishes it.

It may be the model that the campaign is for: "not recognised" is never "not there". A name is bytes; here it is text in
which control characters, the backslash and whatever is no UTF-8 stand as `\\xNN`, so it is safe to print and exact.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainer.contract.frozen import Frozen

UNRECOGNISED_NAME = "unrecognised.json"
"""Below the campaign's folder on the shared tier; written whole or not at all, also when nothing is unrecognised."""
OWN_FOLDER = "own"
"""Below the campaign's folder on the shared tier: where jobs write to `tier: local`, what is unrecognised on a node's
disk is copied to `own/node-<rank>/` at its end."""
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


class Unrecognised(Frozen):
    """Unrecognised content, for `/status`, events and notices."""

    files: int = Field(ge=0)
    bytes: int = Field(ge=0)
    newest: str = ""
    """Path of the file that was written last, below the job's folder."""
    why: str = ""
    """A sentence: what was looked for, and what lies there."""
    fits: str = ""
    """The format that would recognise it, empty if none does."""


class UnrecognisedFile(Unrecognised):
    """The content of `unrecognised.json`."""

    format: Literal[1] = 1
    attempt: int
    at: float
    """When the folder was looked at, in seconds since 1970."""
    ended: bool = False
    """The job has ended: nothing is being written any more."""
    newest_at: float = 0.0
    entries: tuple[str, ...] = ()
    """Files and folders below the job's folder that hold all of it: a folder in which nothing is recognised is one
    entry. Of very many, a folder may stand for its files though it also holds something recognised, `.` for all."""


def entry_path(folder: Path, entry: str) -> Path:
    """Return the path of an entry of `unrecognised.json` in the job's folder. Raises `ValueError` for one that leads
    out of it."""
    name = _ESCAPED.sub(lambda match: bytes([int(match.group(1), 16)]), entry.encode())
    if name.startswith(b"/") or b".." in name.split(b"/"):
        raise ValueError(f"leads out of the job's folder: {entry}")
    return folder / name.decode(errors="surrogateescape")
