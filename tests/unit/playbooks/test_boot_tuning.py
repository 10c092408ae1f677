"""EKS's own image is set up at boot as a bake sets up ours: by the script in the user data, from the roles' files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.stack.cluster.tuning import tuning_script
from tests.root import ROOT
from tests.unit.playbooks.test_playbooks import apply, role
from tests.waiting import HUNG_S

NOT_FOR_EKS = (
    "/etc/bivouac/image.json",
    "/etc/systemd/system/bivouac-node-check.service",
    "/opt/bivouac/bin/node-check",
)
"""The check of an image against its own bake."""
TOOLS = ("sysctl", "systemd-tmpfiles", "udevadm", "systemctl")


def booted(work: Path, failing: str = "") -> tuple[Path, list[str], str]:
    """Run the script below a folder, with tools that only say how they were called: root, calls, console."""
    root, tools = work / "root", work / "tools"
    tools.mkdir(parents=True)
    for name in TOOLS:
        tool = tools / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >> {work}/calls\n[ {name} != "{failing}" ]\n')
        tool.chmod(0o755)
    text = tuning_script().replace("\nplace /", f"\nplace {root}/").replace("/dev/console", str(work / "console"))
    path = f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin"
    done = subprocess.run(["bash", "-c", text], env={"PATH": path}, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 0, done.stderr
    console = work / "console"
    return root, (work / "calls").read_text().splitlines(), console.read_text() if console.exists() else ""


def files_below(root: Path) -> dict[str, tuple[str, int]]:
    """Path -> content and mode."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return {f"/{path.relative_to(root)}": (path.read_text(), path.stat().st_mode & 0o777) for path in paths}


def test_every_file_of_the_roles_is_there_but_the_check_of_a_bake(tmp_path: Path) -> None:
    root, calls, console = booted(tmp_path)
    wanted = set[str]()
    for name in ("system_tuning", "health_checks"):
        for path in (ROOT / f"playbooks/roles/{name}/tasks").glob("*.yml"):
            for task in yaml.safe_load(path.read_text()):
                wanted |= {one["path"] for one in task.get("files", {}).get("files", ()) if "content" in one}
    assert set(files_below(root)) == wanted - set(NOT_FOR_EKS) and wanted >= set(NOT_FOR_EKS)
    assert "systemctl daemon-reload" in calls and any("--no-block bivouac-kernel-log" in call for call in calls)
    assert not console


@pytest.mark.parametrize("tool", TOOLS)
def test_a_part_that_fails_is_told_on_the_console_and_the_rest_is_done_all_the_same(tool: str, tmp_path: Path) -> None:
    _, calls, console = booted(tmp_path, failing=tool)
    assert f"of the set-up failed: {tool}" in console
    assert {call.partition(" ")[0] for call in calls} == set(TOOLS) and calls[-1].startswith("systemctl enable")


@pytest.mark.nightly
def test_the_files_are_those_that_the_roles_write(tmp_path: Path) -> None:
    """Huge pages have a script of their own."""
    baked, (root, _, _) = tmp_path / "baked", booted(tmp_path / "boot")
    given = {"system_tuning_root": str(baked), "system_tuning_huge_pages": 5128, "health_checks_root": str(baked),
             "health_checks_image": {"inputs": "abc"}}  # fmt: skip
    tasks = [role(name, part) for name in ("system_tuning", "health_checks") for part in ("install", "configure")]
    heard = apply(tasks, tmp_path / "play", given)
    assert heard.failure is None
    wanted = {path: held for path, held in files_below(baked).items() if path not in NOT_FOR_EKS}
    settings, mode = wanted["/etc/sysctl.d/90-bivouac.conf"]
    wanted["/etc/sysctl.d/90-bivouac.conf"] = settings.replace("vm.nr_hugepages = 5128\n", ""), mode
    found = {path: (text.rstrip("\n"), mode) for path, (text, mode) in files_below(root).items()}
    assert found == {path: (text.rstrip("\n"), mode) for path, (text, mode) in wanted.items()}
