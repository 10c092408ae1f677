"""What counts as changed code: the trainer image is baked again for that and for nothing else."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.bake import bake, node_image
from infra.spec.campaign import Spec
from tests.root import ROOT
from tests.tables import Table

TABLE = Table(__file__)

SPEC = Spec.model_validate(yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text()))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Below a hidden folder, as clones of some tools are: what is hidden counts from the clone's root.
    made = tmp_path_factory.mktemp("work") / ".worktrees/clone"
    for part in ("infra", "trainer", "images", "playbooks"):
        shutil.copytree(ROOT / part, made / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", made)
    return made


def _changed(clone: Path, file: str, digest: Callable[[], str]) -> bool:
    """Whether a line more in this file, or the file itself, makes another digest."""
    path, before = clone / file, digest()
    was = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((was or b"") + b"# a comment\n")
    try:
        return digest() != before
    finally:
        path.unlink() if was is None else path.write_bytes(was)
        assert digest() == before


@TABLE.cases
def test_a_spec_or_what_editors_leave_lying_is_no_changed_code(clone: Path, file: str) -> None:
    assert not _changed(clone, file, lambda: bake.inputs_digest(clone, "sha256:base"))


@TABLE.cases
def test_what_goes_into_the_trainer_image_is_changed_code(clone: Path, file: str) -> None:
    assert _changed(clone, file, lambda: bake.inputs_digest(clone, "sha256:base"))


def test_another_base_is_another_image(clone: Path) -> None:
    assert bake.inputs_digest(clone, "sha256:one") != bake.inputs_digest(clone, "sha256:other")


def test_every_role_and_module_that_the_trainer_images_play_names_is_hashed(clone: Path) -> None:
    (play,) = [
        one for one in yaml.safe_load((ROOT / "playbooks/bake.yml").read_text()) if one["hosts"] == "trainer_image"
    ]
    tasks = list(_flat(play["tasks"]))
    roles = {task["ansible.builtin.include_role"]["name"] for task in tasks if "ansible.builtin.include_role" in task}
    files = [path for role in roles for path in (ROOT / "playbooks/roles" / role).rglob("*") if path.is_file()]
    for tasks_file in (path for path in files if path.parent.name == "tasks"):
        tasks += _flat(yaml.safe_load(tasks_file.read_text()))
    own = {path.stem: path for path in (ROOT / "playbooks/library").glob("*.py")}
    files += [path for name, path in own.items() if any(name in task for task in tasks)]
    assert roles == {"trainer_image"} and own["machine"] in files
    for path in files:
        assert _changed(clone, str(path.relative_to(ROOT)), lambda: bake.inputs_digest(clone, "sha256:base")), path


def test_the_node_image_is_made_anew_for_its_own_roles_only(clone: Path) -> None:
    def digest() -> str:
        return node_image.inputs_digest(clone, "ami-1", SPEC)

    assert _changed(clone, "playbooks/roles/efa/tasks/install.yml", digest)
    assert _changed(clone, "images/versions.yaml", digest)
    for file in (
        "playbooks/roles/trainer_image/tasks/install.yml",
        "playbooks/.bake.yml.swp",
        "trainer/builtin/loop.py",
    ):
        assert not _changed(clone, file, digest)


@pytest.mark.nightly
def test_the_wheel_holds_what_its_digest_covers(clone: Path, tmp_path: Path) -> None:
    left_lying = [clone / "trainer/.loop.py.swp.py", clone / "infra/campaigns/mine.yaml"]
    for path in left_lying:
        path.write_text("budget_usd: 1\n")
    held = set(zipfile.ZipFile(bake.build_wheel(clone, tmp_path)).namelist())
    for path in left_lying:
        path.unlink()
    assert {"trainer/builtin/loop.py", "infra/plan/catalogue/charts.yaml", "infra/report/templates/style.css"} <= held
    assert not [name for name in held if name.startswith("infra/campaigns") or "/." in name]


def _flat(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        for key in ("block", "always", "rescue"):
            yield from _flat(task.get(key, []))
