"""The code with which the closer ends a campaign: the driver's own, as one file in the state bucket.

A campaign names the digest that it began with, so that a later change of the clone changes nothing for it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from infra.bake.sources import NO_CODE, sources
from infra.folders import CODE
from infra.session.context import Context
from infra.session.session import STACK_CONFIG
from infra.spec.names import PROJECT, closer_code
from infra.stack.closer import REQUIREMENTS

_PARTS = ("infra", "trainer", "pyproject.toml", REQUIREMENTS)
_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every entry, the oldest that zip knows: the same files are the same bytes."""


def packed(root: Path) -> bytes:
    """Return the project as a zip file that depends on nothing but names and contents."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, path in sources(root, _PARTS, NO_CODE).items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, path.read_bytes())
    return out.getvalue()


@cache
def _own() -> tuple[str, bytes]:
    body = packed(CODE)
    return hashlib.sha256(body).hexdigest(), body


def code_of(context: Context) -> str | None:
    """Return the digest of the code that ends this campaign: the stack's, which never changes; without a stack, our
    own. None for a stack that is older than the closer."""
    stored = context.store.get_json(STACK_CONFIG)
    if stored is None:
        return _own()[0]
    code = stored.get(f"{PROJECT}:closerCode")
    return str(code) if code else None


def keep_code(context: Context, digest: str | None) -> None:
    """Upload the code of a campaign that is about to begin with it."""
    own, body = _own()
    if digest == own:
        context.guard()
        context.store.put_if_absent(closer_code(own), body)
