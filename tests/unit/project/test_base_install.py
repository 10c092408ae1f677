"""Driving campaigns on AWS needs none of the packages of the extras `trainer` and `rehearsal`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.root import ROOT

# Packages of an extra that a base dependency brings too: grpc and protobuf come with pulumi.
SHARED = {"grpcio", "protobuf"}
WITHOUT = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
IMPORT_ALL = """
import infra
skipped = ("infra.rehearsal", "infra.rehearsal.plugins")
for module in pkgutil.walk_packages(infra.__path__, "infra.", onerror=print):
    if not module.name.startswith(skipped) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def absent() -> set[str]:
    """Top-level modules of the two extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {Requirement(line).name.lower() for extra in ("trainer", "rehearsal") for line in extras[extra]} - SHARED
    modules = {top for top, owners in packages_distributions().items() if names & {owner.lower() for owner in owners}}
    assert {"torch", "deepspeed", "pyarrow", "tokenizers", "moto"} <= modules
    return modules


def without_extras(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.replace("ABSENT", repr(absent())) + program
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)


def bivouac(*arguments: str) -> subprocess.CompletedProcess[str]:
    return without_extras("from infra.cli.main import main; sys.argv[0] = 'bivouac'; sys.exit(main())", *arguments)


def test_every_module_of_the_driver_is_imported_without_them() -> None:
    process = without_extras(IMPORT_ALL)
    assert process.returncode == 0, process.stderr


def test_check_and_plan_do_their_work() -> None:
    spec = "infra/campaigns/p5-32-nodes.yaml"
    for process in (bivouac("check", spec), bivouac("plan", spec)):
        assert process.returncode == 0 and "No module" not in process.stderr, process.stdout + process.stderr


def test_a_rehearsal_names_the_extra_to_install() -> None:
    run = bivouac("run", "infra/campaigns/rehearsal.yaml")
    assert run.returncode == 64 and "pip install 'bivouac[rehearsal]'" in run.stderr + run.stdout, run.stderr


def test_preparing_data_names_the_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words\n" * 1000)
    run = bivouac("data", "prepare", str(tmp_path / "a.txt"), str(tmp_path / "out"))
    assert run.returncode == 64 and "pip install 'bivouac[trainer]'" in run.stderr + run.stdout, run.stderr
