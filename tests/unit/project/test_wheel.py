"""An installed wheel checks and plans without a clone, and holds every file that the program reads or names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from infra.bake import bake
from tests.root import ROOT
from tests.wheel import Installed

NAMED = re.compile(
    r"(?<![\w/.-])(?:docs/[\w/-]+\.md|(?:images|playbooks|requirements|infra/campaigns)/[\w./-]*\w\.\w+)"
)
"""A file of the clone's root, as messages and docstrings name it."""
KEYS_IN_THE_STATE_BUCKET = {"images/given", "images/nodes"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"))


def output(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_it_writes_a_spec_checks_and_plans_it_away_from_the_clone(wheel: Installed) -> None:
    assert str(ROOT) not in output(wheel.run(wheel.python, "-c", "import infra, trainer; print(infra.__file__)"))
    output(wheel.run(wheel.bivouac, "init", "campaign.yaml", "--target", "rehearsal"))
    assert "can be run" in output(wheel.run(wheel.bivouac, "check", "campaign.yaml"))
    assert "USD" in output(wheel.run(wheel.bivouac, "plan", "campaign.yaml"))
    # What the machine lacks is the machine's: the wheel is whole if the program can say it.
    assert "packages" in wheel.run(wheel.bivouac, "doctor").stdout


def test_every_spec_that_comes_with_it_passes_its_check(wheel: Installed) -> None:
    specs = sorted((wheel.packages / "infra/campaigns").glob("*.yaml"))
    assert [path.name for path in specs] == [path.name for path in sorted((ROOT / "infra/campaigns").glob("*.yaml"))]
    for path in specs:
        assert "can be run" in output(wheel.run(wheel.bivouac, "check", path))


def test_it_would_bake_the_images_that_the_clone_bakes(wheel: Installed) -> None:
    code = "from infra.bake import bake; from infra.folders import CODE; print(bake.inputs_digest(CODE, 'sha256:base'))"
    assert output(wheel.run(wheel.python, "-c", code)).strip() == bake.inputs_digest(ROOT, "sha256:base")
    code = "from infra.bake.playbook import PLAYBOOKS; print(PLAYBOOKS)"
    folder = Path(output(wheel.run(wheel.python, "-c", code)).strip())
    assert folder.is_relative_to(wheel.packages)
    assert files_below(folder) == files_below(ROOT / "playbooks"), "hidden files are the linter's"


def files_below(folder: Path) -> set[str]:
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(name) for name in names if not name.name.startswith(".")}


def test_it_holds_every_file_that_the_program_names(wheel: Installed) -> None:
    texts = {path: path.read_text() for name in ("infra", "trainer") for path in sorted((ROOT / name).rglob("*.py"))}
    references = {(name, path) for path, text in texts.items() for name in NAMED.findall(text)}
    assert {name for name, _ in references} >= {"docs/waits.md", "images/trainer.Dockerfile", "playbooks/bake.yml"}
    for name, path in references:
        if str(Path(name).parent) not in KEYS_IN_THE_STATE_BUCKET:
            places = (wheel.packages / "infra/assets" / name, wheel.packages / name)
            assert any(place.exists() for place in places), f"{path} names {name}"


def test_both_packages_tell_type_checkers_that_they_are_annotated(wheel: Installed) -> None:
    assert (wheel.packages / "infra/py.typed").exists() and (wheel.packages / "trainer/py.typed").exists()
