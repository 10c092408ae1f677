"""The workers of a run share the rewriting of asserts: without it each of them rewrites every file of a fresh clone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


def pytest_configure(config: pytest.Config) -> None:
    """Rewrite this worker's share of the test files, and leave the result where every worker's import looks for it."""
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    files = sorted(path for folder in config.args for path in Path(folder).rglob("test_*.py"))
    number = int(worker["workerid"].removeprefix("gw"))
    for path in files[number :: worker["workercount"]]:
        write_rewritten(path.absolute(), config)


def write_rewritten(path: Path, config: pytest.Config) -> Path:
    """Write what pytest imports in the place of a test file, unless it is there; return its path."""
    compiled = get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"
    if _read_pyc(path, compiled) is None:
        compiled.parent.mkdir(exist_ok=True)
        source_stat, code = _rewrite_test(path, config)
        _write_pyc(config.stash[assertstate_key], code, source_stat, compiled)
    return compiled
