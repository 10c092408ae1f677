"""The project's files that go into an image or into the closer's code, and their digest.

The digest is the same from a clone and from its wheel. A campaign names the digest of the code that ends it, so that a
later change of the clone changes nothing for it.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import cache
from pathlib import Path

from infra.folders import ASSETS, CODE, asset
from infra.session.context import Context
from infra.session.session import STACK_CONFIG
from infra.spec.names import PROJECT, closer_code
from infra.stack.closer import REQUIREMENTS

NO_CODE = ("infra/campaigns", str(ASSETS))
"""Specs: a comment in one is no reason to bake, least of all for a relaunch on a held cluster. And links."""
_LEFT_LYING = ("*~", "#*#", "*.bak", "*.orig", "*.rej", "*.tmp", "*.sw?", "4913")
"""Files of editors, patches and merges; vim probes a folder with the last."""
_SKIPPED = re.compile("|".join(translate(pattern) for pattern in (".*", "__pycache__", *_LEFT_LYING)))
"""Names of files and folders."""


def sources(root: Path, parts: Iterable[str], excluded_names: Iterable[str] = ()) -> dict[str, Path]:
    """Return name -> file at and below `parts` in order, without those at and below `excluded_names`.

    Names begin at `root`. Skips hidden files, editors' files and Python's cache: they change while somebody only looks,
    and a needless bake costs the time of a held cluster's nodes.
    """
    left_out = tuple(f"{Path(name)}/" for name in excluded_names)
    files = {}
    for part in parts:
        top = asset(part, root)
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = Path(part, path.relative_to(top))
            if path.is_file() and not any(map(_SKIPPED.match, name.parts)) and not f"{name}/".startswith(left_out):
                files[str(name)] = path
    return files


def digest_of(files: Mapping[str, Path], *inputs: str) -> str:
    """Return the digest of names and contents, and of other inputs."""
    digest = hashlib.sha256("".join(f"{text}\0" for text in inputs).encode())
    for name, path in files.items():
        digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


_PARTS = ("infra", "trainer", "pyproject.toml", REQUIREMENTS)
_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every entry, the oldest that zip knows: the same files are the same bytes."""


def pack_project(root: Path) -> bytes:
    """Return the project as a zip file that depends on nothing but names and contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sources(root, _PARTS, NO_CODE).items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


@cache
def _own_code() -> tuple[str, bytes]:
    body = pack_project(CODE)
    return hashlib.sha256(body).hexdigest(), body


def code_of(context: Context) -> str | None:
    """Return the digest of the code that ends this campaign: the stack's, which never changes; without a stack, our
    own. None for a stack that is older than the closer."""
    config = context.store.get_json(STACK_CONFIG)
    if config is None:
        return _own_code()[0]
    code = config.get(f"{PROJECT}:closerCode")
    return str(code) if code else None


def keep_code(context: Context, digest: str | None) -> None:
    """Upload the code of a campaign that is about to begin with it."""
    own_digest, body = _own_code()
    if digest == own_digest:
        context.guard()
        context.store.put_if_absent(closer_code(own_digest), body)
