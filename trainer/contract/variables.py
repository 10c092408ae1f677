"""Variables in the words and values of a job's spec, by one rule. Standard library and Python 3.8 only.

`$NAME`, `${NAME}` and `$(NAME)` stand for a variable's value, `${NAME:-text}` for the text where it has none,
`${NAME:+text}` for the text where it has one; `$$` is a dollar, and so is a `$` before anything else. What a shell
reads after `-c` is left to the shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z_]\w*)|\((?P<round>[A-Za-z_]\w*)\)"
    r"|\{(?P<curly>[A-Za-z_]\w*)(?::(?P<sign>[-+])(?P<text>[^{}$]*))?\})",
    re.ASCII,
)
_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_READS_A_SCRIPT = re.compile(r"-[A-Za-z]*c")
_NOTHING = "\0"
"""Stands in a path for a variable without a value; no variable may hold it."""


def expand(text: str, values: Mapping[str, str], unset: set[str], empty: str = "") -> str:
    """Return the text with its variables' values, `empty` for none. A name that is not known goes into `unset`."""

    def value(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name = _name_in(match)
        content = values.get(name, "")
        if match["sign"]:
            return (match["text"] if content else "") if match["sign"] == "+" else content or match["text"]
        if name not in values:
            unset.add(name)
        return content or empty

    return _REFERENCE.sub(value, text)


def references(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each variable that a text names, and whether the text says what stands for it where there is none."""
    for match in _REFERENCE.finditer(text):
        if not match["dollar"]:
            yield _name_in(match), match["sign"] is not None


def _name_in(match: re.Match[str]) -> str:
    return match["plain"] or match["round"] or match["curly"]


def unreadable(text: str) -> str:
    """Return the first `${` or `$(` that names no variable, with what follows; empty where there is none."""
    match = re.search(r"\$[{(].*", _REFERENCE.sub(" ", text))
    return match[0][:40] if match else ""


def words(command: Sequence[str], values: Mapping[str, str], unset: set[str]) -> list[str]:
    """Return the command with values for variables. A word with `${NAME:+...}` that becomes empty is left out: so a
    flag is there only where its variable has a value."""
    script, result = shell_script(command), []
    for index, word in enumerate(command):
        value = word if index == script else expand(word, values, unset)
        if value or not any(match["sign"] == "+" for match in _REFERENCE.finditer(word)):
            result.append(value)
    return result


def shell_script(command: Sequence[str]) -> int:
    """Return the place of the word that a shell reads as its script, after `-c`; -1: there is none."""
    for index in range(2, len(command)):
        # The last word before `-c` that is no option; `pipefail` belongs to `-o`.
        head = [word for word in command[: index - 1] if not word.startswith(("-", "+")) and word != "pipefail"]
        if _READS_A_SCRIPT.fullmatch(command[index - 1]) and head and os.path.basename(head[-1]) in _SHELLS:
            return index
    return -1


def environment(
    job: Mapping[str, str], constants: Mapping[str, str], container: Mapping[str, str], unset: set[str]
) -> dict[str, str]:
    """Return the job's own variables with values for those that they name: `constants`, others of its own, then the
    container's. In its own value a variable is the container's. An empty entry of a path is left out, since it would
    be the working folder."""
    values: dict[str, str] = {}

    def value(name: str, ancestors: Sequence[str]) -> str:
        if name in values:
            return values[name]
        scope, chain = {**container, **constants}, (*ancestors, name)
        for dependency in {name for name, _ in references(job[name])} & set(job) - set(constants) - set(chain):
            scope[dependency] = value(dependency, chain)
        text = expand(job[name], scope, unset, _NOTHING)
        values[name] = ":".join(part.replace(_NOTHING, "") for part in text.split(":") if part != _NOTHING)
        return values[name]

    for name in job:
        value(name, ())
    return values
