"""Models and data sets by their ids of Hugging Face's hub. `hf download` fetches them; its cache is read here.

Address, login and cache are that client's own (HF_ENDPOINT, HF_TOKEN, HF_HOME), and nothing here asks a network.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_REPOSITORY = re.compile(r"hf:(datasets/)?([\w.-]+/[\w.-]+)(?:@([\w.-]+))?")


def named_folder(place: str) -> Path:
    """Return the folder of a path, or that of `hf:OWNER/NAME@REVISION` or `hf:datasets/OWNER/NAME` in the client's
    cache. It is not there before a whole download."""
    if (match := _REPOSITORY.fullmatch(place)) is None:
        return Path(place).expanduser()
    kind, name, revision = match[1], match[2], match[3] or "main"
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    repository = cache / "--".join(("datasets" if kind else "models", *name.split("/")))
    if any(repository.glob("blobs/*.incomplete")):
        return repository / "incomplete"
    reference = repository / "refs" / revision
    return repository / "snapshots" / (reference.read_text() if reference.is_file() else revision)


def way_to(place: str, otherwise: str) -> str:
    """Return how a place that is not there comes there: by the client's command, or `otherwise`."""
    match = _REPOSITORY.fullmatch(place)
    options = f"{' --repo-type dataset' * bool(match[1])}{f' --revision {match[3]}' * bool(match[3])}" if match else ""
    return f"`hf download {match[2]}{options}` on this machine first" if match else otherwise
