"""The playbooks: their form, where versions stand, and what a plain machine can take of them."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from infra.bake import playbook
from tests.root import ROOT

PLAYBOOKS = ROOT / "playbooks"
ROLES = sorted(path.name for path in (PLAYBOOKS / "roles").iterdir())
VERSIONS = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["versions"]
LOCAL = {
    "all": {
        "hosts": {
            "here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
        }
    }
}
FETCHING = ("get_url", "dnf", "yum", "rpm_key", "yum_repository", "unarchive", "uri", "git", "pip")
READING = ("assert", "stat", "debug", "machine")
WORDY = ("package_facts", "service_facts", "setup")
"""Answer with all that a machine has, where a role asks for one thing."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of that name, without ansible's own utilities: they replace `sys.intern`, and torch refuses that."""
    monkeypatch.setitem(sys.modules, "ansible.module_utils.basic", SimpleNamespace(AnsibleModule=None))
    monkeypatch.delitem(sys.modules, "playbooks.library.machine", raising=False)
    return importlib.import_module("playbooks.library.machine")


def apply(tasks: list[dict[str, Any]], work: Path, given: dict[str, Any]) -> playbook.PlayResult:
    """Play these tasks here; nothing of the machine may be touched but scratch folders."""
    work.mkdir(parents=True)
    play = {"name": "Apply", "hosts": "all", "gather_facts": False, "tasks": tasks}
    path = work / "play.yml"
    path.write_text(yaml.safe_dump([play | {"vars_files": [str(ROOT / "images/versions.yaml")]}]))
    return playbook.run(path, LOCAL, given, work)


def role(name: str, part: str) -> dict[str, Any]:
    return {"name": f"{name} {part}", "ansible.builtin.include_role": {"name": name, "tasks_from": part}}


def tasks_of(name: str, part: str) -> Iterator[dict[str, Any]]:
    def flat(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for task in tasks:
            yield task
            for key in ("block", "always", "rescue"):
                yield from flat(task.get(key, []))

    yield from flat(yaml.safe_load((PLAYBOOKS / f"roles/{name}/tasks/{part}.yml").read_text()))


def modules_of(task: dict[str, Any]) -> set[str]:
    return {key.removeprefix("ansible.builtin.") for key in task}


def test_a_loop_that_fails_is_told_in_the_words_of_its_first_item_that_failed(tmp_path: Path) -> None:
    command = {"argv": ["sh", "-c", "echo the registry says {{ item.code }} >&2; exit {{ item.code }}"]}
    loop = {"loop": [{"name": "one", "code": 0}, {"name": "two", "code": 3}, {"name": "three", "code": 4}]}
    label = {"loop_control": {"label": "{{ item.name }}"}}
    done = apply([{"name": "Push", "ansible.builtin.command": command, **loop, **label}], tmp_path / "loop", {})
    assert done.failure == "task 'Push' for two: non-zero return code the registry says 3"
    failing = {"name": "Push", "ansible.builtin.command": {"argv": ["sh", "-c", "echo no >&2; exit 3"]}}
    alone = apply([failing], tmp_path / "one", {})
    assert alone.failure == "task 'Push': non-zero return code no"


@pytest.mark.parametrize("name", ROLES)
def test_every_role_validates_installs_and_configures(name: str) -> None:
    for part in ("validate", "install", "configure"):
        assert list(tasks_of(name, part)), f"{name}/{part} is empty"
    for task in tasks_of(name, "validate"):
        assert modules_of(task) & set(READING), f"{name} validates by {task}"
        assert "assert" not in modules_of(task) or re.search(
            r"seen: .*cure: ", str(task["ansible.builtin.assert"]["fail_msg"]), re.DOTALL
        )
    for task in tasks_of(name, "configure"):
        assert not modules_of(task) & set(FETCHING), f"{name} downloads while it configures: {task['name']}"


@pytest.mark.parametrize("name", ROLES)
def test_no_role_asks_for_more_than_it_needs(name: str) -> None:
    for part in ("validate", "install", "configure"):
        for task in tasks_of(name, part):
            assert not modules_of(task) & set(WORDY), f"{name}: {task['name']}"


def test_a_download_is_held_against_its_sum_and_tried_a_bounded_number_of_times() -> None:
    fetched = [task for name in ROLES for task in tasks_of(name, "install") if modules_of(task) & {"get_url", "dnf"}]
    assert len(fetched) >= 5
    for task in fetched:
        if "ansible.builtin.get_url" in task:
            asked = task["ansible.builtin.get_url"]
            assert asked["checksum"].startswith("sha256:") and asked["timeout"] <= 60
            assert 1 <= task["retries"] <= 5
    repositories = [
        task["ansible.builtin.yum_repository"]
        for name in ROLES
        for task in tasks_of(name, "install")
        if "ansible.builtin.yum_repository" in task
    ]
    assert repositories and all(
        repository["gpgcheck"] is True and repository["includepkgs"] for repository in repositories
    )


def pinned(value: Any) -> Iterator[str]:
    """Every version, sum and package name that versions.yaml pins."""
    if isinstance(value, dict):
        for key, item in value.items():
            names_no_version = key in ("source", "as_of", "library", "repository", "key", "packages", "most_mb")
            names_no_version = names_no_version or key.endswith("series")
            if not names_no_version and (key != "base" or isinstance(item, dict)):
                yield from pinned(item)
    elif value is not None:
        yield str(value)


def test_no_version_of_the_images_stands_anywhere_else() -> None:
    texts = {text for text in pinned(VERSIONS) if re.search(r"\d", text)}
    assert {"580.159.03", "1.49.0", "2.5.1", "v20260728"} <= texts
    places = [path for top in ("playbooks", "infra") for path in (ROOT / top).rglob("*") if path.is_file()]
    places += [path for path in (ROOT / "images").iterdir() if path.name != "versions.yaml" and path.is_file()]
    assert len(places) > 200
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in places
        if path.suffix not in (".pyc", ".sum", ".mod")
        for text in texts
        if re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.])", path.read_text(errors="replace"))
    ]
    assert found == []


