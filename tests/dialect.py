"""Names that say a tense or a pronoun where a thing or an action belongs, and class names used twice.

    python -m tests.dialect [FOLDER…]    each such name below the folders, by function

A name is in dialect if all of it is one word of the lists below. Its share is measured over the pairs of a function and
a name that the function binds; over the functions themselves; and over classes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

_WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
WORDS = frozenset(_WORDS["loose"] + _WORDS["tenses"])
NOUNS = frozenset(_WORDS["nouns"])


class Binding(NamedTuple):
    """A name that a function binds."""

    file: Path
    function: str
    name: str


def in_dialect(name: str) -> bool:
    word = name.strip("_").lower()
    return word in WORDS or (re.fullmatch(r"[a-z]+ed", word) is not None and word not in NOUNS)


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")) if Path(folder).is_dir() else [Path(folder)]:
            yield path, ast.parse(path.read_text())


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Qualified name and node of each function, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        below = f"{name}." if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else prefix
        yield from functions(node, below)


def bound(function: ast.AST) -> set[str]:
    """Parameters and assigned names of a function, without those of the functions in it."""
    names: set[str] = set()
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return names - {"self", "cls", "_", "__"}


class Share(NamedTuple):
    """Bindings and functions, and those among them whose name is in dialect."""

    bindings: int
    loose_bindings: list[Binding]
    functions: int
    loose_functions: list[Binding]

    @property
    def percent(self) -> float:
        """Share of both together, in percent."""
        return 100 * (len(self.loose_bindings) + len(self.loose_functions)) / max(1, self.bindings + self.functions)


def share(*folders: str) -> Share:
    bindings = count = 0
    loose_bindings: list[Binding] = []
    loose_functions: list[Binding] = []
    for path, tree in modules(*folders):
        for name, node in functions(tree):
            names = bound(node)
            bindings, count = bindings + len(names), count + 1
            loose_bindings += [Binding(path, name, local) for local in sorted(names) if in_dialect(local)]
            if in_dialect(node.name):
                loose_functions.append(Binding(path, name, node.name))
    return Share(bindings, loose_bindings, count, loose_functions)


def twice(*folders: str) -> dict[str, list[Path]]:
    """Class names without a leading underscore that are defined more than once -> their files."""
    places: dict[str, list[Path]] = defaultdict(list)
    for path, tree in modules(*folders):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def main() -> int:
    folders = sys.argv[1:] or ["infra", "trainer"]
    result = share(*folders)
    for kind, loose in (("local", result.loose_bindings), ("function", result.loose_functions)):
        for binding in loose:
            print(f"{kind} {binding.file}:{binding.function} {binding.name}")
    for name, files in twice(*folders).items():
        print(f"class {name} {' '.join(map(str, files))}")
    print(
        f"{result.percent:.1f} %: {len(result.loose_bindings)} of {result.bindings} locals, "
        f"{len(result.loose_functions)} of {result.functions} functions"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
