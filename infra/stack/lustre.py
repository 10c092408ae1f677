"""Arguments of FSx for Lustre and its clients' settings. Pure.

Tuning: https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance-tips.html; EFA:
https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html (both read 2026-11-21).
"""

from __future__ import annotations

from typing import Any

from infra.plan.catalogue import InstanceType
from infra.plan.catalogue.reading import image_versions
from infra.spec.campaign import SharedStorage

VERSION = "2.15"
EFA_CONNECTIONS = 1024
"""The most EFA interfaces that one file system takes, over all clients."""
MOST_EFA_PER_CLIENT = 8
"""AWS's script uses one of four on types with 32 devices: more give no throughput without GPUDirect Storage."""
LARGE_MEMORY_GIB = 64
MANY_CPUS = 64
CLIENT_TRIES, CLIENT_PAUSE_S, CLIENT_TRY_S = 4, 15, 120
"""Tries to install the package: within ten minutes in all, so that a node without it joins before its group's creation
times out."""
_CLIENT = """#!/bin/bash
# EKS's own image comes without a Lustre client (awslabs/amazon-eks-ami, pull request 2696), and pods here mount Lustre.
# Amazon Linux locks its repository to the release of the image: the package fits the kernel that runs.
say() {{ echo "bivouac: $*" | tee /dev/console; }}
without() {{ say "no Lustre client, so no pod here can mount the file system, after $tries tries: $1"; exit 0; }}
ready() {{ rpm -q {package} > /dev/null 2>&1 && modprobe lustre > /dev/null 2>&1; }}
tries=0
until ready; do
  if [ "$tries" -ge {tries} ]; then without "$(tail -n 1 <<< "$seen")"; fi
  if [ "$tries" -gt 0 ]; then sleep {pause}; fi
  tries=$((tries + 1))
  say "installing {package}, try $tries of {tries}"
  if seen=$(timeout {limit} dnf install -y --setopt=timeout=20 {package} 2>&1); then
    module=$(modprobe lustre 2>&1) || without "kernel $(uname -r): $module"
  fi
  echo "$seen"
done
say "Lustre client $(rpm -q {package}) is there after $tries tries"
"""


