"""The clone's files that go into an image or into the closer's code, and the digest of exactly these.

A campaign names the digest of the code that ends it, so that a later change of the clone changes nothing for it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from infra.session.context import Context
from infra.session.session import STACK_CONFIG
from infra.spec.names import PROJECT, closer_code
from infra.stack.closer import REQUIREMENTS

_LEFT_LYING = ("*~", "#*#", "*.bak", "*.orig", "*.rej", "*.tmp", "*.sw?", "4913")
"""Files of editors, patches and merges; vim probes a folder with the last."""


def sources(root: Path, parts: Iterable[str], excluded: Iterable[str] = ()) -> tuple[Path, ...]:
    """Return the files at and below `parts` in order, without those at and below `excluded`; relative to `root`.

    Skips hidden files, editors' files and Python's cache: they change while somebody only looks, and a needless bake
    costs the time of a held cluster's nodes.
    """
    left_out = {root / path for path in excluded}
    files = []
    for top in (root / part for part in parts):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and _counts(path.relative_to(root)) and left_out.isdisjoint({path, *path.parents}):
                files.append(path)
    return tuple(files)


def digest_of(root: Path, files: Iterable[Path], *inputs: str) -> str:
    """Return the digest of names and contents, and of other inputs."""
    digest = hashlib.sha256("".join(f"{text}\0" for text in inputs).encode())
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _counts(path: Path) -> bool:
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    return not any(fnmatch(part, pattern) for part in path.parts for pattern in _LEFT_LYING)


ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("infra", "trainer", "pyproject.toml", REQUIREMENTS)
_WITHOUT = ("infra/campaigns",)
_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every entry, the oldest that zip knows: the same files are the same bytes."""


def pack_project(root: Path) -> bytes:
    """Return the project as a zip file that depends on nothing but names and contents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources(root, _PARTS, _WITHOUT):
            entry = zipfile.ZipInfo(path.relative_to(root).as_posix(), _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


@cache
def _own_code() -> tuple[str, bytes]:
    body = pack_project(ROOT)
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
