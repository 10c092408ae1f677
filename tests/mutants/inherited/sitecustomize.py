"""Gives a module other code: in the process that tries a mutant, and in each Python that its tests start anew.

Python imports this file by its name at its start where `PYTHONPATH` has its folder. It needs the standard library alone
and is silent without `BIVOUAC_MUTANT`, the name of a file that says which module gets which code.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import mmap
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

VARIABLE = "BIVOUAC_MUTANT"
_MARKS = "_lines_that_ran"


class Replaced:
    """A finder that gives one module other code, or none at all."""

    def __init__(self, name: str, path: Path, code: CodeType | None) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        if self.code is None:
            raise ImportError(f"{name} comes later")
        code = self.code

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        below = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = Loader(name, str(self.path))
        return importlib.util.spec_from_file_location(name, self.path, loader=loader, submodule_search_locations=below)


def hand_on(name: str, path: Path, order: Path, source: str = "", marks: Path | None = None) -> Replaced:
    """Return the finder for this process, and let the environment tell all that it starts. `source` takes the place of
    the module's; `marks` is a file with a byte for each line, set where the line runs."""
    order.write_text(json.dumps({"name": name, "path": str(path), "source": source, "marks": str(marks or "")}))
    os.environ[VARIABLE] = str(order)
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return _finder(order)


def _finder(order: Path) -> Replaced:
    words = json.loads(order.read_text())
    path = Path(words["path"])
    if words["marks"]:
        with open(words["marks"], "r+b") as file:
            code = _marked(path, mmap.mmap(file.fileno(), 0))
    else:
        code = compile(words["source"], str(path), "exec", dont_inherit=True)
    return Replaced(words["name"], path, code)


def _marked(path: Path, lines: mmap.mmap) -> CodeType:
    """Return the module's code with a mark before each statement."""
    tree = ast.parse(path.read_text())
    builtins.__dict__[_MARKS] = lines
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, [each for statement in body for each in (*_mark(statement), statement)])
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


def _mark(statement: ast.stmt) -> list[ast.stmt]:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return []
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return []
    return ast.parse(f"{_MARKS}[{statement.lineno}] = 1").body


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    sys.meta_path.insert(0, _finder(Path(os.environ[VARIABLE])))  # type: ignore[arg-type]
