"""A node's user data: a complete NodeConfig for nodeadm, since EKS adds nothing to a custom image.
https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import yaml

from infra.errors import UserError
from infra.stack.network.addresses import SERVICE_CIDR

MOST_BYTES = 16 * 1024
"""EC2's limit of user data before base64."""
_BOUNDARY = "bivouac-node-config"
_HUGE_PAGES = """#!/bin/bash
# libfabric's EFA provider takes 2 MiB pages; kubelet counts them once, at its start, and nodeadm starts it after this.
set -eu
echo 'vm.nr_hugepages = {count}' > /etc/sysctl.d/90-bivouac-huge-pages.conf
sysctl -q -p /etc/sysctl.d/90-bivouac-huge-pages.conf
"""


def node_config(
    cluster: str, endpoint: str, authority: str, labels: Mapping[str, str], taint: str | None, *, raid: str | None
) -> dict[str, Any]:
    """Return the NodeConfig; `raid` (RAID0, RAID10) joins the NVMe disks at `names.LOCAL_DISK`, `authority` is
    base64."""
    flags = ["--node-labels=" + ",".join(f"{key}={value}" for key, value in sorted(labels.items()))]
    if taint:
        flags.append(f"--register-with-taints={taint}")
    spec: dict[str, Any] = {
        "cluster": {
            "name": cluster,
            "apiServerEndpoint": endpoint,
            "certificateAuthority": authority,
            "cidr": SERVICE_CIDR,
        },
        "kubelet": {"flags": flags},
    }
    if raid:
        spec["instance"] = {"localStorage": {"strategy": raid}}
    return {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}


def huge_pages(count: int) -> str:
    """Return the script that reserves `count` pages of 2 MiB."""
    return _HUGE_PAGES.format(count=count)


def user_data(config: Mapping[str, Any], *scripts: str) -> str:
    """Return NodeConfig and scripts as multi-part MIME in base64, as a launch template wants it. nodeadm reads the
    NodeConfig first, then the scripts run, then kubelet starts. Raises `UserError` if it exceeds EC2's limit."""
    text = yaml.safe_dump(dict(config), sort_keys=True, default_flow_style=False, width=10_000)
    parts = [
        ("application/node.eks.aws", text),
        *(('text/x-shellscript; charset="us-ascii"', script) for script in scripts),
    ]
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"', ""]
    for kind, body in parts:
        lines += [f"--{_BOUNDARY}", f"Content-Type: {kind}", "", body]
    content = "\n".join([*lines, f"--{_BOUNDARY}--", ""]).encode()
    if len(content) > MOST_BYTES:
        cure = "a certificate authority of so many bytes is none of EKS's: look at the cluster"
        raise UserError(f"the nodes' user data exceeds EC2's {MOST_BYTES} bytes", seen=len(content), cure=cure)
    return base64.b64encode(content).decode()
