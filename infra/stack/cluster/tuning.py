"""A boot script that sets up EKS's own image as the bake sets up ours. The content is that of the playbooks'
roles, so both kinds of nodes are set up alike. It downloads nothing."""

from __future__ import annotations

from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from infra.folders import asset

ROLES = asset("playbooks/roles")
_HUGE_PAGES = "vm.nr_hugepages"
"""Left out: the launch template has a script of its own for them."""
_FILES = (
    ("system_tuning", "templates/sysctl.conf.j2", "/etc/sysctl.d/90-bivouac.conf"),
    ("system_tuning", "templates/limits.conf.j2", "/etc/security/limits.d/90-bivouac.conf"),
    ("system_tuning", "templates/containerd.conf.j2", "/etc/systemd/system/containerd.service.d/90-bivouac.conf"),
    ("system_tuning", "templates/tmpfiles.conf.j2", "/etc/tmpfiles.d/90-bivouac.conf"),
    ("system_tuning", "templates/nvme.rules.j2", "/etc/udev/rules.d/90-bivouac-nvme.rules"),
    ("system_tuning", "templates/bivouac-gpu-clocks.service.j2", "/etc/systemd/system/bivouac-gpu-clocks.service"),
    ("system_tuning", "files/gpu-clocks", "/opt/bivouac/bin/gpu-clocks"),
    ("health_checks", "templates/bivouac-kernel-log.service.j2", "/etc/systemd/system/bivouac-kernel-log.service"),
    ("health_checks", "files/kernel-log", "/opt/bivouac/bin/kernel-log"),
    ("health_checks", "templates/bivouac-spot-notices.service.j2", "/etc/systemd/system/bivouac-spot-notices.service"),
    ("health_checks", "files/spot-notices", "/opt/bivouac/bin/spot-notices"),
)
"""Role, source in it, place on the node. The check of an image against its own bake is not among them."""
_PROGRAMS = "/opt/bivouac/bin/"
_BEGIN = """#!/bin/bash
# Sets EKS's own image up as a bake sets up ours (infra/stack/cluster/tuning.py). A node on which a part fails says so
# and joins: preflight judges it.
say() { echo "bivouac: $*" | tee /dev/console; }
trap 'say "line $LINENO of the set-up failed: $BASH_COMMAND"' ERR
place() { mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"; }
"""
_END = """sysctl -q -p /etc/sysctl.d/90-bivouac.conf
systemd-tmpfiles --create /etc/tmpfiles.d/90-bivouac.conf
udevadm control --reload
udevadm trigger --subsystem-match=block --action=change
systemctl daemon-reload
systemctl try-restart containerd.service
systemctl enable --now --no-block bivouac-kernel-log.service bivouac-spot-notices.service bivouac-gpu-clocks.service
exit 0
"""


def tuning_script() -> str:
    """Return a shell script that writes the roles' files and applies them, before containerd and kubelet start."""
    parts = [_BEGIN]
    for role, source, place in _FILES:
        mode = "0755" if place.startswith(_PROGRAMS) else "0644"
        parts.append(f"place {place} {mode} <<'END-OF-FILE'\n{_content(role, source)}\nEND-OF-FILE\n")
    return "".join([*parts, _END])


def _content(role: str, source: str) -> str:
    folder = ROLES / role
    if not source.startswith("templates/"):
        return (folder / source).read_text().rstrip("\n")
    defaults: dict[str, Any] = yaml.safe_load((folder / "defaults/main.yml").read_text()) or {}
    if "system_tuning_sysctl" in defaults:
        defaults["system_tuning_sysctl"].pop(_HUGE_PAGES)
    # As ansible does: a block's own line is no line of the file.
    environment = Environment(loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template(source).render(defaults).rstrip("\n")
