"""YAML files, read within bounds of time and memory and without scalars that surprise people.

Scalars follow YAML 1.2's core schema: `no`, `on`, `1:30` and dates are texts, `0100` is the number 100.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.errors import UserError
from infra.spec.problems import Problem

MOST_BYTES = 64 * 1024
"""Largest file that is read. A spec has two thousand bytes; a larger file is something else."""
MOST_NODES = 20_000
"""Most values after aliases are expanded: a few lines of aliases can stand for billions."""
_MOST_DIGITS = 30
_MAP = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    root: yaml.Node | None
    content: object


class UnreadableDocument(Exception):
    """The file holds no document; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """SafeLoader without YAML 1.1's surprises."""


_Loader.yaml_implicit_resolvers = {}
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _form, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", f"^(?:{_FLOAT})$", "-+0123456789."),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^(?:<<)$", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"{_MAP}{_tag}", re.compile(_form), list(_first))


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if len(text) > _MOST_DIGITS:
        raise yaml.constructor.ConstructorError(None, None, f"a number of {len(text)} digits", node.start_mark)
    return int(text)


_Loader.add_constructor(f"{_MAP}int", _integer)


def read(path: Path) -> Document:
    """Read a YAML file; raise `UserError` if there is none, `UnreadableDocument` if it holds no YAML."""
    return parse(_text(_bytes(path)))


def parse(text: str) -> Document:
    """Parse a YAML text; raise `UnreadableDocument`."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            _refuse_bomb(root)
            content = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
        return Document(root, content)
    except RecursionError as error:
        raise _unreadable("nested too deeply", "more levels than any spec has", "mend the brackets") from error
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        detail = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
        raise _unreadable("not YAML", detail, "mend the syntax", line) from error


def _bytes(path: Path) -> bytes:
    """Read without blocking: a pipe without a writer would block for ever."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UserError(
            "there is no such spec file", seen=_path_text(path), cure="give the path of a YAML file"
        ) from error
    except OSError as error:
        cure = "make it readable: chmod u+r" if error.errno == errno.EACCES else "give the path of a YAML file"
        raise UserError(
            "the spec file cannot be read", seen=f"{_path_text(path)}: {error.strerror or error}", cure=cure
        ) from error
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise UserError(
                "the spec is no file", seen=f"{_path_text(path)} is {kind}", cure="give the path of a YAML file"
            )
        content = os.read(file, MOST_BYTES + 1)
    except OSError as error:
        raise UserError(
            "the spec file cannot be read",
            seen=f"{_path_text(path)}: {error.strerror}",
            cure="mend the disk, or copy it",
        ) from error
    finally:
        os.close(file)
    if len(content) > MOST_BYTES:
        raise _unreadable(f"larger than {MOST_BYTES // 1024} KiB", "a spec is smaller", "give the path of the spec")
    return content


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        detail = f"byte 0x{content[error.start]:02x} in line {line}"
        raise _unreadable("not UTF-8 text", detail, "save it as UTF-8", line) from error


def _refuse_bomb(root: yaml.Node | None) -> None:
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known_size = sizes.get(id(node))
        if known_size == 0:
            raise _unreadable("an alias refers to a value that contains it", "a loop", "write it out", _line(node))
        if known_size is not None:
            return known_size
        sizes[id(node)] = 0
        children = [inner for pair in node.value for inner in pair] if isinstance(node, yaml.MappingNode) else ()
        items = node.value if isinstance(node, yaml.SequenceNode) else children
        total = 1 + sum(size(item) for item in items)
        if total > MOST_NODES:
            detail = f"more than {MOST_NODES} values once aliases are written out"
            raise _unreadable("too large a document", detail, "write fewer aliases", _line(node))
        sizes[id(node)] = total
        return total

    if root is not None:
        size(root)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _unreadable(message: str, detail: str, cure: str, line: int = 1) -> UnreadableDocument:
    return UnreadableDocument(Problem(field="(file)", line=line, message=message, seen=detail[:200], cure=cure))


def _path_text(path: Path) -> Any:
    text = str(path)
    return (
        repr(text)
        if any(not sign.isprintable() for sign in text)
        else (text if len(text) < 300 else text[:297] + "...")
    )
