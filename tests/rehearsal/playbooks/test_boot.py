"""boot.yml and validate.yml really applied, with all roles, on a machine that looks like the base image.

The package database is a script that answers as rpm would on the base; /etc, /opt and /usr/lib64 are private copies, so
that what the roles write is written where they write it. Nothing of the machine outside is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.bake import playbook
from tests.root import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.inside]
VERSIONS: dict[str, Any] = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["versions"]
DRIVER = str(VERSIONS["nvidia_driver"]["version"])
PACKAGES = {
    "nvidia-fabricmanager": DRIVER,
    "nvidia-container-toolkit": str(VERSIONS["container_toolkit"]["version"]),
    "efa": str(VERSIONS["efa"]["kernel_module"]),
    "kernel": "6.18.1",
}
PLUGIN = Path("/opt/amazon/ofi-nccl/lib64/libnccl-net.so")
MODULES = {"efa": "3.1.0g", "lustre": "2.15.6", "gdrdrv": "2.5"}
KERNEL = Path("/lib/modules") / os.uname().release
TREE = Path("/opt/nvidia/lts")
"""Where a base of September 2026 or later keeps the driver until a boot with a GPU."""
KEPT = {
    "archives": Path("/var/lib/dkms-archive/nvidia-open")
    / f"nvidia-open-{DRIVER}-kernel{KERNEL.name}-x86_64.dkms.tar.gz",
    "trees": TREE / f"flavors/open/lib/modules/{KERNEL.name}/extra/nvidia.ko.xz",
}
"""Layout of the base -> NVIDIA's module for this kernel, until then."""
ROLES = {path.name for path in (ROOT / "playbooks/roles").iterdir()} - {"trainer_image"}
WHOLE = {"node_image_gdrcopy": True}
"""Every role, so that each one's tasks are run."""


