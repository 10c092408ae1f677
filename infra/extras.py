"""Packages beyond those that driving campaigns on AWS needs."""

from __future__ import annotations

from importlib.util import find_spec

from infra.errors import UserError

_TELLING = {
    "trainer": ("torch", "tokenizers", "pyarrow"),
    "rehearsal": ("moto", "pyroute2"),
}
"""Extra of pyproject.toml -> packages that come with it alone."""


def refuse_missing(extra: str) -> None:
    """Raise `UserError` where an extra is not installed."""
    missing = [name for name in _TELLING[extra] if find_spec(name) is None]
    if missing:
        cure = f"install the extra: pip install 'bivouac[{extra}]'"
        raise UserError(
            f"this needs the packages of the extra {extra}", seen=f"no {', '.join(missing)} here", cure=cure
        )
