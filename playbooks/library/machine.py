"""Ansible module: facts about this machine from its files and package database; it changes nothing.

Roles depend on these facts only: a machine without dnf is not Amazon Linux.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: machine
short_description: what a machine is and holds
options:
  packages:
    description: Packages whose installed version is wanted.
    type: list
    elements: str
    default: []
  modules:
    description: Kernel modules whose version is wanted, of those that the running kernel can load.
    type: list
    elements: str
    default: []
  root:
    description: Folder that stands for the machine's root.
    type: path
    default: /
"""

NVIDIA, AMAZON, EFA_DEVICES = "0x10de", "0x1d0f", ("0xefa0", "0xefa1", "0xefa2", "0xefa3")
DISPLAY = ("0x0302", "0x0300")
"""PCI classes of a GPU: 3D controller, VGA controller."""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def system(root: Path) -> str:
    """Return ID and version of the system, such as `amzn2023`."""
    text = _read(root / "etc/os-release") or _read(root / "usr/lib/os-release")
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("ID", "unknown") + fields.get("VERSION_ID", "")


def devices(root: Path) -> dict[str, int]:
    """Return the numbers of NVIDIA GPUs and EFA devices on the PCI bus."""
    found = {"nvidia": 0, "efa": 0}
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor = _read(device / "vendor")
        found["nvidia"] += vendor == NVIDIA and _read(device / "class")[:6] in DISPLAY
        found["efa"] += vendor == AMAZON and _read(device / "device") in EFA_DEVICES
    return found


def tree(root: Path) -> Path:
    """Return the folder below /opt/nvidia with the driver that EKS's image installs at a boot with a GPU.

    Releases from September 2026 on hold one for each branch and move the chosen one to `current`: `lts` for every GPU
    that it supports, else `pb` (amazon-eks-ami pull 2819: install-nvidia-drivers.sh, resolve-nvidia-driver.sh). Older
    releases have none.
    """
    folders = [root / "opt/nvidia" / name for name in ("current", "lts", "pb")]
    return next((folder for folder in folders if (folder / ".version").is_file()), folders[0])


def driver(root: Path) -> str:
    """Return the version of NVIDIA's user-mode driver by its library's name or its tree; empty without one."""
    for folder in ("usr/lib64", "usr/lib/x86_64-linux-gnu"):
        for library in sorted((root / folder).glob("libcuda.so.*.*")):
            return library.name.removeprefix("libcuda.so.")
    return _read(tree(root) / ".version")


def staged_package(root: Path, name: str) -> str:
    """Return version and release of a package that is registered at a boot with a GPU; empty without one."""
    for package in sorted((tree(root) / ".rpms").glob(f"{name}-[0-9]*.rpm")):
        return package.name.removeprefix(f"{name}-").rpartition(".rpm")[0].rpartition(".")[0]
    return ""


def installer(root: Path) -> str:
    """Return the version of a full EFA installation; the base has only the installer's kernel module."""
    if not any((root / "opt/amazon/efa").glob("lib*/libfabric.so*")):
        return ""
    found = re.search(r"EFA installer version: (\S+)", _read(root / "opt/amazon/efa_installed_packages"))
    return found[1] if found else ""


def module_path(root: Path, kernel: str, name: str) -> Path | None:
    """Return the file that modprobe loads for this kernel, by depmod's list, or will load after a boot with a GPU; None
    without one."""
    folder = root / "lib/modules" / kernel
    for line in (_read(folder / "modules.dep") + "\n" + _read(folder / "modules.builtin")).splitlines():
        path = folder / line.partition(":")[0].strip()
        if path.name.partition(".ko")[0].replace("-", "_") == name:
            return path
    staged = tree(root) / "flavors/open/lib/modules" / kernel / "extra"
    return next(iter(sorted(staged.glob(f"{name}.ko*"))), None)


def archived(root: Path, kernel: str) -> str:
    """Return the version of NVIDIA's driver for this kernel in an older EKS image's archives; empty without one.

    There its modules are installed at a boot with a GPU: nvidia-kmod-load.service takes them from a DKMS archive, named
    by kernel unless it is for several (amazon-eks-ami, templates/al2023: install-nvidia-driver.sh, kmod-util).
    """
    for archive in sorted((root / "var/lib/dkms-archive/nvidia-open").glob("*.tar.gz")):
        found = re.match(r"nvidia-open-([0-9.]+)-(?:kernel(\S+)-[^-]+\.dkms)?", archive.name)
        if found and found[2] in (None, kernel):
            return found[1]
    return ""


def main() -> None:
    module = AnsibleModule(
        {
            "packages": {"type": "list", "elements": "str", "default": []},
            "modules": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    packages = {}
    if module.params["packages"] and shutil.which("rpm"):
        for name in module.params["packages"]:
            code, out, _ = module.run_command(["rpm", "-q", "--qf", "%{VERSION}-%{RELEASE}\n", name])
            if version := out.splitlines()[0] if code == 0 else staged_package(root, name):
                packages[name] = version
    kernel = os.uname().release
    modules: dict[str, str] = {}
    modinfo = module.get_bin_path("modinfo")  # also where PATH lacks sbin
    for name in module.params["modules"]:
        path = module_path(root, kernel, name)
        if path is not None:
            # A module without a version has the sum of its source.
            for field in ("version", "srcversion") if modinfo else ():
                _, out, _ = module.run_command([modinfo, "-F", field, str(path)])
                modules[name] = modules.get(name) or out.strip()
            modules.setdefault(name, "")
        elif name == "nvidia" and archived(root, kernel):
            modules[name] = archived(root, kernel)
    facts = {
        "system": system(root),
        "kernel": kernel,
        "dnf": shutil.which("dnf") is not None,
        "systemd": (root / "run/systemd/system").is_dir(),
        "devices": devices(root),
        "driver": driver(root),
        "efa_installer": installer(root),
        "packages": packages,
        "modules": modules,
    }
    module.exit_json(changed=False, ansible_facts={"machine": facts})


if __name__ == "__main__":
    main()