def test_every_pinned_thing_says_where_it_was_read_and_when() -> None:
    for name, held in VERSIONS.items():
        if held and name != "trainer_image":
            assert held["source"] and re.fullmatch(r"\d{4}-\d\d-\d\d", str(held["as_of"])), name


@pytest.mark.parametrize("name", ["bake", "boot", "validate"])
@pytest.mark.nightly
def test_a_playbook_is_one_that_ansible_can_read(name: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--syntax-check", f"{name}.yml"]
    environment = {"PATH": "/usr/bin:/bin", "ANSIBLE_HOME": str(tmp_path), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=PLAYBOOKS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_settings_and_health_check_apply_to_a_plain_machine_and_change_nothing_twice(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    given = {
        "system_tuning_root": str(root),
        "system_tuning_huge_pages": 5128,
        "health_checks_root": str(root),
        "health_checks_image": {"inputs": "abc", "kernel": "6.18", "huge_pages": "5128", "driver": "", "modules": []},
    }
    tasks = [role(name, p) for name in ("system_tuning", "health_checks") for p in ("validate", "install", "configure")]
    first = apply(tasks, tmp_path / "first", given)
    assert first.failure is None and first.changed == 4
    assert "vm.nr_hugepages = 5128\n" in (root / "etc/sysctl.d/90-bivouac.conf").read_text()
    for unit in ("gpu-clocks", "node-check"):
        wanted = root / f"etc/systemd/system/multi-user.target.wants/bivouac-{unit}.service"
        assert wanted.is_symlink() and wanted.resolve().is_file()
        program = re.search(r"^ExecStart=(\S+)", wanted.read_text(), re.MULTILINE)
        assert program and (root / program[1].lstrip("/")).stat().st_mode & 0o111 == 0o111
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}

    again = apply(tasks, tmp_path / "again", given)
    assert again.failure is None and again.changed == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.nightly
def test_a_role_that_refuses_says_what_was_seen_and_what_cures_it(tmp_path: Path) -> None:
    heard = apply([role("system_tuning", "validate")], tmp_path / "work", {"system_tuning_huge_pages": 40_000})
    assert heard.failure is not None
    assert "role system_tuning" in heard.failure and "40000" in heard.failure and "cure: set" in heard.failure


@pytest.mark.parametrize(
    ("modules", "refused"),
    [
        ({"nvidia": "580.1", "efa": "3.1.0g", "lustre": "2.15.6"}, None),
        ({"nvidia": "", "efa": "", "lustre": ""}, None),
        ({"nvidia": "580.1", "efa": "3.1.0g"}, "kernel 6.18.1 has no module lustre (seen for this kernel: {'nvidia'"),
        ({"nvidia": "570.9", "efa": "", "lustre": ""}, "two NVIDIA drivers (seen: 570.9 for kernel 6.18.1, libraries"),
    ],
)
@pytest.mark.nightly
def test_a_kernel_must_load_what_the_image_is_for_and_gdrcopy_only_where_it_is_asked_for(
    modules: dict[str, str], refused: str | None, tmp_path: Path
) -> None:
    machine = {"dnf": True, "system": "amzn2023", "kernel": "6.18.1", "driver": "580.1", "modules": modules}
    given = {**yaml.safe_load((PLAYBOOKS / "vars/node_image.yml").read_text()), "machine": machine}
    given |= {"node_image_accelerator": "nvidia"}
    left_out = {"name": "Left out", "ansible.builtin.assert": {"that": "node_image_not_applied | list == ['gdrcopy']"}}
    fit = {"name": "Fit", "ansible.builtin.include_tasks": str(PLAYBOOKS / "tasks/modules.yml")}
    heard = apply([left_out, fit], tmp_path / "work", given)
    assert (heard.failure is None) if refused is None else (refused in str(heard.failure)), heard.failure


@pytest.mark.nightly
def test_the_driver_of_the_base_is_held_against_versions_yaml(tmp_path: Path) -> None:
    machine = {"driver": "999.1", "dnf": True, "packages": {}}
    heard = apply([role("nvidia_driver", "validate")], tmp_path / "work", {"machine": machine})
    version = VERSIONS["nvidia_driver"]["version"]
    assert heard.failure is not None and f"seen: 999.1, wanted {version}" in heard.failure


@pytest.mark.nightly
def test_a_package_source_that_is_down_ends_the_bake_within_bounds_and_leaves_nothing(tmp_path: Path) -> None:
    given = {
        "efa_url": "http://127.0.0.1:9/aws-efa-installer.tar.gz",
        "efa_work": str(tmp_path / "efa"),
        "efa_pause": 0,
        "machine": {"efa_installer": ""},
    }
    heard = apply([role("efa", "install")], tmp_path / "work", given)
    assert heard.failure is not None and "role efa, task 'Fetch the installer'" in heard.failure
    assert "127.0.0.1:9" in heard.failure and "refused" in heard.failure.lower()
    assert not (tmp_path / "efa").exists()


def test_a_machine_is_known_by_its_files(tmp_path: Path, machine: Any) -> None:
    files = {
        "etc/os-release": 'NAME="Amazon Linux"\nID="amzn"\nVERSION_ID="2023"\n',
        "sys/bus/pci/devices/0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0/class": "0x030200\n",
        "sys/bus/pci/devices/1/vendor": "0x1d0f\n",
        "sys/bus/pci/devices/1/device": "0xefa2\n",
        "usr/lib64/libcuda.so.580.159": "",
        "opt/amazon/efa_installed_packages": "# EFA installer version: 1.49\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.system(tmp_path) == "amzn2023"
    assert machine.devices(tmp_path) == {"nvidia": 1, "efa": 1}
    assert machine.driver(tmp_path) == "580.159"
    assert machine.installer(tmp_path) == "", "the base ran the installer for the kernel module only"
    (tmp_path / "opt/amazon/efa/lib64").mkdir(parents=True)
    (tmp_path / "opt/amazon/efa/lib64/libfabric.so.1").touch()
    assert machine.installer(tmp_path) == "1.49"


def test_nvidias_module_is_found_where_the_base_keeps_it_until_a_boot(tmp_path: Path, machine: Any) -> None:
    """Names as DKMS gives them: kernel and architecture of one build, or without them when there are several."""
    kept = tmp_path / "var/lib/dkms-archive/nvidia-open"
    kept.mkdir(parents=True)
    kernel = "6.18.20-22.226.amzn2023.x86_64"
    assert machine.archived(tmp_path, kernel) == ""
    for other in ("6.12.64-87.122.amzn2023.x86_64", "6.18.20-22.226.amzn2023.x86_64.other"):
        (kept / f"nvidia-open-580.1.2-kernel{other}-x86_64.dkms.tar.gz").touch()
    assert machine.archived(tmp_path, kernel) == ""
    (kept / f"nvidia-open-580.1.2-kernel{kernel}-x86_64.dkms.tar.gz").touch()
    assert machine.archived(tmp_path, kernel) == "580.1.2"
    assert machine.archived(tmp_path, "6.1.0") == ""
    (kept / "nvidia-open-580.1.2-manykernels.tgz.tar.gz").touch()
    assert machine.archived(tmp_path, "6.1.0") == "580.1.2"


def test_a_driver_that_waits_below_opt_for_a_boot_with_a_gpu_is_the_bases_own(tmp_path: Path, machine: Any) -> None:
    """As amazon-eks-ami pull 2819 lays it out, in releases from September 2026 on."""
    kernel = "6.18.20-22.226.amzn2023.x86_64"
    for name, version in (("pb", "595.45.04"), ("lts", "580.173.02")):
        top = tmp_path / "opt/nvidia" / name
        for flavor in ("open", "proprietary"):
            (top / f"flavors/{flavor}/lib/modules/{kernel}/extra").mkdir(parents=True)
            (top / f"flavors/{flavor}/lib/modules/{kernel}/extra/nvidia.ko.xz").touch()
        (top / ".version").write_text(f"{version}\n")
        (top / ".rpms").mkdir()
        (top / f".rpms/nvidia-fabricmanager-{version}-1.amzn2023.x86_64.rpm").touch()
        assert machine.driver(tmp_path) == version, "lts where EKS has both: it takes that one for every GPU it drives"
    extra = tmp_path / f"opt/nvidia/lts/flavors/open/lib/modules/{kernel}/extra"
    (extra / "gdrdrv.ko.xz").touch()
    assert machine.module_path(tmp_path, kernel, "nvidia") == extra / "nvidia.ko.xz"
    assert machine.module_path(tmp_path, kernel, "gdrdrv") == extra / "gdrdrv.ko.xz"
    assert machine.module_path(tmp_path, "6.1.0", "nvidia") is machine.module_path(tmp_path, kernel, "efa") is None
    assert machine.staged_package(tmp_path, "nvidia-fabricmanager") == "580.173.02-1.amzn2023"
    assert machine.staged_package(tmp_path, "nvidia") == machine.staged_package(tmp_path, "efa") == ""
    (tmp_path / "opt/nvidia/lts").rename(tmp_path / "opt/nvidia/current")
    assert machine.driver(tmp_path) == "580.173.02", "a node that has booted with a GPU"


@pytest.mark.parametrize(
    ("kernel", "package"),
    [
        ("6.1.176-224.332.amzn2023.x86_64", "kernel-devel-6.1.176-224.332.amzn2023.x86_64"),
        ("6.12.64-87.122.amzn2023.x86_64", "kernel6.12-devel-6.12.64-87.122.amzn2023.x86_64"),
        ("6.18.20-22.226.amzn2023.x86_64", "kernel6.18-devel-6.18.20-22.226.amzn2023.x86_64"),
    ],
)
@pytest.mark.nightly
def test_a_module_is_built_with_the_headers_of_its_kernels_series(kernel: str, package: str, tmp_path: Path) -> None:
    """Names of Amazon Linux: amazon-eks-ami pulls 2345 and 2689."""
    defaults = yaml.safe_load((PLAYBOOKS / "roles/gdrcopy/defaults/main.yml").read_text())
    shown = {"name": "Headers", "ansible.builtin.assert": {"that": f"gdrcopy_headers == '{package}'"}}
    heard = apply([shown], tmp_path / "work", {**defaults, "machine": {"kernel": kernel}})
    assert heard.failure is None, heard.failure


@pytest.mark.nightly
def test_a_node_image_takes_the_plugin_under_either_name_and_none_without(tmp_path: Path) -> None:
    top = tmp_path / "ofi-nccl"
    (top / "lib64").mkdir(parents=True)
    given = {"nccl_plugin_folders": [str(top / "lib64"), str(top / "lib")], "nccl_conf": str(tmp_path / "nccl.conf")}
    refused = apply([role("nccl", "configure")], tmp_path / "without", given)
    assert refused.failure is not None and f"libnccl-net*.so below {top}" in refused.failure
    (top / "lib64/libnccl-net-ofi.so").touch()
    assert apply([role("nccl", "configure")], tmp_path / "with", given).failure is None
    assert (tmp_path / "nccl.conf").exists()


@pytest.mark.parametrize("another_system", [True, False])
def test_the_packages_of_a_builder_are_not_taken_for_those_of_the_base(another_system: bool, tmp_path: Path) -> None:
    (task,) = [task for task in tasks_of("trainer_image", "install") if "ansible.builtin.shell" in task]
    first = {"first": True}
    given = {"machine": {"dnf": another_system}, "loop": first, "python": sys.executable, "about": str(tmp_path)}
    # Of the task's script the line that lists the base, as Ansible renders it for this builder.
    script = task["ansible.builtin.shell"]["cmd"]
    begin, end = script.index("about="), script.index("--path")
    text = script[begin:end].rpartition("\n")[0].replace("$top/opt/bivouac", "{{ about }}")
    text = Environment().from_string(text.replace("{{ trainer_image_python }}", "{{ python }}")).render(given)
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "base-packages.json").read_text())
    assert (document == []) is another_system
