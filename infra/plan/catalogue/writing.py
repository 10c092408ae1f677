"""Writer of the file of instance types: one layout for all rows, so that a diff shows only what a refresh changed."""

from __future__ import annotations

from typing import Any

import yaml

_WIDTH = 95


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def write(header: str, content: dict[str, Any]) -> str:
    """Return the file's text; `header` is its leading comment, `content` has the form that `reading.read` returns."""
    lines = [header.rstrip()]
    for name, value in content.items():
        if name != "types":
            lines.append(_flow({name: value}, "")[1:-1])
    lines.append("types:")
    for name, row in content["types"].items():
        lines += [f"  {name}:", _flow(row, "    ")]
    return "\n".join(lines) + "\n"


def header(text: str) -> str:
    """Return the comment lines at the beginning of a file."""
    comments = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line)
    return "\n".join(comments)


def _flow(value: Any, indent: str) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=_WIDTH).rstrip()
    head, *tail = text.splitlines()
    return "\n".join([indent + head, *(f"{indent} {line.strip()}" for line in tail)])
