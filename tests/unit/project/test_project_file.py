"""What pyproject.toml says of the project holds for all of it: layers and packages; and the workflow of the tests."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import yaml

from tests.root import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = {contract["name"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
BROUGHT = {"botocore": "boto3", "jmespath": "boto3", "awscrt": "boto3", "huggingface_hub": "transformers"}
"""What a declared package always brings, under a name of its own; `awscrt` is boto3's extra `crt`."""


def parts(package: str) -> set[str]:
    """Its modules and packages at the top."""
    folder = ROOT / package
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return {f"{package}.{name}" for name in modules | {path.parent.name for path in folder.glob("*/__init__.py")}}


def test_the_layers_of_the_trainer_name_each_of_its_parts() -> None:
    modules = CONTRACTS["Of the trainer, the infrastructure knows the contract"]["forbidden_modules"]
    assert set(modules) == parts("trainer") - {"trainer.contract"} and len(set(modules)) == len(modules)


def test_the_layers_name_each_package() -> None:
    layers = CONTRACTS["Layers: each package knows only those below it"]["layers"]
    packages = [name for layer in layers for name in layer.split(" | ")]
    assert set(packages) == parts("infra") and len(set(packages)) == len(packages)


def imports(folder: str) -> Iterator[tuple[str, Path]]:
    """Names of modules of others, and who imports them."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((name.name, path) for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module, path


def package_name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


def test_what_is_imported_is_declared() -> None:
    """A package that only another one brings is gone the day that the other does without."""
    always = {package_name(row) for row in PROJECT["project"]["dependencies"]}
    optional = PROJECT["project"]["optional-dependencies"]
    extras = {key: {package_name(row) for row in rows} for key, rows in optional.items()}
    owners, missing = packages_distributions(), set()
    clients = {path.stem for path in (ROOT / "trainer/client").glob("bivouac*.py")}
    own_modules = {"infra", "trainer", *clients, *sys.stdlib_module_names}
    for folder in ("infra", "trainer"):
        for module, path in imports(folder):
            top = module.partition(".")[0]
            if top in own_modules:
                continue
            packages = set(always)
            if any(path.is_relative_to(ROOT / row) for row in ("infra/rehearsal", "infra/rehearsal/plugins")):
                packages |= extras["rehearsal"]
            if folder == "trainer" and not path.is_relative_to(ROOT / "trainer/contract"):
                packages |= extras["trainer"]
            if any(path.is_relative_to(ROOT / row) for row in ("trainer/client", "trainer/examples")):
                packages |= extras["dev"]  # the job's container has them, and our tests
            owned_by = {BROUGHT.get(top, package_name(owner)) for owner in owners.get(top, [top])}
            if not owned_by & packages:
                missing.add(f"{path.relative_to(ROOT)} imports {module} of {', '.join(sorted(owned_by))}")
    assert missing == set()


def test_every_requirement_has_an_upper_bound() -> None:
    project = PROJECT["project"]
    extras = (line for lines in project["optional-dependencies"].values() for line in lines)
    assert [line for line in (*project["dependencies"], *extras) if "<" not in line] == []


def test_pushes_and_pull_requests_run_what_ci_runs_and_may_only_read() -> None:
    flow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert set(flow[True]) == {"push", "pull_request"} and flow["permissions"] == {"contents": "read"}
    (job,) = flow["jobs"].values()
    assert "permissions" not in job and job["steps"][-1] == {"run": ".ci/run"} and job["timeout-minutes"] == 90