def file_system(shared: SharedStorage) -> dict[str, Any]:
    """Return the file system's arguments that follow from the spec's section alone."""
    persistent = shared.deployment == "PERSISTENT_2"
    arguments: dict[str, Any] = {
        "storage_type": "SSD",
        "storage_capacity": shared.capacity_gib,
        "deployment_type": shared.deployment,
        "per_unit_storage_throughput": shared.throughput_mbs_per_tib if persistent else None,
        "file_system_type_version": VERSION,
        "efa_enabled": True if shared.efa else None,
        "metadata_configuration": metadata(shared),
        "data_compression_type": shared.compression,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def metadata(shared: SharedStorage) -> dict[str, Any] | None:
    """Return the metadata server's configuration; None keeps the built-in one, which does not work with EFA."""
    if isinstance(shared.metadata_iops, int):
        return {"mode": "USER_PROVISIONED", "iops": shared.metadata_iops}
    return {"mode": "AUTOMATIC"} if shared.efa or shared.metadata_iops == "automatic" else None


def efa_interfaces(item: InstanceType, nodes: int) -> int:
    """Return the number of EFA devices per node for the file system, each of which is one of its connections."""
    return max(1, min(item.efa_interfaces, MOST_EFA_PER_CLIENT, EFA_CONNECTIONS // max(1, nodes)))


def client_script() -> str:
    """Return a shell script that installs the Lustre client, where missing, before kubelet starts. A node that cannot
    get the client reports so on its console and still joins."""
    package = image_versions()["lustre_client"]["package"]
    return _CLIENT.format(package=package, tries=CLIENT_TRIES, pause=CLIENT_PAUSE_S, limit=CLIENT_TRY_S)


def boot_script(shared: SharedStorage, item: InstanceType, nodes: int) -> str | None:
    """Return the shell script that a node runs before its kubelet starts; None if there is nothing to do.

    Module parameters are read at the first mount, which loads the modules; the other settings exist only after it, so a
    timer sets them again and again (a few milliseconds a minute).
    """
    parts = []
    if shared.tune_clients:
        parts.append(_modules(item) + _settings(item))
    if shared.efa:
        parts.append(_fabric(efa_interfaces(item, nodes)))
    return "#!/bin/bash\nset -eu\n" + "".join(parts) if parts else None


def _modules(item: InstanceType) -> str:
    if item.vcpus <= MANY_CPUS:
        return ""
    return (
        "cat > /etc/modprobe.d/bivouac-lustre.conf <<'END'\n"
        "options ptlrpc ptlrpcd_per_cpt_max=64\n"
        "options ksocklnd credits=2560\n"
        "END\n"
    )


def _settings(item: InstanceType) -> str:
    settings = []
    if item.memory_gib > LARGE_MEMORY_GIB:
        settings += ["ldlm.namespaces.*.lru_max_age=600000", f"ldlm.namespaces.*.lru_size={100 * item.vcpus}"]
    if item.vcpus > MANY_CPUS:
        settings += ["osc.*OST*.max_rpcs_in_flight=32", "mdc.*.max_rpcs_in_flight=64"]
        settings += ["mdc.*.max_mod_rpcs_in_flight=50"]
    if not settings:
        return ""
    lines = "\n".join(f"lctl set_param -n '{setting}'" for setting in settings)
    return (
        "cat > /usr/local/sbin/bivouac-lustre-tune <<'END'\n"
        "#!/bin/sh\n"
        "# Nothing is mounted yet: the next turn of the timer will do.\n"
        "command -v lctl > /dev/null && lctl get_param -N 'osc.*' > /dev/null 2>&1 || exit 0\n"
        f"{lines}\n"
        "END\n"
        "chmod 0755 /usr/local/sbin/bivouac-lustre-tune\n"
        "cat > /etc/systemd/system/bivouac-lustre-tune.service <<'END'\n"
        "[Service]\nType=oneshot\nExecStart=/usr/local/sbin/bivouac-lustre-tune\n"
        "END\n"
        "cat > /etc/systemd/system/bivouac-lustre-tune.timer <<'END'\n"
        "[Timer]\nOnBootSec=30\nOnUnitActiveSec=60\n[Install]\nWantedBy=timers.target\n"
        "END\n"
        "systemctl daemon-reload\n"
        "systemctl enable --now bivouac-lustre-tune.timer\n"
    )


def _fabric(count: int) -> str:
    """Return the script part for LNet over EFA beside TCP: Lustre finds the file system over TCP, then prefers EFA. A
    node that cannot do it still joins, uses TCP, and reports so on its console."""
    return (
        "cat > /usr/local/sbin/bivouac-lustre-efa <<'END'\n"
        "#!/bin/bash\n"
        "set -eu\n"
        "interface=$(ip -4 route show default | awk '{print $5; exit}')\n"
        "devices=()\n"
        "for device in /sys/class/infiniband/*; do\n"
        '  driver=$(basename "$(realpath "$device/device/driver")")\n'
        '  if [ "$driver" = efa ]; then devices+=("$(basename "$device")"); fi\n'
        "done\n"
        f"wanted={count}\n"
        'if [ "${#devices[@]}" -lt "$wanted" ]; then echo "${#devices[@]} EFA devices, $wanted wanted"; exit 1; fi\n'
        "modprobe lnet\n"
        'modprobe kefalnd "ipif_name=$interface"\n'
        "modprobe ksocklnd\n"
        "lnetctl lnet configure\n"
        "lnetctl net del --net tcp > /dev/null 2>&1 || true\n"
        'lnetctl net add --net tcp --if "$interface"\n'
        "# Evenly over the devices, so that they lie on different PCIe switches.\n"
        "for ((n = 0; n < wanted; n++)); do\n"
        '  lnetctl net add --net efa --if "${devices[n * ${#devices[@]} / wanted]}" --peer-credits 32\n'
        "done\n"
        "lnetctl set discovery 1\n"
        "lnetctl udsp add --src efa --priority 0\n"
        "modprobe lustre\n"
        "END\n"
        "if ! bash /usr/local/sbin/bivouac-lustre-efa > /var/log/bivouac-lustre-efa.log 2>&1; then\n"
        '  echo "bivouac: Lustre goes over TCP, not EFA: $(tail -n 1 /var/log/bivouac-lustre-efa.log)" > /dev/console\n'
        "fi\n"
    )
