"""An installed wheel checks and plans without a clone, and holds every file that the program reads or names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from infra.bake import bake
from tests.root import ROOT
from tests.wheel import Installed

NAMED = re.compile(r"(?<![\w/.-])(?:images|playbooks|requirements|infra/campaigns)/[\w./-]*\w\.\w+")
"""A file of the clone's root, as messages and docstrings name it."""
KEYS_IN_THE_STATE_BUCKET = {"images/given", "images/nodes"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"))


def done(completed: subprocess.CompletedProcess[str]) -> str:
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_it_writes_a_spec_checks_and_plans_it_away_from_the_clone(installed: Installed) -> None:
    assert str(ROOT) not in done(installed.run(installed.python, "-c", "import infra, trainer; print(infra.__file__)"))
    done(installed.run(installed.bivouac, "init", "campaign.yaml", "--target", "rehearsal"))
    assert "can be run" in done(installed.run(installed.bivouac, "check", "campaign.yaml"))
    assert "USD" in done(installed.run(installed.bivouac, "plan", "campaign.yaml"))
    # What the machine lacks is the machine's: the wheel is whole if the program can say it.
    assert "packages" in installed.run(installed.bivouac, "doctor").stdout


def test_every_spec_that_comes_with_it_passes_its_check(installed: Installed) -> None:
    specs = sorted((installed.packages / "infra/campaigns").glob("*.yaml"))
    assert [path.name for path in specs] == [path.name for path in sorted((ROOT / "infra/campaigns").glob("*.yaml"))]
    for path in specs:
        assert "can be run" in done(installed.run(installed.bivouac, "check", path))


def test_it_would_bake_the_images_that_the_clone_bakes(installed: Installed) -> None:
    code = "from infra.bake import bake; from infra.folders import CODE; print(bake.inputs_digest(CODE, 'sha256:base'))"
    assert done(installed.run(installed.python, "-c", code)).strip() == bake.inputs_digest(ROOT, "sha256:base")
    code = "from infra.bake.playbook import PLAYBOOKS; print(PLAYBOOKS)"
    folder = Path(done(installed.run(installed.python, "-c", code)).strip())
    assert folder.is_relative_to(installed.packages)
    assert files_below(folder) == files_below(ROOT / "playbooks"), "hidden files are the linter's"


def files_below(folder: Path) -> set[str]:
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(name) for name in names if not name.name.startswith(".")}


def test_it_holds_every_file_that_the_program_names(installed: Installed) -> None:
    texts = {path: path.read_text() for name in ("infra", "trainer") for path in sorted((ROOT / name).rglob("*.py"))}
    named = {(name, path) for path, text in texts.items() for name in NAMED.findall(text)}
    assert {name for name, _ in named} >= {"images/versions.yaml", "images/trainer.Dockerfile", "playbooks/bake.yml"}
    for name, path in named:
        if str(Path(name).parent) not in KEYS_IN_THE_STATE_BUCKET:
            places = (installed.packages / "infra/assets" / name, installed.packages / name)
            assert any(place.exists() for place in places), f"{path} names {name}"


def test_both_packages_tell_type_checkers_that_they_are_annotated(installed: Installed) -> None:
    assert (installed.packages / "infra/py.typed").exists() and (installed.packages / "trainer/py.typed").exists()