@dataclass
class Base:
    """A machine as the base image leaves it."""

    work: Path
    layout: str
    mounted: list[str] = field(default_factory=list)

    @property
    def tools(self) -> Path:
        """The folder of its package tools."""
        return self.work / "tools"

    @property
    def kept(self) -> Path:
        return KEPT[self.layout]

    def make_private(self, place: str) -> None:
        """From now on this folder is a copy of itself."""
        copy = self.work / "private" / place.strip("/").replace("/", "-")
        shutil.copytree(place, copy, symlinks=True, ignore_dangling_symlinks=True)
        self._mount(copy, place)

    def open(self, place: str) -> None:
        """From now on this folder has room for entries of our own, beside those it had."""
        name = place.strip("/").replace("/", "-")
        behind, front = self.work / "behind" / name, self.work / "front" / name
        behind.mkdir(parents=True)
        front.mkdir(parents=True)
        self._mount(Path(place), str(behind))
        for entry in behind.iterdir():
            (front / entry.name).symlink_to(entry)
        self._mount(front, place)

    def _mount(self, source: Path, place: str) -> None:
        subprocess.run(["mount", "--bind", str(source), place], check=True)
        self.mounted.append(place)

    def unmount(self) -> None:
        for place in reversed(self.mounted):
            subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(scope="module", params=["archives", "trees"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    made = Base(tmp_path_factory.mktemp(request.param), request.param)
    for place in ("/etc", "/opt", "/usr/lib64"):
        made.make_private(place)
    for place in ("/usr/lib", "/var/lib"):
        made.open(place)
    KERNEL.mkdir(parents=True)
    (KERNEL / "modules.dep").write_text("".join(f"extra/{name}.ko.xz: extra/other.ko\n" for name in MODULES))
    packages, module_files = dict(PACKAGES), {name: KERNEL / f"extra/{name}.ko.xz" for name in MODULES}
    made.kept.parent.mkdir(parents=True)
    made.kept.touch()
    if made.layout == "trees":
        module_files["nvidia"] = made.kept
        (TREE / ".version").write_text(f"{DRIVER}\n")
        manager = f"nvidia-fabricmanager-{packages.pop('nvidia-fabricmanager')}-1.amzn2023.x86_64.rpm"
        (TREE / ".rpms").mkdir()
        (TREE / ".rpms" / manager).touch()
    else:
        (Path("/usr/lib64") / f"libcuda.so.{DRIVER}").touch()
    release = Path("/etc/os-release")
    release.unlink(missing_ok=True)
    release.write_text('NAME="Amazon Linux"\nID="amzn"\nVERSION_ID="2023"\n')
    PLUGIN.parent.mkdir(parents=True)
    PLUGIN.touch()
    old = Path("/etc/systemd/system/multi-user.target.wants/nvidia-dcgm.service")
    old.parent.mkdir(parents=True, exist_ok=True)
    old.symlink_to("/usr/lib/systemd/system/nvidia-dcgm.service")
    tools = made.tools
    tools.mkdir()
    rows = "".join(f"  *' {name}') echo {version}-1.amzn2023 ;;\n" for name, version in packages.items())
    (tools / "rpm").write_text(f'#!/bin/sh\ncase "$*" in\n{rows}  *) exit 1 ;;\nesac\n')
    texts = {**MODULES, "nvidia": DRIVER}
    rows = "".join(f"  *version\\ {file}) echo {texts[name]} ;;\n" for name, file in module_files.items())
    (tools / "modinfo").write_text(f'#!/bin/sh\ncase "$*" in\n{rows}  *) exit 1 ;;\nesac\n')
    (tools / "dnf").write_text("#!/bin/sh\necho dnf was called: $* >&2\nexit 1\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    yield made
    made.unmount()


def play(name: str, base: Base, number: str, **given: Any) -> playbook.PlayResult:
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    path = f"{base.tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return playbook.run(
        playbook.PLAYBOOKS / f"{name}.yml",
        {"all": {"hosts": {"node": host}}},
        {
            "node_image_inputs": "inputs",
            "node_image_base": "base",
            "node_image_accelerator": "nvidia",
            "node_image_gdrcopy": True,
            **given,
        },
        base.work / f"{name}-{number}",
        environment={"PATH": path},
    )


def written() -> dict[str, tuple[str, int]]:
    """Every file of ours under /etc and /opt, with its content and time."""
    found = [*Path("/etc").rglob("*bivouac*"), Path("/etc/nccl.conf"), *Path("/opt/bivouac").rglob("*")]
    return {str(one): (one.read_text(), one.lstat().st_mtime_ns) for one in found if one.is_file()}


def test_every_role_validates_the_base_and_configures_it_without_a_download(base: Base) -> None:
    checked = play("validate", base, "first")
    assert checked.failure is None and checked.changed == 0
    assert set(checked.seconds) >= ROLES, "a role that did not run proved nothing"
    first = play("boot", base, "first")
    assert first.failure is None, first.failure
    assert set(first.seconds) >= ROLES
    files = written()
    names = {"etc/nccl.conf", "etc/ld.so.conf.d/bivouac-efa.conf", "etc/modprobe.d/bivouac-lustre.conf",
             "etc/udev/rules.d/90-bivouac-gdrcopy.rules", "etc/sysctl.d/90-bivouac.conf",
             "etc/security/limits.d/90-bivouac.conf"}  # fmt: skip
    assert {f"/{name}" for name in names} <= set(files), sorted(files)
    assert "options ksocklnd credits=2560" in files["/etc/modprobe.d/bivouac-lustre.conf"][0]
    assert "vm.nr_hugepages = 5128" in files["/etc/sysctl.d/90-bivouac.conf"][0]
    image = json.loads(Path("/etc/bivouac/image.json").read_text())
    assert image["driver"] == DRIVER and image["modules"] == ["efa", "gdrdrv"]
    assert image["module_versions"] == {**MODULES, "nvidia": DRIVER}
    wants = Path("/etc/systemd/system/multi-user.target.wants")
    units = {"nvidia-fabricmanager.service", "nvidia-persistenced.service", "bivouac-gdrcopy.service"}
    assert units <= {one.name for one in wants.iterdir()} and (wants / "bivouac-gdrcopy.service").is_file()
    assert not (wants / "nvidia-dcgm.service").is_symlink(), "the exporter brings an engine of its own"


def test_a_second_time_only_what_was_changed_by_hand_is_set_back(base: Base) -> None:
    before = written()
    Path("/etc/nccl.conf").write_text("NCCL_PROTO=simple\n")
    again = play("boot", base, "again")
    assert (again.failure, again.changed) == (None, 1)
    after = written()
    assert {name: text for name, (text, _) in after.items()} == {name: text for name, (text, _) in before.items()}
    assert [name for name in after if after[name] != before[name]] == ["/etc/nccl.conf"]


def test_a_base_that_differs_is_refused_by_the_role_that_it_concerns(base: Base) -> None:
    rpm = base.tools / "rpm"
    text = rpm.read_text()
    rpm.write_text(text.replace(f"echo {PACKAGES['efa']}-", "echo 9.9.9-"))
    try:
        other = play("validate", base, "other-module")
    finally:
        rpm.write_text(text)
    assert other.failure is not None and "role efa" in other.failure and "seen: 9.9.9-1.amzn2023" in other.failure


def test_a_kernel_that_cannot_load_what_the_image_is_for_is_refused(base: Base) -> None:
    listed, another = KERNEL / "modules.dep", Path(str(base.kept).replace(KERNEL.name, "6.1.0-other"))
    text = listed.read_text()
    listed.write_text("".join(line for line in text.splitlines(True) if "lustre" not in line))
    another.parent.mkdir(parents=True, exist_ok=True)
    base.kept.rename(another)
    try:
        heard = play("boot", base, "without")
    finally:
        listed.write_text(text)
        another.rename(base.kept)
    assert heard.failure is not None and "cure: choose a base.release" in heard.failure
    assert f"kernel {KERNEL.name} has no module lustre, nvidia (seen for this kernel: {{'efa'" in heard.failure
