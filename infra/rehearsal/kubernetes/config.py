"""Configuration of one control plane: its files, addresses and ports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

API_PORT = 6443


@dataclass(frozen=True)
class ControlPlaneConfig:
    """One cluster. `address` must be on an interface of the namespace in which `start` is called."""

    name: str
    version: str
    """Kubernetes minor version as EKS names it, for instance `1.36`."""
    address: str
    work: Path
    token_webhook_url: str
    """Answers TokenReview (authentication.k8s.io/v1) for EKS-style tokens."""
    tools: Path
    """Folder of the executables; JobSet's other files are in `../share/jobset`."""
    service_cidr: str = "172.20.0.0/16"
    feature_gates: tuple[str, ...] = ()
    """Alpha features that are on, with their APIs. EKS has none."""

    @property
    def endpoint(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    @property
    def loopback(self) -> str:
        """Return 127.x.y.z for all but the API server: no node can reach it, and no two clusters share a port."""
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
