"""The code with which the closer ends a campaign: the driver's own, as one file in the state bucket.

A campaign names the digest that it began with, so that a later change of the clone changes nothing for it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from infra.bake.sources import sources
from infra.session.context import Context
from infra.session.session import STACK_CONFIG
from infra.spec.names import PROJECT, closer_code
from infra.stack.closer import REQUIREMENTS

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
