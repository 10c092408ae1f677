"""The structure of the code, printed, as part of `make lint`. Exits 1 for a folder too full or a circle of imports.

import-linter holds the layers between packages; this counts what it does not: modules in a folder, also of the tests,
loose modules, circles between single modules (imports for types included), edges between packages, lines, the share of
names that name no thing and no action, class names that a package has twice, and names of tests that are too long.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
from rich.console import Console

from infra.console.tables import Listing
from tests import dialect

ROOTS = ("infra", "trainer")
TESTS = "tests"
MIRRORS = {"unit": "infra", "rehearsal": "infra", "trainer": "trainer"}
"""Folder of the tests -> what its folders are named after; else after one of the clone, or `project`: all of it."""
MOST_MODULES, MOST_LOOSE, MOST_DEPTH = 20, 8, 4
MOST_DIALECT_PERCENT = 1.0
MOST_LETTERS = 79
"""Of the sentence that a test's name is, after `test_`."""
EACH_IN_ITS_FILE = {"BivouacCallback"}
"""Class names of the client's files: a job imports one of these files, under the name that its framework expects."""
Edges = dict[str, set[str]]


def folders() -> dict[Path, list[Path]]:
    """Folder -> its modules, without `__init__`; of the tests, too."""
    found: dict[Path, list[Path]] = defaultdict(list)
    for root in (*ROOTS, TESTS):
        for path in sorted(Path(root).rglob("*.py")):
            if path.name != "__init__.py":
                found[path.parent].append(path)
    return found


def circles(edges: Edges) -> list[list[str]]:
    """Groups of modules each of which imports all others of its group, directly or not."""
    reached: Edges = {}
    for start in edges:
        names: set[str] = set()
        todo = [start]
        while todo:
            for name in edges[todo.pop()] - names:
                names.add(name)
                todo.append(name)
        reached[start] = names
    looping = {name for name in edges if name in reached[name]}
    groups = {
        frozenset(other for other in looping if other in reached[name] and name in reached[other]) for name in looping
    }
    return sorted(sorted(group) for group in groups)


def package(module: str) -> str:
    """`infra.plan.checks.money` -> `infra.plan`; a loose module stands for itself."""
    return ".".join(module.split(".")[:2])


def mirrors(parts: tuple[str, ...]) -> bool:
    """Whether a folder of the tests has the name of what is tested there, if it must have one."""
    root, below = MIRRORS.get(parts[0]) if parts else None, Path(*parts[1:])
    return root is None or any(path.is_dir() for path in (Path(root, below), below)) or parts[1:] == ("project",)


def names_to_mend() -> Iterator[str]:
    """Yield what is wrong with the names of the product."""
    for root in ROOTS:
        if (percent := dialect.share(root).percent) > MOST_DIALECT_PERCENT:
            yield f"{root}: {percent:.1f} % of the names are in dialect, see `python -m tests.dialect {root}`"
        for package_folder in (path for path in sorted(Path(root).iterdir()) if path.is_dir()):
            for name, files in dialect.twice(str(package_folder)).items():
                if name not in EACH_IN_ITS_FILE:
                    yield f"class {name} is defined twice: {', '.join(map(str, files))}"


def long_sentences(folder: Path) -> Iterator[str]:
    """Yield each test below `folder` whose name is a longer sentence than people read at a glance."""
    for path in sorted(folder.rglob("*.py")):
        for sentence in re.findall(r"^ *(?:async )?def test_(\w+)", path.read_text("utf-8"), re.MULTILINE):
            if len(sentence) > MOST_LETTERS:
                yield f"{path}: test_{sentence} has {len(sentence)} letters after test_, at most {MOST_LETTERS}"


def main() -> int:
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    edges = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    crossing = Counter((package(a), package(b)) for a, bs in edges.items() for b in bs if package(a) != package(b))
    modules, lines = Counter[str](), Counter[str]()
    wrong: list[str] = []
    for folder, paths in folders().items():
        limit, what = (MOST_LOOSE, "loose modules") if str(folder) == "infra" else (MOST_MODULES, "modules")
        if len(paths) > limit:
            wrong.append(f"{folder} has {len(paths)} {what}, at most {limit}")
        if len(folder.parts) - 1 > MOST_DEPTH:
            wrong.append(f"{folder} lies deeper than {MOST_DEPTH} folders below {folder.parts[0]}")
        if folder.parts[0] == TESTS and not mirrors(folder.parts[1:]):
            wrong.append(f"{folder} has the name of no package")
        for path in paths if folder.parts[0] != TESTS else ():
            name = package(".".join(path.with_suffix("").parts))
            modules[name] += 1
            lines[name] += len(path.read_text().splitlines())
    table = Listing("package", ">modules", ">lines", "knows")
    for name in sorted(modules):
        known = (
            f"{other.removeprefix('infra.')} {count}" for (one, other), count in sorted(crossing.items()) if one == name
        )
        table.row(name, str(modules[name]), f"{lines[name]:,}", ", ".join(known))
    table.show(Console(highlight=False))
    wrong += [f"import circle: {' <-> '.join(group)}" for group in circles(edges)]
    wrong += names_to_mend()
    wrong += long_sentences(Path(TESTS))
    for line in wrong:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
