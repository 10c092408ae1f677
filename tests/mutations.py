"""Specs as people, editors and generators break them: seeded, from the campaigns that come with the kit."""

# ruff: noqa: E501
from __future__ import annotations

import random
from typing import Any

import yaml

from tests.root import ROOT

CAMPAIGNS = sorted((ROOT / "infra" / "campaigns").glob("*.yaml"))
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**29, 10**400, -(10**18), 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"),
    "", " ", "no", "on", "0100", "1:30", "1_000", "0x10", "1e400", "nan", "P9999999999D", "99999999999d", "90s", "-5m", "\u0663" * 12,
    "2026-01-01", "x" * 5000, "späce ümlaut", "\u202eevil", "a\nb", "a\tb", "\x07", "../../etc", "/dev", "/proc", "~nobody/x", "~",
    "**/" * 40 + "*", "[", "{}", "%s", "[bold]", "🦙" * 30, [], [[]], {}, [1, 2], {"a": {"b": 1}}, ["x"] * 300,
)  # fmt: skip
RAW = (
    b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\t", b"\x1b[31m", b"---\n---\n", b"...\n", b"? [a]\n: b\n", b"*nowhere\n",
    b"x: !!python/object:os.system 1\n", b"x: !!python/object/apply:os.system [id]\n", b"x: !!binary '%%'\n", b"x: !!set {a, b}\n",
    b"x: !!timestamp soon\n", b"x: !!int abc\n", b"x: !!float abc\n", b"x: !!null abc\n", b"x: !!omap [a]\n", b"x: !!pairs 1\n", b"1: x\n", b"null: x\n", b"<<: 1\n",
    b"<<: *x\n", b"a: &a [*a]\n", b"[" * 3000, b"{a: " * 2000, b"- " * 3000, b"'", b'"\\ud800"', b"%YAML 9.9\n---\n", b"&a &b c", b"x: |\n  a\n b",
    b"a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    b"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
)  # fmt: skip


def broken_spec(random: random.Random) -> bytes:
    """A campaign with one to four fields changed, as bytes; half of them with broken bytes as well."""
    tree = yaml.safe_load(random.choice(CAMPAIGNS).read_bytes())
    for _ in range(random.randint(1, 4)):
        _change(tree, random)
    content = yaml.safe_dump(tree, allow_unicode=random.random() < 0.5, sort_keys=False).encode("utf-8", "replace")
    if random.random() < 0.4:
        content = _damage(content, random)
    return content


def _change(tree: dict[str, Any], random: random.Random) -> None:
    section: Any = tree
    while True:
        keys = list(section) if isinstance(section, dict) else list(range(len(section)))
        if not keys:
            return
        key = random.choice(keys)
        inner = section[key]
        if isinstance(inner, dict | list) and inner and random.random() < 0.8:
            section = inner
            continue
        break
    match random.randrange(4):
        case 0 if isinstance(section, dict):
            del section[key]
        case 1 if isinstance(section, dict):
            section[random.choice((f"{key}x", str(key).upper(), 7, "", "a.b", f"{key} "))] = section[key]
        case _:
            section[key] = random.choice(VALUES)


def _damage(content: bytes, random: random.Random) -> bytes:
    at = random.randrange(len(content) + 1)
    match random.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + random.randbytes(random.randint(1, 8)) + content[at:]
        case 2:
            return content.replace(b"\n", b"\r\n")
        case 3:
            lines = content.splitlines(keepends=True)
            return b"".join([*lines, random.choice(lines)])
        case 4:
            return content.replace(b"  ", b"\t", random.randint(1, 3))
        case _:
            line = content.rfind(b"\n", 0, at) + 1
            return content[:line] + random.choice(RAW) + content[line:]
