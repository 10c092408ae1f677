"""What runs on the system node needs the packages of its image and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.rehearsal.aws import ecr
from infra.spec.names import BASICS_COMMAND, STEWARD_COMMAND
from tests.root import ROOT

EVERYTHING = """
import importlib, pkgutil, sys
import infra.steward
for module in pkgutil.walk_packages(infra.steward.__path__, "infra.steward."):
    importlib.import_module(module.name)
importlib.import_module(sys.argv[1])
# What boto3 takes by itself where it is there, and what is imported only when it is used.
import awscrt.checksums, awscrt.http, awscrt.io, awscrt.s3
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the steward's base, as a rehearsal has it: only locked packages."""
    from infra.rehearsal.nodelet.pods.images import unpack

    root = tmp_path_factory.mktemp("slim")
    unpack(ecr.slim_layer(), root)
    return root / ecr.PLACE / "bin/python"


def run(python: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([python, "-c", program, *arguments], env=environment, capture_output=True, text=True)


def test_all_that_the_system_node_runs_is_imported_with_the_packages_of_its_image(slim: Path) -> None:
    assert STEWARD_COMMAND[:2] == BASICS_COMMAND[:2] == ("python", "-m") and STEWARD_COMMAND[2] == "infra.steward"
    done = run(slim, EVERYTHING, BASICS_COMMAND[2])
    assert done.returncode == 0, done.stderr
    assert "'lightkube'" in done.stdout and "'boto3'" in done.stdout
    assert not [name for name in ("torch", "deepspeed", "pulumi", "numpy", "ansible") if f"'{name}'" in done.stdout]


@pytest.mark.parametrize("package", ["torch", "deepspeed", "pulumi", "ansible", "moto"])
def test_what_is_not_in_the_image_is_not_found_there_though_this_machine_has_it(slim: Path, package: str) -> None:
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0, "else the test says nothing"
    done = run(slim, program)
    assert done.returncode == 1, done.stderr


def test_a_builder_pushes_images_with_boto3_alone(tmp_path: Path) -> None:
    """A builder at AWS has a bare Python and what the driver brings along."""
    from infra.bake.bake import pack_tools

    made = pack_tools(tmp_path)
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(made), str(tmp_path / "tools")], check=True)
    program = "import infra.aws.registry as r; r.main(['push', '--help'])"
    command = [os.path.realpath(sys.executable), "-S", "-c", program]
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'tools'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "--repository" in done.stdout, done.stderr
    lacking = subprocess.run(
        command, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    ).stderr
    assert "No module named" in lacking, "else this machine's packages were seen"
