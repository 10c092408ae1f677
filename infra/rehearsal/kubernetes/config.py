"""What one control plane is told, and where its files, addresses and ports are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

API_PORT = 6443


@dataclass(frozen=True)
class ControlPlaneConfig:
    """One cluster. `address` must lie on an interface of the namespace that `start` is called in."""

    name: str
    version: str
    """Kubernetes minor version as EKS names it, for instance `1.36`."""
    address: str
    work: Path
    token_webhook_url: str
    """Answers TokenReview (authentication.k8s.io/v1) for EKS-style tokens."""
    tools: Path
    """Folder of the executables; what JobSet needs beside its own lies in `../share/jobset`."""
    service_cidr: str = "172.20.0.0/16"

    @property
    def endpoint(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    @property
    def loopback(self) -> str:
        """Where everything but the API server listens: 127.x.y.z, which no node's own namespace can reach.

        Derived from `address`, so that two clusters of one site never meet on a port.
        """
        return "127." + self.address.split(".", 1)[1]

    @property
    def etcd_url(self) -> str:
        return f"http://{self.loopback}:2379"

    @property
    def pki(self) -> Path:
        return self.work / "pki"

    @property
    def logs(self) -> Path:
        return self.work / "logs"

    def kubeconfig(self, user: str) -> Path:
        return self.work / f"{user}.kubeconfig"
