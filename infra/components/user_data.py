"""What a node is told at boot: a complete NodeConfig for nodeadm, since EKS adds nothing where the image is ours.

https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import yaml

from infra.components.addresses import SERVICE_CIDR

_BOUNDARY = "bivouac-node-config"


def node_config(
    cluster: str, endpoint: str, authority: str, labels: Mapping[str, str], taint: str | None, *, raid: str | None
) -> dict[str, Any]:
    """The NodeConfig; `raid` (RAID0, RAID10) joins the NVMe disks to one at `names.LOCAL_DISK`, `authority` is
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


def user_data(config: Mapping[str, Any], *scripts: str) -> str:
    """Multi-part MIME around a NodeConfig, in base64 as a launch template wants it; nodeadm resolves it first, then
    the shell scripts run, and only then kubelet starts."""
    text = yaml.safe_dump(dict(config), sort_keys=True, default_flow_style=False, width=10_000)
    lines = [
        "MIME-Version: 1.0",
        f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"',
        "",
        f"--{_BOUNDARY}",
        "Content-Type: application/node.eks.aws",
        "",
        text,
    ]
    for script in scripts:
        lines += [f"--{_BOUNDARY}", 'Content-Type: text/x-shellscript; charset="us-ascii"', "", script]
    lines += [f"--{_BOUNDARY}--", ""]
    return base64.b64encode("\n".join(lines).encode()).decode()
